from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tars import bare, one_shard, read_all

from energy_data.data.decode import parts as decode_module
from energy_data.data.decode.av import MEDIA_EXTENSIONS, AVDecoder
from energy_data.data.decode.parts import Decoding, SampleDecoder
from energy_data.errors import MissingExtraError, SampleError
from energy_data.loading.transport import codec


def decode(extension, data, **options):
    decoder = Decoding(**options).decoder(extension)
    return decoder(memoryview(data))


def npy(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def image(kind="PNG", mode="RGB", size=(5, 3)):
    stream = io.BytesIO()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(stream, kind)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("extension", "data", "value"),
    [
        ("txt", b"gr\xc3\xbc\xc3\x9fe", "grüße"),
        ("text", b"", ""),
        ("transcript", b"a", "a"),
        ("TXT", b"a", "a"),
        ("a.b.txt", b"a", "a"),
        ("json", b' {"a": [1]} \n', {"a": [1]}),
        ("json", b"\xef\xbb\xbf[]", []),
        ("seg.jsn", b"3", 3),
        ("json.gz", gzip.compress(b"[1]", mtime=0) + gzip.compress(b"", mtime=0), [1]),
        ("txt.gz", gzip.compress(b"a", mtime=0) + gzip.compress(b"b", mtime=0) + b"\0\0", "ab"),
        ("gz", gzip.compress(b"a", mtime=0), b"a"),
        ("bin.gz", gzip.compress(b"a", mtime=0), b"a"),
        ("cls", b"12\n", 12),
        ("id", b"-3", -3),
        ("index", b"0", 0),
        ("xyz", b"a", b"a"),
        ("", b"a", b"a"),
        ("pkl", pickle.dumps(1), pickle.dumps(1)),
        ("pickle", b"\x80", b"\x80"),
        ("mp4", b"a", b"a"),
    ],
)
def test_values_by_extension(extension, data, value):
    assert decode(extension, data) == value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.float64(3),
        np.zeros((0, 5), np.int16),
        np.array(["a", "bc"]),
        np.zeros(3, [("a", "<i4"), ("b", "<f8")]),
        np.arange(3, dtype=">i8"),
    ],
)
def test_arrays_are_as_saved_and_can_be_written(array):
    data = npy(array)
    for given in (data, memoryview(data), memoryview(bytearray(data))):
        value = Decoding().decoder("npy")(given)
        assert value.dtype == array.dtype
        np.testing.assert_array_equal(value, array)
        value[...] = value
    assert data == npy(array)
    for version in ((1, 0), (2, 0)):
        stream = io.BytesIO()
        np.lib.format.write_array(stream, np.asarray(array), version=version)
        np.testing.assert_array_equal(decode("npy", stream.getvalue()), array)


def saved(save, value):
    stream = io.BytesIO()
    save(value, stream)
    return stream.getvalue()


NO_CODE = (b"\x80", lambda value: value == b"\x80")
TABLE = {  # the first extension of each row of the page: its bytes, and checks of what they become
    "txt": (b"text", "text".__eq__),
    "json": (b'{"a": [1]}', {"a": [1]}.__eq__),
    "cls": (b"12", (12).__eq__),
    "npy": (npy(np.arange(3)), lambda value: value.tolist() == [0, 1, 2]),
    "npz": (
        saved(lambda value, to: np.savez(to, a=value), [1, 2]),
        lambda value: value["a"][1] == 2,
    ),
    "pt": (saved(torch.save, {"a": 1}), {"a": 1}.__eq__),
    "jpg": (
        image("JPEG"),
        lambda value: (value.dtype, value.shape) == (torch.uint8, (3, 3, 5)),
        lambda value: value.dtype == torch.float32 and 0 <= value.min() <= value.max() <= 1,
    ),
    "mp4": (*NO_CODE, lambda value: isinstance(value, AVDecoder)),
    "txt.gz": (gzip.compress(b'"text"'), lambda value: value in ("text", '"text"')),
    "pkl": NO_CODE,
}


def test_the_page_about_datasets_lists_what_each_extension_becomes():
    page = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    rows = page.split("| extension | value in a dict |")[1].split("\n\n")[0].splitlines()[2:]
    named = [re.findall(r"`([\w.]+)`", row.split("|")[1]) for row in rows]
    assert [names[0] for names in named] == list(TABLE)
    for names, (data, plain, *typed) in zip(named, TABLE.values(), strict=True):
        for name in names:
            assert plain(decode(name, data)), name
            assert (typed or [plain])[0](SampleDecoder().decoding().decoder(name)(data)), name
    listed = {name for names in named for name in names}
    assert listed >= MEDIA_EXTENSIONS | decode_module._DECODERS.keys()


def test_large_arrays_are_not_copied_but_are_their_own(tmp_path):
    arrays = [np.full((100, 100), n, np.float32) for n in range(40)]
    source = one_shard(tmp_path, [(f"{n}.npy", npy(array)) for n, array in enumerate(arrays)])
    values = [sample["npy"] for sample in read_all(source)]
    for value, array in zip(values, arrays, strict=True):
        np.testing.assert_array_equal(value, array)
        value += 1
        assert torch.from_numpy(value).sum() == array.sum() + array.size
        assert value.flags.aligned


def test_npz_is_a_dict_of_arrays():
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.arange(3), b=np.zeros((2, 2)))
    value = decode("npz", stream.getvalue())
    assert sorted(value) == ["a", "b"]
    np.testing.assert_array_equal(value["a"], np.arange(3))


