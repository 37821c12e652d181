"""Chunks of litdata: leaves by their serializers, the tree of an item, and what is refused."""

from __future__ import annotations

import io
import json
import pickle
import struct
from contextlib import suppress

import numpy as np
import pytest
import torch
import zstandard
from chunk_files import documents_as_litdata, numbers_as_litdata, u4, write_litdata
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from energy_data.cli.main import main
from energy_data.data.files.recent import RECENT
from energy_data.data.registry import open_source
from energy_data.errors import DataError, SampleError, SpecError, StructureError


def numbers(source):
    return [sample["number"] for sample in source.read(np.arange(len(source)))]


def one(folder, serializer, data, **options):
    """The value of an item with one leaf."""
    path = write_litdata(folder, [[[data]]], {"x": None}, [serializer])
    (sample,) = open_source(path, **options).read(np.array([0]))
    if isinstance(sample, SampleError):
        raise sample
    return sample["x"]


def png():
    stream = io.BytesIO()
    Image.new("RGB", (4, 3), (1, 2, 3)).save(stream, "png")
    return stream.getvalue()


RAW = u4(4, 3, 3) + b"RGB" + bytes((1, 2, 3)) * 12

VALUES = {
    "str": ("é".encode(), "é"),
    "text": (b"x", "x"),
    "int": (struct.pack("<q", -5), -5),
    "float": (struct.pack("<d", 0.1), 0.1),
    "bool": (b"\x01", True),
    "bytes": (b"\x00\xff", b"\x00\xff"),
    "file:dat": (b"\x00", b"\x00"),
    "file": (b"\x00", b"\x00"),
    "video:mp4": (b"\x00", b"\x00"),
}


@pytest.mark.parametrize("serializer", VALUES)
def test_values_are_those_of_their_serializer(serializer, tmp_path):
    data, value = VALUES[serializer]
    found = one(tmp_path, serializer, data)
    assert found == value
    assert type(found) is type(value)


def be(*values):
    return np.array(values, ">u4").tobytes()


HALVES = torch.arange(6).to(torch.bfloat16)
ARRAYS = {
    "numpy": (u4(1, 2, 2, 3) + np.arange(6, dtype="<i2").tobytes(), torch.int16, (2, 3)),
    "tensor": (be(0, 2, 3, 2) + np.arange(6, dtype="<f4").tobytes(), torch.float32, (3, 2)),
    "no_header_numpy:5": (np.arange(6, dtype="<u2").tobytes(), torch.int64, (6,)),
    "no_header_tensor:18": (np.arange(6, dtype="<i8").tobytes(), torch.int64, (6,)),
    "no_header_tensor:10": (HALVES.view(torch.int16).numpy().tobytes(), torch.bfloat16, (6,)),
    "no_header_tensor:20": (np.arange(6, dtype="<u2").tobytes(), torch.int64, (6,)),
    "no_header_tensor:17": (b"", torch.int64, (0,)),
    "no_header_tensor:19": (bytes((0, 1, 7)), torch.bool, (3,)),
    "tensor ": (be(17, 0) + struct.pack("<q", 0), torch.int64, ()),
}


@pytest.mark.parametrize("serializer", ARRAYS)
def test_arrays_are_tensors(serializer, tmp_path):
    data, dtype, shape = ARRAYS[serializer]
    found = one(tmp_path, serializer.strip(), data)
    assert (found.dtype, found.shape) == (dtype, shape)
    assert [float(value) for value in found.flatten()] in ([*range(found.numel())], [0, 1, 1])


@pytest.mark.parametrize(
    ("serializer", "data"),
    [
        ("image:png", png()),
        ("pil", RAW),
        ("jpeg", png()),
        ("jpeg_array", u4(1, len(png())) + png()),
    ],
)
def test_pictures_are_decoded_as_the_pictures_of_tars(serializer, data, tmp_path):
    found = one(tmp_path / "a", serializer, data)
    (picture,) = found if isinstance(found, list) else [found]
    assert (picture.dtype, picture.shape) == (torch.uint8, (3, 3, 4))
    assert picture[:, 2, 3].tolist() == [1, 2, 3]
    assert one(tmp_path / "b", serializer, data, decoders={"x": len}) == len(data)


ITEMS = [
    ({"a": None, "b": {"c": [None, (None,)]}}, {"a": 0, "b": {"c": [1, (2,)]}}),
    ((None, [None], None), {"0": 0, "1": [1], "2": 2}),
    ([None, None, None], {"0": 0, "1": 1, "2": 2}),
]


@pytest.mark.parametrize(("spec", "entries"), ITEMS)
def test_entries_of_a_sample_are_those_of_its_item(spec, entries, tmp_path):
    leaves = [struct.pack("<q", n) for n in range(3)]
    path = write_litdata(tmp_path, [[leaves]], spec, ["int"] * 3)
    (sample,) = open_source(path).read(np.array([0]))
    assert {name: one for name, one in sample.items() if name[:2] != "__"} == entries
    name = list(entries)[1]
    (sample,) = open_source(path, columns=[name]).read(np.array([0]))
    assert sample[name] == entries[name]
    assert len(sample) == 4


