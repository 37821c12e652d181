"""Filter indices: written as Energon publishes them, read by every format, and what is refused."""

from __future__ import annotations

import json
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tars import sample_files, write_tar
from token_files import write_megatron

from energy_data.data.filter_index import FilterIndex
from energy_data.data.filter_writer import (
    build_filter_index,
    build_filter_index_from_shard_indexes,
)
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.errors import SpecError, StructureError
from energy_data.remote.cache_space import NEAR

SHARDS = {"a.tar": 5, "b.tar": 4, "c.tar": 6}  # with samples 0 to 14


@pytest.fixture
def tars(tmp_path):
    """Three shards: a and c are for training, b for validation."""
    first = 0
    for name, count in SHARDS.items():
        files = [file for number in range(first, first + count) for file in sample_files(number)]
        write_tar(tmp_path / name, files)
        first += count
    prepare(tmp_path, split={"train": ["[ac].tar"], "val": ["b.tar"]}, shuffle=False)
    return tmp_path


def numbers(source) -> list[int]:
    return [sample["json"]["number"] for sample in source.read(np.arange(len(source)))]


def test_the_files_are_those_of_the_published_layout(tars):
    build_filter_index(tars, "keep", [1, 3, 5, 14])
    assert (tars / ".nv-meta/filter_keep.idx").read_bytes() == b"".join(
        number.to_bytes(8, "little") for number in (1, 3, 5, 14)
    )
    assert (tars / ".nv-meta/filter_keep.json").read_text() == (
        '{\n  "filtered_shard_counts": {\n    "a.tar": 2,\n    "b.tar": 1,\n    "c.tar": 1\n  },\n'
        '  "version": 1\n}\n'
    )


@pytest.mark.parametrize(
    ("part", "expected"), [("train", [1, 3, 9, 14]), ("val", [5, 8])], ids=["train", "val"]
)
def test_each_part_has_its_kept_samples_in_order(tars, part, expected):
    build_filter_index(tars, "keep", [1, 3, 5, 8, 9, 14])
    source = open_source(tars, split_part=part, filter="keep")
    assert numbers(source) == expected
    assert numbers(pickle.loads(pickle.dumps(source))) == expected


@pytest.mark.parametrize("every", [2, 20])
def test_what_it_keeps_is_fetched_alone_if_samples_are_large(every, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text((json.dumps({"text": "x" * NEAR}) + "\n") * 40)
    build_filter_index(path, "keep", range(0, 40, every))
    source = open_source(path, filter="keep")
    ranges = source.ranges(0, len(source))
    assert len(ranges) == len(source) == 40 // every
    assert sum(end - begin for _, begin, end in ranges) == source.total_cost("bytes")


def test_what_it_keeps_of_small_samples_is_fetched_by_one_request(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"n": 0}\n' * 40)
    build_filter_index(path, "keep", range(1, 40, 2))
    assert open_source(path, filter="keep").ranges(0, 20) == [(str(path), 9, 360)]


def test_a_filter_by_shards_is_the_same(tars):
    build_filter_index(tars, "one", [1, 3, 5, 8, 9, 14])
    by_shard = {"c.tar": [0, 5], "a.tar": [1, 3], "b.tar": [0, 3]}
    build_filter_index_from_shard_indexes(tars, "other", by_shard)
    for end in ("idx", "json"):
        one, other = ((tars / f".nv-meta/filter_{name}.{end}") for name in ("one", "other"))
        assert one.read_bytes() == other.read_bytes()


def test_ranges_are_of_what_the_filter_keeps(tars):
    build_filter_index(tars, "keep", [1, 3, 5, 9, 12, 14])
    source = open_source(tars, filter="keep", subset=(1, 4))
    assert numbers(source) == [3, 9, 12]
    assert source.rows_of([0, 1, 2]) == [3, 5, 8]


def test_samples_that_split_yaml_excludes_are_left_out_too(tars):
    split = tars / ".nv-meta/split.yaml"
    text = split.read_text().replace("exclude: []", "exclude: [a.tar/d/00003, c.tar/d/00010]")
    split.write_text(text)
    build_filter_index(tars, "keep", [1, 3, 4, 9, 12])
    assert numbers(open_source(tars, filter="keep")) == [1, 4, 9, 12]


def test_the_fingerprint_changes_with_the_filter(tars):
    build_filter_index(tars, "keep", [1, 3])
    build_filter_index(tars, "other", [1, 4])
    prints = {open_source(tars, filter=name).fingerprint for name in ("keep", "other", None)}
    assert len(prints) == 3


def test_files_of_jsonl_parquet_and_tokens_have_theirs_next_to_them(tmp_path):
    lines = tmp_path / "x.jsonl"
    lines.write_text("".join(f'{{"number": {number}}}\n' for number in range(6)))
    table = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"number": range(6)}), table, row_group_size=2)
    tokens = write_megatron(tmp_path / "x.bin", [[number] * 3 for number in range(6)])
    for path in (lines, table, tokens):
        build_filter_index(path, "keep", [1, 4, 5])
        assert (tmp_path / f"{path.name}.keep.idx").stat().st_size == 24
    found = [open_source(path, filter="keep") for path in (lines, table, tokens)]
    samples = [source.read(np.array([2, 0, 1])) for source in found]
    assert [sample["json"]["number"] for sample in samples[0]] == [5, 1, 4]
    assert [sample["number"] for sample in samples[1]] == [5, 1, 4]
    assert [sample["tokens"].tolist() for sample in samples[2]] == [[5] * 3, [1] * 3, [4] * 3]
    assert found[2].total_cost("tokens") == 9


