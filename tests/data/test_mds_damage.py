"""Damaged indices and shards of MDS end in errors that name them."""

from __future__ import annotations

import json
from contextlib import suppress

import numpy as np
import pytest
from chunk_files import PACK, edited, numbers_as_mds, put, u4
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.data.files.recent import RECENT
from energy_data.data.registry import open_source
from energy_data.errors import DataError, SpecError, StructureError


def numbers(source):
    return [sample["number"] for sample in source.read(np.arange(len(source)))]


@pytest.mark.parametrize("algorithm", PACK)
def test_a_shard_that_unpacks_to_more_than_its_index_says_is_no_bomb(algorithm, tmp_path):
    path = numbers_as_mds(tmp_path, [3], algorithm)
    shard = path / f"shard.00000.mds.{algorithm}"
    shard.write_bytes(PACK[algorithm](bytes(1 << 23)))
    index = json.loads((path / "index.json").read_text())
    index["shards"][0]["zip_data"]["bytes"] = shard.stat().st_size
    (path / "index.json").write_text(json.dumps(index))
    RECENT.clear()
    with pytest.raises(StructureError, match=r"unpacks to more than .* bytes, but its index says"):
        open_source(path).read(np.array([0]))
    assert RECENT._bytes == 0


@pytest.mark.parametrize("algorithm", PACK)
@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_damaged_compressed_data_is_an_error_that_names_the_shard(algorithm, damage, tmp_path):
    path = numbers_as_mds(tmp_path, [300], algorithm)
    shard = path / f"shard.00000.mds.{algorithm}"
    data = shard.read_bytes()
    cut = data[:-20] if damage == "cut" else data[:12] + bytes(20)
    shard.write_bytes(cut + bytes(len(data) - len(cut)) if damage == "noise" else cut)
    index = (path / "index.json").read_text()
    size = shard.stat().st_size
    (path / "index.json").write_text(index.replace(f'"bytes": {len(data)}', f'"bytes": {size}'))
    with pytest.raises(
        StructureError, match=rf"shard.00000.mds.{algorithm}.*(unpacks to|decompressed)"
    ):
        numbers(open_source(path))


INDICES = {
    "another version": (lambda entry, index: index.update(version=3), "but of version 3"),
    "another format": (put(format="csv"), "its format is 'csv', version 2; only 'mds'"),
    "no list": (lambda entry, index: index.update(shards={}), "is no index of MDS"),
    "no mapping": (lambda entry, index: index.update(shards=[7]), "shard 0 of its list is invalid"),
    "nothing": (lambda entry, index: entry.clear(), "is invalid: no 'version'"),
    "above": (lambda e, i: e["raw_data"].update(basename="../x.mds"), r"'\.\./x.mds' of \d+ bytes"),
    "absolute": (lambda e, i: e["raw_data"].update(basename="/x.mds"), "no file in its folder"),
    "a huge file": (lambda e, i: e["raw_data"].update(bytes=1 << 60), "no file in its folder"),
    "twice": (lambda e, i: i["shards"].append(e), "lists shard.00000.mds twice"),
    "no samples": (put(samples=-1), "it has -1 samples"),
    "true samples": (put(samples=True), "it has True samples"),
    "duplicate columns": (put(column_names=["text", "text"]), "two of its columns have one name"),
    "a column less": (put(column_names=["text"]), r"zip\(\)"),
    "a column of no name": (put(column_names=[1, "text"]), "it has a column 1 of"),
    "a size too many": (put(column_sizes=[4, None]), "'int' of column 'number' has 4 bytes, but"),
}


@pytest.mark.parametrize("case", INDICES)
def test_a_damaged_index_is_an_error_that_names_it(case, tmp_path):
    change, problem = INDICES[case]
    path = edited(numbers_as_mds(tmp_path, [3, 4]), change)
    with pytest.raises(StructureError, match=rf"index.json: .*{problem}"):
        open_source(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, '{"version": 2}', "null"])
def test_an_index_that_is_none_is_an_error(text, tmp_path):
    path = numbers_as_mds(tmp_path, [3])
    (path / "index.json").write_text(text)
    with pytest.raises(StructureError, match=r"index.json: is no"):
        open_source(path)


@pytest.mark.parametrize(
    "encoding", ["ndarray:int7", "ndarray:int8:0", "text", "int:5", "list[int]"]
)
def test_an_unknown_encoding_is_an_error(encoding, tmp_path):
    path = edited(numbers_as_mds(tmp_path, [3]), put(column_encodings=["int", encoding]))
    with pytest.raises(SpecError, match=r"column 'text' is encoded as .*(no|impossible)"):
        open_source(path)
    assert numbers(open_source(path, columns=["number"])) == [0, 1, 2]


def test_shards_with_other_columns_need_columns_that_all_have(tmp_path):
    path = edited(numbers_as_mds(tmp_path, [3, 4]), put(column_names=["number", "words"]))
    with pytest.raises(StructureError, match="lists a shard without the column 'words'"):
        open_source(path)
    assert numbers(open_source(path, columns=["number"])) == [*range(7)]


def offsets_changed(*values):
    def change(data):
        data[4 : 4 + 4 * len(values)] = u4(*values)

    return change


SHARDS = {
    "cut": (lambda data: data.pop(), r"has \d+ bytes, but index.json says"),
    "another count": (lambda data: data.__setitem__(0, 4), "begins with the number of its samples"),
    "another beginning": (offsets_changed(8), "has samples from byte 8"),
    "back": (offsets_changed(1000, 999), "ends sample 0 before it begins"),
    "beyond": (offsets_changed(100, 1 << 31), "ends sample 1 before it begins"),
}


@pytest.mark.parametrize("case", SHARDS)
def test_a_shard_that_does_not_fit_its_offsets_is_an_error(case, tmp_path):
    change, problem = SHARDS[case]
    path = numbers_as_mds(tmp_path, [3])
    shard = path / "shard.00000.mds"
    data = bytearray(shard.read_bytes())
    change(data)
    shard.write_bytes(data)
    with pytest.raises(StructureError, match=rf"shard.00000.mds: .*{problem}"):
        open_source(path).check_files()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_damage_ends_in_an_error_or_in_samples(tmp_path_factory, data):
    path = numbers_as_mds(
        tmp_path_factory.mktemp("x"), [5, 5], data.draw(st.sampled_from([None, "zstd"]))
    )
    file = data.draw(st.sampled_from(sorted(path.iterdir())))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)
    with suppress(DataError, SpecError):
        assert len(open_source(path).read(np.arange(5))) == 5
