"""Parts that are a tensor's numbers: the same batches however they are read, with one copy."""

from __future__ import annotations

import io
import tarfile
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_data import (
    FORMATS,
    LAYOUTS,
    RAW,
    SHAPE,
    as_function,
    parts,
    payload,
    plain,
    stream,
    tensors,
    values,
)
from tars import write_tar

from energy_data import (
    RawTensor,
    SampleError,
    SpecError,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energy_data.data.prepare import prepare
from energy_data.data.tar import native, reader

pytestmark = pytest.mark.usefixtures("reading")


@pytest.fixture
def strictly(monkeypatch):
    """The rows that the strict reader has read."""
    read, seen = reader.read_strictly, []
    monkeypatch.setattr(reader, "read_strictly", lambda *a: seen.append(a[1]) or read(*a))
    return seen


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("workers", "method"), [(0, "fork"), (2, "fork"), (2, "thread")])
def test_batches_are_those_of_a_function_that_decodes(tmp_path, layout, kind, workers, method):
    path = tensors(tmp_path, layout=layout, kind=FORMATS[kind])
    batches = plain(stream(path, workers=workers, method=method))
    assert len(batches) == 10
    assert batches == plain(stream(path, as_function))
    for batch in batches:
        assert batch["bin"] == [values(int(key)).tolist() for key in batch["__key__"]]


def test_tensors_are_read_into_their_batch(tmp_path, stacked, strictly):
    assert len(list(stream(tensors(tmp_path)))) == 10
    assert not stacked
    assert bool(strictly) == (native.TAR is None)


LARGE = RawTensor("uint8", (1 << 16,))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_tensors_are_read_into_their_batch_wherever_they_are(tmp_path, stacked, layout, kind):
    with tarfile.open(tmp_path / "a.tar", "w", format=FORMATS[kind]) as tar:
        for number in range(8):
            before, after = LAYOUTS[layout]
            for extension, data in (*before, ("bin", bytes([number]) * (1 << 16)), *after):
                member = tarfile.TarInfo(f"{number}.{extension}")
                member.size, member.mtime = len(data), 1.5
                tar.addfile(member, io.BytesIO(data))
    prepare(tmp_path, workers=1)
    for batch in stream(tmp_path, LARGE):
        assert batch["bin"][:, -1].tolist() == [int(key) for key in batch["__key__"]]
    assert not stacked


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_small_tensors_with_other_parts_are_left_to_the_compiled_part(
    tmp_path, strictly, layout, kind
):
    path = tensors(tmp_path, layout=layout, kind=FORMATS[kind])
    assert len(list(stream(path))) == 10
    assert bool(strictly) == (native.TAR is None)


def ends_with_a_space(header):
    header[135] = ord(" ")


def is_of_v7(header):
    header[156] = 0


def is_not_utf8(header):
    header[0] = 0xFF


@pytest.mark.parametrize(
    ("folder", "change"),
    [
        ("", ends_with_a_space),  # as libarchive writes them
        ("", is_of_v7),
        ("", is_not_utf8),
        ("n" * 92, None),  # with it a name fills its field, and nothing ends it
        ("n" * 70 + "/" + "n" * 60, None),
    ],
)
def test_headers_of_all_writers_are_read_with_their_tensors(
    tmp_path, stacked, strictly, folder, change
):
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(40):
            member = tarfile.TarInfo(f"{folder}{number:04d}.bin")
            member.size = RAW.num_bytes
            header = bytearray(member.tobuf(tarfile.USTAR_FORMAT))
            if change:
                change(header)
                header[148:156] = b" " * 8
                header[148:155] = b"%06o\0" % sum(header)
            tar.fileobj.write(header + payload(number))
        tar.offset = tar.fileobj.tell()
    prepare(tmp_path, workers=1)
    batches = list(stream(tmp_path))
    assert sum(len(batch["bin"]) for batch in batches) == 40
    assert not stacked
    assert bool(strictly) == (native.TAR is None)
    assert plain(batches) == plain(stream(tmp_path, as_function))


class Scaled(RawTensor):
    def __call__(self, data):
        return super().__call__(data) / 2


def test_a_kind_of_raw_tensor_that_does_more_is_called(tmp_path):
    for batch in stream(tensors(tmp_path), Scaled("float32", SHAPE)):
        assert (2 * batch["bin"][:, 0, 0, 0]).tolist() == [int(key) for key in batch["__key__"]]