def test_an_item_that_is_one_leaf_is_the_entry_0(tmp_path):
    path = write_litdata(tmp_path, [[[b"x"]]], None, ["str"])
    assert open_source(path).read(np.array([0]))[0]["0"] == "x"


def test_items_of_a_tokens_loader_are_documents(tmp_path):
    documents = [[1, 2, 3], [4], [5, 6]]
    path = documents_as_litdata(tmp_path, documents, first=2)
    samples = open_source(path).read(np.array([2, 0, 1]))
    assert [sample["tokens"].tolist() for sample in samples] == [[5, 6], [1, 2, 3], [4]]
    assert samples[0]["tokens"].dtype == torch.int64
    assert open_source(path).costs(np.array([2, 0, 1]), "tokens").tolist() == [2, 3, 1]
    with pytest.raises(SpecError, match="seq_len is not for datasets of its format"):
        open_source(path, seq_len=2)


class Marker:
    ran = False

    def __reduce__(self):
        return setattr, (Marker, "ran", True)


@pytest.mark.parametrize("serializer", ["pickle", "graph", "graph:pickle"])
def test_a_pickle_is_refused_by_name_and_never_read(serializer, tmp_path):
    items = [[[pickle.dumps(Marker()), b"text"]]]
    path = write_litdata(tmp_path, items, {"x": None, "y": None}, [serializer, "str"])
    with pytest.raises(
        SpecError, match=f"'x' is written by the serializer '{serializer}': it is a p"
    ):
        open_source(path)
    assert open_source(path, columns=["y"]).read(np.array([0]))[0]["y"] == "text"
    assert not Marker.ran


WRONG = {
    "int": (bytes(7), "requires a buffer of 8 bytes"),
    "str": (b"\xff", "can't decode byte 0xff"),
    "bool": (b"", "requires a buffer of 1 byte"),
    "numpy": (u4(1, 1 << 31), "requires a buffer"),
    "numpy ": (u4(14, 0), "its dtype has the number 14, which stands for none"),
    "tensor": (
        be(0, 2, 1 << 31, 1 << 31),
        r"its shape is \[2147483648, 2147483648\], but it has 0",
    ),
    "tensor ": (be(5, 0), "its dtype has the number 5"),
    "no_header_tensor:0": (bytes(7), "are no whole number of torch.float32"),
    "no_header_numpy:7": (b"\xff" * 8, "which int64 cannot hold"),
    "pil": (u4(1 << 31, 1 << 31, 3) + b"RGB", "are no 2147483648 x 2147483648 pixels"),
}


@pytest.mark.parametrize("serializer", WRONG)
def test_a_damaged_value_is_a_bad_sample_that_says_why(serializer, tmp_path):
    data, problem = WRONG[serializer]
    with pytest.raises(
        SampleError, match=rf"chunk-0-0.bin, key 0.*cannot be decoded: 'x': .*{problem}"
    ):
        one(tmp_path, serializer.strip(), data)