def test_a_large_filter_is_read_in_blocks(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"number": {number}}}\n' for number in range(5000)))
    build_filter_index(path, "even", range(0, 5000, 2))
    source = open_source(path, filter="even")
    wanted = np.random.default_rng(0).permutation(2500)
    found = [sample["json"]["number"] for sample in source.read(wanted)]
    assert found == (2 * wanted).tolist()


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_rows_of_random_parts_are_those_of_a_search(tmp_path_factory, data):
    counts = {f"{n}": data.draw(st.integers(0, 6)) for n in range(data.draw(st.integers(1, 5)))}
    total = sum(counts.values())
    kept = sorted(data.draw(st.sets(st.integers(0, max(total - 1, 0)), max_size=total)))
    shards = data.draw(st.permutations(list(counts)))[: data.draw(st.integers(1, len(counts)))]
    numbers = iter(range(total))
    of_shard = {shard: [next(numbers) for _ in range(count)] for shard, count in counts.items()}
    every = [number for shard in shards for number in of_shard[shard]]
    rows = [row for row, number in enumerate(every) if number in kept]
    assume(rows)
    folder = tmp_path_factory.mktemp("any")
    named = [SimpleNamespace(name=shard, count=count) for shard, count in counts.items()]
    build_filter_index(folder, "keep", kept, shards=named)
    found = FilterIndex(str(folder), "keep", shards, [counts[shard] for shard in shards], counts)
    assert found.rows(np.arange(len(found))).tolist() == rows
    assert found.places(np.arange(len(every))).tolist() == list(range(len(rows)))
    found.check()


def test_windows_of_tokens_have_no_filter(tmp_path):
    path = write_megatron(tmp_path / "x.bin", [[1] * 30])
    build_filter_index(path, "keep", [0])
    with pytest.raises(SpecError, match=r"keeps documents, and its samples are windows\. Remove"):
        open_source(path, filter="keep", seq_len=5)


@pytest.mark.parametrize(
    ("indexes", "problem"),
    [
        ([3, 2], "samples of the dataset must increase, found 3 before 2. Sort them."),
        ([3, 3], "samples of the dataset must increase, found 3 before 3. Sort them."),
        ([15], "sample 15 of the dataset does not exist: it has 15 samples."),
        ([-1], "sample -1 of the dataset does not exist: it has 15 samples."),
    ],
)
def test_numbers_that_cannot_be_kept_are_refused(tars, indexes, problem):
    with pytest.raises(ValueError, match=f"^{re.escape(problem)}$"):
        build_filter_index(tars, "keep", indexes)
    assert not (tars / ".nv-meta/filter_keep.idx").exists()