def test_a_sample_of_another_size_is_a_bad_sample_that_says_so(tmp_path):
    files = [file for number in range(8) for file in parts(number)]
    files[3] = ("0003.bin", b"x" * 100)
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    dataset = get_val_dataset(tmp_path, batch_size=4, split_part="train", decoders={"bin": RAW})
    keys = [batch["__key__"] for batch in get_loader(dataset)]
    assert keys == [["0000", "0001", "0002"], ["0004", "0005", "0006", "0007"]]
    problem = r"has 100 bytes, but torch.float32 \[8, 16, 16\] has 8192"
    with pytest.raises(SampleError, match=problem) as raised:
        list(stream(tmp_path, on_error="raise"))
    assert (raised.value.key, raised.value.index) == ("0003", 3)


def test_a_shape_that_no_sample_has_takes_no_memory(tmp_path):
    path = tensors(tmp_path, range(4))
    with pytest.raises(SampleError, match="has 8192 bytes"):
        list(stream(path, RawTensor("uint8", (1 << 40, 8)), on_error="raise"))


def test_a_run_goes_on_where_it_was(tmp_path):
    path = tensors(tmp_path)
    whole = stream(path, repeat=True)
    given = []
    for _, batch in zip(range(12), whole, strict=False):
        given.append((plain([batch]), whole.state_dict()))
    for place, (_, state) in enumerate(given[:-1]):
        again = stream(path, repeat=True, workers=place % 2)
        again.load_state_dict(state)
        assert plain([next(iter(again))]) == given[place + 1][0]


@pytest.mark.parametrize(
    "dtype", ["uint8", "int16", "int64", "float16", "bfloat16", "float64", "complex64"]
)
def test_dtypes(tmp_path, dtype, stacked):
    kind, shape = getattr(torch, dtype), (4096,)
    files = [(f"{n}.x.bin", payload(n, kind, shape)) for n in range(8)]
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    given = get_train_dataset(
        tmp_path, batch_size=8, repeat=False, decoders={"x.bin": RawTensor(kind, shape)}
    )
    batch = next(iter(get_loader(given)))
    for key, tensor in zip(batch["__key__"], batch["x.bin"], strict=True):
        assert tensor.dtype == kind
        assert torch.equal(tensor, values(int(key), kind, shape))
    assert not stacked


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tensors(tmp_path_factory.mktemp("mixed"), range(12), "first", tarfile.PAX_FORMAT)
    return folder, (folder / "a.tar").read_bytes()


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 12 * 11_776 - 1), st.integers(0, 255)), max_size=8))
def test_damaged_bytes_give_the_same_either_way(mixed, flips):
    folder, data = mixed
    damaged = bytearray(data)
    for place, byte in flips:
        damaged[place % len(data)] = byte
    (folder / "a.tar").write_bytes(damaged)
    both = []
    for decoder in (RAW, as_function):
        given, said = stream(folder, decoder), []
        try:
            for batch in given:
                said += [np.asarray(batch["bin"]).tobytes(), batch["__key__"], batch.get("json")]
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same
            said.append(f"{type(error).__name__}: {error}")
        both.append(said)
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (partial(RawTensor, "bool", (2,)), "neither bool nor quantized, got 'bool'"),
        (partial(RawTensor, torch.qint8, (2,)), "neither bool nor quantized, got torch.qint8"),
        (partial(RawTensor, "float31", (2,)), "dtype: must be a torch.dtype or its name"),
        (
            partial(RawTensor, "uint8", (2, 0)),
            r"shape: must be a tuple of whole .* \(2, 0\)",
        ),
        (
            partial(stream, "x", RawTensor),
            "'bin' must be a function of a part's bytes",
        ),
        (partial(stream, "x", 3), "'bin' must be a function of a part's bytes"),
        (partial(RawTensor, "uint8", 5), "shape: must be a tuple of whole numbers > 0, got 5"),
        (partial(get_train_dataset, "x", batch_size=1, decoders=["bin"]), "must be a dict by"),
    ],
)
def test_mistakes_are_told(made, problem):
    with pytest.raises(SpecError, match=problem):
        made()


def test_other_parts_are_decoded_as_one_says(tmp_path):
    write_tar(tmp_path / "a.tar", [("a.txt", b"1"), ("a.json", b"{}"), ("a.seg.txt", b"2")])
    prepare(tmp_path, workers=1)
    decoders = {"json": "bytes", "txt": int}
    (batch,) = get_loader(
        get_train_dataset(tmp_path, batch_size=1, repeat=False, decoders=decoders)
    )
    assert (batch["json"], batch["txt"].tolist(), batch["seg.txt"].tolist()) == ([b"{}"], [1], [2])