REFUSED = {
    "encrypted": ({"encryption": {"algorithm": "fernet"}}, "they are encrypted"),
    "another compression": ({"compression": "lz4"}, "they are compressed by 'lz4', only zstd"),
    "samples compressed": ({"compression_level": "sample"}, "with compression_level 'sample'"),
    "another loader": ({"item_loader": "TemporalArrayLoader"}, "are for the TemporalArrayLoader"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_chunks_in_a_form_that_cannot_be_read_are_refused_with_what_to_do(case, tmp_path):
    config, problem = REFUSED[case]
    path = numbers_as_litdata(tmp_path, [3])
    index = json.loads((path / "index.json").read_text())
    index["config"].update(config)
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(SpecError, match=rf"cannot be read: .*{problem}.*Write them without it"):
        open_source(path)


@pytest.mark.parametrize("serializer", ["json", "int:3", "no_header_tensor", "no_header_tensor:x"])
def test_an_unknown_serializer_is_refused(serializer, tmp_path):
    with pytest.raises(SpecError, match=r"there is no such serializer. Choose `columns`"):
        one(tmp_path, serializer, b"")


def test_rows_of_arrow_are_refused_with_what_to_do(tmp_path):
    path = numbers_as_litdata(tmp_path, [3])
    data = (path / "chunk-0-0.bin").read_bytes() + b"rows" + u4(4) + b"LDARW01\0"
    (path / "chunk-0-0.bin").write_bytes(data)
    index = json.loads((path / "index.json").read_text())
    index["chunks"][0]["chunk_bytes"] = len(data)
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(StructureError, match=r"chunk-0-0.bin: its samples are rows of Arrow"):
        numbers(open_source(path))


def config_of(**changes):
    return lambda index: index["config"].update(changes)


def chunk_of(**changes):
    return lambda index: index["chunks"][0].update(changes)


def spec_of(**changes):
    return config_of(data_spec=json.dumps([1, {"type": "builtins.dict", **changes}]))


LEAF = {"type": None, "context": None, "children_spec": []}
INDICES = {
    "no config": (lambda index: index.update(config=None), "has no `chunks` and `config`"),
    "no list": (lambda index: index.update(chunks={}), "has no `chunks` and `config`"),
    "no mapping": (lambda index: index.update(chunks=[7]), "chunk 0 of its list is invalid"),
    "above": (chunk_of(filename="../x.bin"), "is invalid, or there twice: '../x.bin'"),
    "absolute": (chunk_of(filename="/x.bin"), "chunk 0 of its list is invalid"),
    "no samples": (chunk_of(chunk_size=-1), "with -1 samples"),
    "huge": (chunk_of(chunk_bytes=1 << 40), "in 1099511627776 bytes"),
    "twice": (lambda index: index["chunks"].append(index["chunks"][0]), "chunk 2 .* there twice"),
    "other bytes": (chunk_of(chunk_bytes=99), r"has \d+ bytes, but index.json says 99"),
    "no spec": (config_of(data_spec=None), "its `data_spec` cannot be used"),
    "no JSON": (config_of(data_spec="{"), "its `data_spec` cannot be used"),
    "another version": (config_of(data_spec='[2, {"type": null}]'), "of version 2, not 1"),
    "deep": (config_of(data_spec="[" * 100_000), "its `data_spec` cannot be used"),
    "another collection": (spec_of(type="collections.deque", children_spec=[]), "it has a 'coll"),
    "code": (spec_of(type="os.system", children_spec=[], context="x"), "it has a 'os.system'"),
    "a key less": (spec_of(context='["x"]', children_spec=[LEAF, LEAF]), "data_spec"),
    "a key twice": (spec_of(context='["x", "x"]', children_spec=[LEAF, LEAF]), "not different"),
    "a number as key": (spec_of(context="[1, 2]", children_spec=[LEAF, LEAF]), "keys are not"),
    "a format less": (config_of(data_format=["int"]), r"it has 2 leaves, but the formats"),
}


@pytest.mark.parametrize("case", INDICES)
def test_a_damaged_index_is_an_error_that_names_it(case, tmp_path):
    change, problem = INDICES[case]
    path = numbers_as_litdata(tmp_path, [3, 4])
    index = json.loads((path / "index.json").read_text())
    change(index)
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(StructureError, match=problem):
        open_source(path)


def test_an_index_that_is_no_json_is_an_error(tmp_path):
    path = numbers_as_litdata(tmp_path, [3])
    (path / "index.json").write_text("{")
    with pytest.raises(StructureError, match=r"index.json: is no JSON object"):
        open_source(path)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_older_indices_do_not_count_the_bytes_of_offsets(compression, tmp_path):
    path = numbers_as_litdata(tmp_path, [3, 4], compression=compression)
    index = json.loads((path / "index.json").read_text())
    for entry in index["chunks"]:
        entry["chunk_bytes"] -= 4 * (entry["chunk_size"] + 2)
    (path / "index.json").write_text(json.dumps(index))
    assert numbers(open_source(path)) == [*range(7)]


def test_a_chunk_that_unpacks_to_more_than_its_index_says_is_no_bomb(tmp_path):
    path = numbers_as_litdata(tmp_path, [3], compression="zstd")
    bomb = u4(3) + bytes(12) + u4(1 << 31) + bytes(1 << 23)
    (path / "chunk-0-0.zstd.bin").write_bytes(zstandard.compress(bomb))
    RECENT.clear()
    with pytest.raises(StructureError, match=r"unpacks to 2147483648 bytes, but index.json says"):
        numbers(open_source(path))
    assert RECENT._bytes == 0


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_damage_ends_in_an_error_or_in_samples(tmp_path_factory, data):
    compression = data.draw(st.sampled_from([None, "zstd"]))
    path = numbers_as_litdata(tmp_path_factory.mktemp("x"), [5, 5], compression=compression)
    file = data.draw(st.sampled_from(sorted(path.iterdir())))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    with suppress(DataError, SpecError):
        assert len(open_source(path).read(np.arange(5))) == 5


def test_it_is_prepared_with_splits_and_checked(tmp_path):
    path = numbers_as_litdata(tmp_path, [3, 4, 5, 6])
    found = CliRunner().invoke(main, ["prepare", str(path), "--split-ratio", "2,1,1"])
    assert "18 samples in 4 shards" in found.output, found.output
    assert "each sample has some of: number, text" in found.output
    assert numbers(open_source(path, split_part="test")) == [*range(12, 18)]
    (path / "chunk-0-3.bin").write_bytes(bytes(100))
    (path / "meta.yaml").write_text("splits: {val: {path: ., split_part: test}}")
    found = CliRunner().invoke(main, ["check", str(path / "meta.yaml")])
    assert "chunk-0-3.bin: begins with the number of its samples, 0, not 6" in found.output


def test_an_index_of_parquet_files_by_litdata_leaves_them_parquet_files(tmp_path):
    index = {"chunks": [{"filename": "x.jsonl"}], "config": {"item_loader": "ParquetLoader"}}
    (tmp_path / "index.json").write_text(json.dumps(index))
    (tmp_path / "x.jsonl").write_text('{"n": 1}\n')
    assert len(open_source(tmp_path)) == 1