def test_torch_files_are_loaded_without_pickled_code():
    stream = io.BytesIO()
    torch.save({"a": torch.arange(3)}, stream)
    assert decode("pth", stream.getvalue())["a"].tolist() == [0, 1, 2]
    stream = io.BytesIO()
    torch.save(Decoding, stream)
    with pytest.raises(pickle.UnpicklingError):
        decode("pt", stream.getvalue())


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_images_are_rgb_channels_first(kind):
    data = image(kind)
    value = decode("seg." + kind.lower(), data)
    assert value.dtype == torch.uint8
    assert value.shape == (3, 3, 5)
    assert value.is_contiguous()
    pixels = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    np.testing.assert_array_equal(value.permute(1, 2, 0), pixels)
    assert decode("png", image(mode="L")).shape == (3, 3, 5)


def test_other_formats_that_pillow_knows_are_not_tried():
    with pytest.raises(ValueError, match="it is none of"):
        decode("png", image("EPS"))


def png_that_claims(width, height):
    def chunk(kind, data):
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def npy_that_claims(shape, descr="<f8"):
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200 + "]" * 200,
        '{"a":' * 200 + '"["' + "}" * 200,
        f'"{"[" * 900}"',
        "[" + "[[1]]," * 900 + "[]]",
    ],
    ids=["list", "dict", "string", "wide"],
)
def test_json_up_to_200_levels_deep_is_decoded_and_sent_by_workers(text):
    value = decode("json", text.encode())
    assert value == json.loads(text)
    assert codec.decode(*codec.encode([{"json": [value]}])) == [{"json": [value]}]


BAD = {
    "txt": b"abc\xff",
    "json": b"{",
    "jsn": b"[" * 100_000,
    "b.json": b"[" * 201 + b"]" * 201,
    "c.json": b'\xef\xbb\xbf{"b": "]]]]", "a": ' + b'[{"a":' * 450 + b"1" + b"}]" * 450 + b"}",
    "a.json": b"\xff\xfe[\0]\0",
    "cls": b"a",
    "cls2": b"1" * 10_000,
    "id": b"",
    "npy": npy(np.array([1]))[:-1],
    "b.npy": b"",
    "c.npy": npy(np.array([object()], object), allow_pickle=True),
    "d.npy": npy_that_claims((1 << 40, 1 << 40)),
    "e.npy": npy_that_claims((-1,)),
    "f.npy": npy_that_claims("x"),
    "g.npy": b"\x93NUMPY\x09\x00" + b"\0" * 100,
    "h.npy": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + b"\0" * 100,
    "i.npy": npy_that_claims((1,), "O"),
    "npz": b"PK",
    "pth": b"\x80\x02cos\nsystem\n(S'true'\ntR.",
    "pt": b"",
    "txt.gz": gzip.compress(b"abc" * 100, mtime=0)[:-9],
    "c.gz": b"abc",
    "gz": b"",
    "d.gz": gzip.compress(b"abc", mtime=0) + b"x",
    "jpg": image("JPEG", size=(100, 100))[:-800],
    "png": b"",
    "a.png": png_that_claims(1_000_000, 1_000_000),
    "b.png": png_that_claims(10, 10),
    "webp": b"RIFF",
}


@pytest.mark.parametrize("extension", BAD)
def test_what_cannot_be_decoded_is_a_sample_error_that_names_the_part(tmp_path, extension):
    files = [(f"{n}.{extension}" if n == 3 else f"{n}.txt", b"ok") for n in range(9)]
    files[3] = (files[3][0], BAD[extension])
    samples = read_all(one_shard(tmp_path, files))
    error = samples.pop(3)
    assert isinstance(error, SampleError), error
    assert (error.key, error.index, error.shard) == ("3", 3, "a.tar")
    assert error.offset >= 3 * 1024 + 512
    assert f"part {extension!r}" in str(error)
    assert [sample["txt"] for sample in samples] == ["ok"] * 8


def test_bombs_do_not_unpack(tmp_path, monkeypatch):
    monkeypatch.setattr(decode_module, "LARGEST_UNPACKED", 1 << 16)
    stream = io.BytesIO()
    np.savez_compressed(stream, a=np.zeros(1 << 20))
    files = [
        ("1.gz", gzip.compress(bytes(1 << 24), mtime=0)),
        ("2.gz", gzip.compress(bytes(1 << 16), mtime=0) + gzip.compress(b"x", mtime=0)),
        ("3.npz", stream.getvalue()),
        ("4.gz", gzip.compress(bytes(1 << 16), mtime=0)),
    ]
    *errors, sample = read_all(one_shard(tmp_path, files))
    for error in errors:
        with pytest.raises(SampleError, match="more than 65536 bytes"):
            raise error
    assert bare(sample) == {"__key__": "4", "gz": bytes(1 << 16)}


def test_without_pillow_images_name_the_extra(tmp_path, monkeypatch):
    png = image()
    monkeypatch.setitem(sys.modules, "PIL", None)
    source = one_shard(tmp_path, [("1.txt", b"a"), ("2.png", png)])
    assert source.read(np.array([0]))[0]["txt"] == "a"
    for numbers in (np.array([1]), np.ones(50, np.int64)):
        with pytest.raises(MissingExtraError, match="images"):
            source.read(numbers)
    raw = one_shard(tmp_path, [("2.png", png)], decode="bytes")
    assert raw.read(np.array([0]))[0]["png"] == png


def test_errors_of_the_users_decoders_are_sample_errors(tmp_path):
    def fail(data):
        raise KeyError("oh")

    [error] = read_all(one_shard(tmp_path, [("1.x", b"a")], decoders={"x": fail}))
    with pytest.raises(SampleError, match=r"part 'x' cannot be decoded: KeyError: 'oh'"):
        raise error