def test_a_filter_is_not_replaced_unless_it_is_requested(tars):
    build_filter_index(tars, "keep", [1])
    with pytest.raises(FileExistsError, match="Give another name, or pass overwrite=True"):
        build_filter_index(tars, "keep", [2])
    build_filter_index(tars, "keep", [2], overwrite=True)
    assert numbers(open_source(tars, filter="keep")) == [2]


def test_shards_may_be_given_and_must_exist(tars):
    shards = [SimpleNamespace(name=name, count=count) for name, count in SHARDS.items()]
    build_filter_index(tars, "keep", [14], shards=shards)
    assert numbers(open_source(tars, filter="keep")) == [14]
    with pytest.raises(ValueError, match=r"there is no shard 'd\.tar'"):
        build_filter_index_from_shard_indexes(tars, "other", {"d.tar": [0]})


def changed(tars, **content):
    path = tars / ".nv-meta/filter_keep.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | content))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"version": 2}, "its version is 2, not 1"),
        ({"filtered_shard_counts": [3]}, "it has no mapping `filtered_shard_counts`"),
        (
            {"filtered_shard_counts": {"a.tar": 1, "b.tar": 1}},
            "it is of other shards: it lacks 'c.tar'",
        ),
        (
            {"filtered_shard_counts": {**SHARDS, "z": 1}},
            "it is of other shards: the dataset does not have 'z'",
        ),
        (
            {"filtered_shard_counts": {**SHARDS, "a.tar": 6}},
            "it keeps 6 of the 5 samples of 'a.tar'",
        ),
        ({"filtered_shard_counts": SHARDS}, "it has 16 bytes, but filter_keep.json has 15 samples"),
    ],
)
def test_a_filter_of_another_dataset_is_refused(tars, content, problem):
    build_filter_index(tars, "keep", [1, 3])
    changed(tars, **content)
    with pytest.raises(StructureError, match=problem):
        open_source(tars, filter="keep")


def test_numbers_of_another_shard_are_noticed_when_they_are_read(tars):
    build_filter_index(tars, "keep", [1, 3, 9, 14])
    (tars / ".nv-meta/filter_keep.idx").write_bytes(np.array([1, 3, 8, 14], "<u8").tobytes())
    source = open_source(tars, filter="keep")
    assert [sample["json"]["number"] for sample in source.read(np.array([0, 1]))] == [1, 3]
    with pytest.raises(StructureError, match="a number that is of another shard than its place"):
        source.read(np.array([2]))
    with pytest.raises(StructureError, match="a number that is of another shard than its place"):
        source.check_files()


def test_numbers_that_do_not_increase_are_noticed_by_a_check(tars):
    build_filter_index(tars, "keep", [1, 3, 9])
    (tars / ".nv-meta/filter_keep.idx").write_bytes(np.array([3, 1, 9], "<u8").tobytes())
    with pytest.raises(StructureError, match="its numbers do not increase"):
        open_source(tars, filter="keep").check_files()


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("no", "there is no filter index 'no'.*Correct the name, or make it with `build_filter"),
        ("none", "the filter index 'none' keeps no sample of this part of the dataset"),
    ],
)
def test_a_filter_that_keeps_nothing_is_refused(tars, name, problem):
    build_filter_index(tars, "none", [5])
    with pytest.raises(SpecError, match=problem):
        open_source(tars, filter=name)


def test_a_folder_that_is_not_prepared_has_no_filter(tmp_path):
    write_tar(tmp_path / "a.tar", sample_files(0))
    with pytest.raises(SpecError, match="is not prepared"):
        build_filter_index(tmp_path, "keep", [0])
    with pytest.raises(SpecError, match="is of one file or of a prepared dataset"):
        open_source(tmp_path, filter="keep")
