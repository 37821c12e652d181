"""MDS: columns by their encodings, raw and compressed shards, and what is wrong with them."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import sys
from decimal import Decimal

import numpy as np
import pytest
import torch
import zstandard
from chunk_files import PACK, edited, mds_sample, numbers_as_mds, put, u4, write_mds
from click.testing import CliRunner
from PIL import Image

from energy_data import RawTensor, WorkerConfig, get_loader, get_train_dataset
from energy_data.cli.main import main
from energy_data.data.files import recent
from energy_data.data.files.recent import RECENT
from energy_data.data.registry import open_source
from energy_data.errors import MissingExtraError, SampleError, SpecError, StructureError


def numbers(source, indices=None):
    wanted = np.arange(len(source)) if indices is None else np.array(indices, np.int64)
    return [sample["number"] for sample in source.read(wanted)]


def one(folder, encoding, data, size=None, **options):
    """The value of a sample with one column."""
    sizes = {} if size is None else {"x": size}
    path = write_mds(folder, [[[data]]], {"x": encoding}, sizes)
    (sample,) = open_source(path, **options).read(np.array([0]))
    if isinstance(sample, SampleError):
        raise sample
    return sample["x"]


PICTURE = Image.fromarray(np.arange(36, dtype=np.uint8).reshape(3, 4, 3))
PIXELS = torch.arange(36, dtype=torch.uint8).reshape(3, 4, 3).permute(2, 0, 1)
RAW = u4(4, 3, 3) + b"RGB" + PICTURE.tobytes()


def encoded(name):
    stream = io.BytesIO()
    PICTURE.save(stream, name)
    return stream.getvalue()


VALUES = {
    "bytes": (b"\x00\xff", b"\x00\xff"),
    "str": ("é".encode(), "é"),
    "int": (struct.pack("<q", -5), -5),
    "uint8": (b"\xff", 255),
    "int16": (b"\xff\xff", -1),
    "uint64": (b"\xff" * 8, 2**64 - 1),
    "float16": (b"\x00\x3e", 1.5),
    "float64": (struct.pack("<d", 0.1), 0.1),
    "str_int": (b"1" + b"0" * 30, 10**30),
    "str_float": (b"0.1", 0.1),
    "str_decimal": (b"1.10", Decimal("1.10")),
    "json": (b'{"a": [1, null]}', {"a": [1, None]}),
}


@pytest.mark.parametrize("encoding", VALUES)
def test_values_are_those_of_their_encoding(encoding, tmp_path):
    data, value = VALUES[encoding]
    found = one(tmp_path, encoding, data)
    assert found == value
    assert type(found) is type(value)


ARRAYS = {
    "ndarray": (b"\x22\x08\x02\x03" + np.arange(6, dtype="<f4").tobytes(), torch.float32, (2, 3)),
    "ndarray:int8": (b"\x05\x06\x00" + bytes(6), torch.int8, (6,)),
    "ndarray:uint16:3,2": (np.arange(6, dtype="<u2").tobytes(), torch.int64, (3, 2)),
    "ndarray:uint8:2,1,3": (bytes(6), torch.uint8, (2, 1, 3)),
    "ndarray:uint64:6": (np.arange(6, dtype="<u8").tobytes(), torch.int64, (6,)),
}


@pytest.mark.parametrize("encoding", ARRAYS)
def test_arrays_are_tensors(encoding, tmp_path):
    data, dtype, shape = ARRAYS[encoding]
    found = one(tmp_path, encoding, data)
    assert (found.dtype, found.shape) == (dtype, shape)
    assert found.flatten().tolist() in ([*range(6)], [0] * 6)


PICTURES = {
    "png": encoded("png"),
    "pil": RAW,
    "list[png]": u4(0, 2, *[len(encoded("png"))] * 2) + encoded("png") * 2,
    "list[pil]": u4(0, 1, len(RAW)) + RAW,
    "jpeg": encoded("jpeg"),
    "list[jpeg]": u4(0, 1, len(encoded("jpeg"))) + encoded("jpeg"),
    "jpeg_array": u4(1, len(encoded("jpeg"))) + encoded("jpeg"),
    "jpegarray": u4(2, *[len(encoded("jpeg"))] * 2) + encoded("jpeg") * 2,
}


@pytest.mark.parametrize("encoding", PICTURES)
def test_pictures_are_decoded_as_the_pictures_of_tars(encoding, tmp_path):
    found = one(tmp_path / "a", encoding, PICTURES[encoding])
    for picture in found if isinstance(found, list) else [found]:
        assert (picture.dtype, picture.shape) == (torch.uint8, (3, 3, 4))
        assert "jpeg" in encoding or torch.equal(picture, PIXELS)
    found = one(tmp_path / "b", encoding, PICTURES[encoding], decode="bytes")
    for data in found if isinstance(found, list) else [found]:
        assert data in PICTURES[encoding]
    count = len(PICTURES[encoding])
    assert one(tmp_path / "c", encoding, PICTURES[encoding], decoders={"x": len}) == count


def test_an_empty_list_of_pictures_is_empty(tmp_path):
    assert one(tmp_path, "list[pil]", u4(0, 0)) == []


def test_a_column_of_bytes_may_be_a_raw_tensor(tmp_path):
    data = np.arange(8, dtype="<i8").tobytes()
    found = one(tmp_path, "bytes", data, decoders={"x": RawTensor("int64", (8,))})
    assert found.tolist() == [*range(8)]


WRONG = {
    "int": (bytes(7), "requires a buffer of 8 bytes"),
    "str": (b"\xff", "can't decode byte 0xff"),
    "json": (b"[" * 100_000, "recursion|nested"),
    "str_int": (b"9" * 5000, "Exceeds the limit"),
    "str_decimal": (b"x", "ConversionSyntax"),
    "ndarray": (b"\x07\x04\x01\x00", "its dtype has the number 7, which stands for none"),
    "ndarray:int32": (b"\x07" + b"\xff" * 8, "18446744073709551615.*bytes, found 0"),
    "ndarray:int64:3": (bytes(23), r"int64 of shape \[3\] has 24 bytes, found 23"),
    "ndarray:uint64:1": (b"\xff" * 8, "which int64 cannot hold"),
    "png": (b"no picture", "it is none of JPEG, PNG"),
    "pil": (u4(1 << 31, 1 << 31, 3) + b"RGB" + bytes(12), "are no 2147483648 x 2147483648 pixels"),
    "list[pil]": (u4(0, 1 << 31, 1), "the sizes of its 2147483648 values"),
    "list[jpeg]": (u4(0, 1, 1 << 31), r"its 1 values end at \[2147483660\]"),
    "jpeg_array": (b"\x01", "requires a buffer"),
}


@pytest.mark.parametrize("encoding", WRONG)
def test_a_damaged_value_is_a_bad_sample_that_says_why(encoding, tmp_path):
    data, problem = WRONG[encoding]
    with pytest.raises(
        SampleError, match=rf"shard.00000.mds, key 0.*it cannot be decoded.*{problem}"
    ):
        one(tmp_path, encoding, data)


def test_a_sample_whose_columns_do_not_fill_it_is_bad(tmp_path):
    path = numbers_as_mds(tmp_path, [3])
    data = bytearray((path / "shard.00000.mds").read_bytes())
    at = data.index(u4(6) + struct.pack("<q", 1))
    data[at : at + 4] = u4(7)
    (path / "shard.00000.mds").write_bytes(data)
    good, bad, again = open_source(path).read(np.arange(3))
    assert (good["text"], again["text"]) == ("text 0", "text 2")
    assert "its columns end at byte 19, but it has 18 bytes" in str(bad)


class Marker:
    ran = False

    def __reduce__(self):
        return setattr, (Marker, "ran", True)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_pickle_is_refused_by_name_and_never_read(compression, tmp_path):
    sample = [b"text", pickle.dumps(Marker())]
    columns = {"text": "str", "object": "pkl"}
    path = write_mds(tmp_path, [[sample]], columns, compression=compression)
    with pytest.raises(SpecError, match="column 'object' is encoded as 'pkl': it is a pickle"):
        open_source(path)
    with pytest.raises(SpecError, match="Choose `columns` without it"):
        open_source(path, decoders={"object": "bytes"})
    assert open_source(path, columns=["text"]).read(np.array([0]))[0]["text"] == "text"
    assert not Marker.ran


@pytest.mark.parametrize("algorithm", PACK)
def test_compressed_shards_are_read_and_nothing_is_written(algorithm, tmp_path):
    path = numbers_as_mds(tmp_path, [30, 50], f"{algorithm}:3")
    before = sorted(path.iterdir())
    source = open_source(path)
    assert source.run_length == 50
    assert numbers(source, [79, 0, 30]) == [79, 0, 30]
    assert sorted(path.iterdir()) == before


def test_a_raw_shard_next_to_a_compressed_one_is_used(tmp_path):
    path = numbers_as_mds(tmp_path, [30, 50], "zstd")
    data = (path / "shard.00001.mds.zstd").read_bytes()
    (path / "shard.00001.mds").write_bytes(zstandard.decompress(data))
    (path / "shard.00001.mds.zstd").unlink()
    source = open_source(path)
    assert source.run_length == 30
    assert numbers(source) == [*range(80)]


def test_a_compression_of_no_known_kind_says_what_to_do(tmp_path):
    path = numbers_as_mds(tmp_path, [3], "gz")
    index = path / "index.json"
    index.write_text(index.read_text().replace('"gz"', '"snappy"'))
    with pytest.raises(SpecError, match=r"by 'snappy', which is not supported, only zstd.*Decompr"):
        open_source(path)


def test_zstd_without_its_extra_is_an_error_that_names_it(tmp_path, monkeypatch):
    path = numbers_as_mds(tmp_path, [3], "zstd")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingExtraError, match="needs the extra 'zstd'"):
        open_source(path).read(np.array([0]))


def test_compressed_shards_in_memory_are_bounded(tmp_path, monkeypatch):
    path = numbers_as_mds(tmp_path, [100] * 8, "zstd")
    source = open_source(path)
    monkeypatch.setattr(recent, "LARGEST", 10_000)
    for _ in range(2):
        assert numbers(source) == [*range(800)]
        assert RECENT._bytes <= 10_000
    before = RECENT.num_made
    numbers(source, range(799, 700, -1))
    assert RECENT.num_made == before


def test_compressed_shards_are_unpacked_once_where_the_order_reads_runs(tmp_path):
    path = numbers_as_mds(tmp_path, [50] * 40, "zstd")
    config = WorkerConfig(lanes=4)
    dataset = get_train_dataset(
        path, batch_size=8, shuffle_buffer_size=50, worker_config=config, repeat=False
    )
    before = RECENT.num_made
    found = [number for batch in get_loader(dataset) for number in batch["number"]]
    assert sorted(map(int, found)) == [*range(2000)]
    assert RECENT.num_made - before <= 60


def test_a_shard_that_is_gone_is_an_error(tmp_path):
    path = numbers_as_mds(tmp_path, [3, 4])
    (path / "shard.00001.mds").unlink()
    with pytest.raises(SpecError, match=r"1 of its 2 shards are not files.*shard.00001.mds first"):
        open_source(path)


def test_no_samples_are_an_error(tmp_path):
    with pytest.raises(SpecError, match=r"there are no samples in 1 .mds file"):
        open_source(numbers_as_mds(tmp_path, [0]))


def test_a_merged_index_is_one_dataset_and_folders_without_it_are_named(tmp_path):
    for name, count in (("a", 3), ("b", 4)):
        numbers_as_mds(tmp_path / name, [count])
    with pytest.raises(SpecError, match=r"no index.json. Restore it; name one of a, b, or several"):
        open_source(tmp_path)
    shards = []
    for name in ("a", "b"):
        (entry,) = json.loads((tmp_path / name / "index.json").read_text())["shards"]
        entry["raw_data"]["basename"] = f"{name}/{entry['raw_data']['basename']}"
        shards.append(entry)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    assert numbers(open_source(tmp_path)) == [0, 1, 2, 0, 1, 2, 3]


def test_a_single_shard_is_no_dataset(tmp_path):
    path = numbers_as_mds(tmp_path, [3]) / "shard.00000.mds"
    with pytest.raises(SpecError, match=r"does not list it. Name the folder"):
        open_source(path)


def test_columns_are_chosen_and_a_key_column_is_the_key(tmp_path):
    path = write_mds(tmp_path, [[[b"k7", b"7"]]], {"__key__": "str", "n": "str_int"})
    (sample,) = open_source(path).read(np.array([0]))
    assert (sample["__key__"], sample["n"]) == ("k7", 7)
    with pytest.raises(SpecError, match="there is no column 'x', found __key__, n"):
        open_source(path, columns=["x"])


def test_a_change_of_the_columns_in_the_index_changes_the_fingerprint(tmp_path):
    path = numbers_as_mds(tmp_path, [3])
    before = open_source(path).fingerprint
    edited(path, put(column_encodings=["int64", "str"]))
    assert open_source(path).fingerprint != before


def test_it_is_prepared_with_splits_checked_and_inspected(tmp_path):
    path = numbers_as_mds(tmp_path, [3, 4, 5, 6], "zstd")
    before = open_source(path).fingerprint
    found = CliRunner().invoke(main, ["prepare", str(path), "--split-ratio", "2,1,1"])
    assert found.exit_code == 0, found.output
    assert "18 samples in 4 shards" in found.output
    assert "each sample has some of: number, text" in found.output
    assert not list(path.glob("*.idx"))
    assert numbers(open_source(path, split_part="val")) == [*range(7, 12)]
    again = ["prepare", str(path), "--force", "--split-ratio", "1,0,0", "--exclude", "00003"]
    assert CliRunner().invoke(main, again).exit_code == 0
    assert numbers(open_source(path)) == [*range(12)]
    assert before != open_source(path).fingerprint
    (path / "meta.yaml").write_text("splits: {train: {path: .}}")
    for command in (["check"], ["inspect"]):
        found = CliRunner().invoke(main, [*command, str(path / "meta.yaml")])
        assert "12" in found.output, found.output
    os.truncate(path / "shard.00001.mds.zstd", 30)
    found = CliRunner().invoke(main, ["check", str(path / "meta.yaml")])
    assert "shard.00001.mds.zstd: has 30 bytes, but index.json says" in found.output


def test_preparing_changes_no_fingerprint_and_damage_after_it_is_noticed(tmp_path):
    path = numbers_as_mds(tmp_path, [3, 4])
    before = open_source(path).fingerprint
    assert CliRunner().invoke(main, ["prepare", str(path)]).exit_code == 0
    source = open_source(path)
    assert source.fingerprint == before
    os.truncate(path / "shard.00001.mds", 100)
    with pytest.raises(
        StructureError, match=r"shard.00001.mds: has 100 bytes, but index.json says"
    ):
        numbers(source)


def test_samples_can_be_excluded_by_their_numbers(tmp_path):
    path = numbers_as_mds(tmp_path, [3, 4])
    CliRunner().invoke(main, ["prepare", str(path)])
    split = path / ".nv-meta" / "split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [shard.00001.mds/2]"))
    assert numbers(open_source(path)) == [0, 1, 2, 3, 4, 6]


def test_an_index_of_another_program_does_not_make_a_folder_mds(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "index.json").write_text('{"pages": []}')
    assert len(open_source(tmp_path)) == 1


def test_prepared_shards_that_left_the_index_are_an_error(tmp_path):
    path = numbers_as_mds(tmp_path, [3, 4])
    CliRunner().invoke(main, ["prepare", str(path)])
    edited(path, lambda entry, index: index["shards"].pop())
    with pytest.raises(StructureError, match=r"does not list shard.00001.mds, which"):
        open_source(path)


def test_the_builder_writes_sizes_of_variable_columns_in_front():
    assert mds_sample([b"ab", bytes(8)], [None, 8]) == u4(2) + b"ab" + bytes(8)
