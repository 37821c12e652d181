"""Formats of shards have folders, patterns, splits and excluded samples; one table."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import time
from functools import lru_cache

import numpy as np
import pytest
import yaml
from frame_files import frame, write_frames
from hypothesis import given, settings
from hypothesis import strategies as st
from tars import write_tar
from trees import batches, samples

from energy_data.data import shards
from energy_data.data.files.local import keep_open
from energy_data.data.frames.source import (
    JSONL_GZIP,
    JSONL_ZSTD,
    GzipJsonlSource,
    ZstdJsonlSource,
)
from energy_data.data.jsonl import JSONL, JsonlSource
from energy_data.data.part import index_files
from energy_data.data.prepare import prepare
from energy_data.data.registry import FORMATS, open_source
from energy_data.data.tar.source import TARS, WebdatasetSource
from energy_data.errors import SpecError, StructureError
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import LeafSpec
from energy_data.testing import assert_resumes_exactly


def tar(path, numbers):
    write_tar(path, [(f"{n:05d}.json", json.dumps({"number": n}).encode()) for n in numbers])


def jsonl(path, numbers):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f'{{"number": {n}}}\n' for n in numbers))


def framed(path, numbers):
    lines = [f'{{"number": {n}}}\n' for n in numbers]
    write_frames(path, ["".join(lines[n : n + 3]).encode() for n in range(0, len(lines), 3)])


WRITERS = {TARS: tar, JSONL: jsonl, JSONL_ZSTD: framed, JSONL_GZIP: framed}
SOURCES = {
    TARS: WebdatasetSource,
    JSONL: JsonlSource,
    JSONL_ZSTD: ZstdJsonlSource,
    JSONL_GZIP: GzipJsonlSource,
}
SIZES = (4, 0, 7, 1, 5)
TOTAL = sum(SIZES)


def write(folder, kind, sizes=SIZES):
    """Write shards of so many samples each, which are numbered through."""
    first = 0
    for shard, size in enumerate(sizes):
        WRITERS[kind](folder / f"shard-{shard:03d}{kind.suffix}", range(first, first + size))
        first += size
    return folder


def prepared(folder, kind, sizes=SIZES, **options):
    prepare(write(folder, kind, sizes), kind=kind, workers=1, **options)
    return folder


def numbers(source, indices=None):
    wanted = np.arange(len(source)) if indices is None else np.asarray(indices, np.int64)
    return [sample["json"]["number"] for sample in source.read(wanted)]


@pytest.fixture(params=WRITERS, ids=lambda kind: kind.suffix)
def kind(request):
    return request.param


def test_the_table_has_every_format_of_shards_with_indices():
    assert {one.shards for one in FORMATS if one.shards and one.shards.fits} == set(WRITERS)


@pytest.mark.parametrize("form", ["", "/shard-{000..004}", "/shard-00?", "/{shard-000,shard-004}"])
def test_folders_patterns_and_braces_are_datasets(tmp_path, kind, form):
    source = open_source(f"{write(tmp_path, kind)}{form}{kind.suffix if form else ''}")
    assert isinstance(source, SOURCES[kind])
    assert numbers(source) == [*range(4), *range(12, 17)] if "," in form else [*range(TOTAL)]


def test_stars_do_not_stand_for_indices(tmp_path, kind):
    write(tmp_path, kind)
    assert [numbers(open_source(f"{tmp_path}/*")) for _ in range(2)] == [[*range(TOTAL)]] * 2


def test_a_pattern_may_end_with_its_braces(tmp_path, kind):
    names = ",".join(f"shard-00{n}{kind.suffix}" for n in (3, 2))
    assert numbers(open_source(f"{write(tmp_path, kind)}/{{{names}}}")) == [11, *range(4, 11)]


@pytest.mark.parametrize("kind", WRITERS, ids=lambda kind: kind.suffix)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_any_order_and_repeats_of_any_subset_are_read(tmp_path_factory, kind, data):
    first = data.draw(st.integers(0, TOTAL - 1))
    end = data.draw(st.integers(first + 1, TOTAL))
    indices = data.draw(st.lists(st.integers(0, end - first - 1), max_size=30))
    source = open_source(write(tmp_path_factory.mktemp("s"), kind), subset=(first, end))
    assert numbers(source, indices) == [first + index for index in indices]


def test_parts_of_a_prepared_folder_are_disjoint_and_complete(tmp_path, kind):
    prepared(tmp_path, kind, split="2,1,1")
    parts = [numbers(open_source(tmp_path, split_part=part)) for part in ("train", "val", "test")]
    assert parts == [[*range(11)], [11], [*range(12, 17)]]
    with pytest.raises(SpecError, match="there is no split part 'eval'"):
        open_source(tmp_path, split_part="eval")


def test_excluded_samples_are_left_out(tmp_path, kind):
    prepared(tmp_path, kind)
    split = tmp_path / ".nv-meta" / "split.yaml"
    keys = [sample["__key__"] for sample in open_source(tmp_path).read(np.array([2, 5, 16]))]
    names = [f"shard-00{n}{kind.suffix}/{key}" for n, key in zip((0, 2, 4), keys, strict=True)]
    content = yaml.safe_load(split.read_text())
    split.write_text(yaml.safe_dump(content | {"exclude": names}))
    source = open_source(tmp_path, subset=(1, 14))
    assert numbers(source) == [n for n in range(1, 16) if n not in (2, 5)]
    assert source.rows_of([0, 1, 12]) == [1, 3, 15]
    split.write_text(yaml.safe_dump(content | {"exclude": [f"{names[0]}9", "x"]}))
    with pytest.raises(SpecError, match="excludes 2 names that do not exist"):
        open_source(tmp_path).check_files()


def test_a_run_is_restored_at_every_step(tmp_path, kind):
    source = open_source(prepared(tmp_path, kind), subset=(1, 15))
    assert_resumes_exactly(batches(samples(LeafSpec(Leaf(id="a", source=source)))), lanes=2)


@pytest.mark.parametrize("sizes", [SIZES, (5,)])
def test_the_fingerprint_is_of_the_data_not_of_its_preparation(tmp_path, kind, sizes):
    plain = write(tmp_path / "a", kind, sizes)
    prints = [open_source(plain).fingerprint]
    for _ in range(2):
        prepare(plain, kind=kind, workers=1, force=True)
        prints.append(open_source(plain).fingerprint)
    prints.append(open_source(shutil.copytree(plain, tmp_path / "b")).fingerprint)
    assert len(set(prints)) == 1
    prepare(write(plain, kind, (*sizes[:-1], sizes[-1] - 1)), kind=kind, workers=1, force=True)
    assert open_source(plain).fingerprint != prints[0]


def test_a_pickled_source_reads_on_and_notices_changed_data(tmp_path, kind):
    data = pickle.dumps(open_source(prepared(tmp_path, kind), subset=(3, 9)))
    assert len(data) < 1000
    assert numbers(pickle.loads(data)) == [*range(3, 9)]
    prepare(write(tmp_path, kind, SIZES[::-1]), kind=kind, workers=1, force=True)
    with pytest.raises(StructureError, match="changed while it was in use"):
        pickle.loads(data)


def test_any_number_of_shards_is_read_with_few_descriptors(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(shards, "keep_open", lru_cache(4)(keep_open.__wrapped__))
    source = open_source(write(tmp_path, kind, (2,) * 40))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert numbers(source) == [*range(80)]
    assert len(os.listdir("/proc/self/fd")) <= before + 4  # noqa: PTH208


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def replace(path):
    """Write as many bytes with other samples; copying leaves data newer than their index."""
    if path.suffix == ".tar":
        write_tar(path, [("a" * 90 + ".txt", b"x" * 4000)])
    elif path.suffix in (".zst", ".gz"):
        path.write_bytes(frame(path.suffix, b'{"n": 1}').ljust(path.stat().st_size, b"x"))
    else:
        path.write_text('{"n": 1}' + " " * (path.stat().st_size - 9) + "\n")
    os.utime(path, (time.time() + 9,) * 2)


@pytest.mark.parametrize("damage", [cut, replace, os.remove])
def test_a_shard_that_is_cut_replaced_or_gone_is_named(tmp_path, kind, damage):
    source = open_source(prepared(tmp_path, kind))
    numbers(source, [0, 16])
    damage(tmp_path / f"shard-002{kind.suffix}")
    for use in (lambda: numbers(source), source.check_files, open_source(tmp_path).check_files):
        with pytest.raises(StructureError) as caught:
            use()
        assert caught.value.dataset == str(tmp_path)
        assert f"shard-002{kind.suffix}" in str(caught.value)


def test_a_shard_that_was_written_again_is_indexed_again_and_the_split_is_kept(tmp_path, kind):
    prepared(tmp_path, kind, split="2,1,1")
    WRITERS[kind](tmp_path / f"shard-002{kind.suffix}", range(50, 53))
    assert prepare(tmp_path, kind=kind, workers=1, index_only=True).num_samples == TOTAL - 4
    assert numbers(open_source(tmp_path)) == [*range(4), 50, 51, 52]
    assert numbers(open_source(tmp_path, split_part="val")) == [11]


def test_an_unprepared_shard_that_is_replaced_after_it_was_opened_is_an_error(tmp_path, kind):
    source = open_source(write(tmp_path, kind))
    WRITERS[kind](tmp_path / f"shard-002{kind.suffix}", range(50, 57))
    os.utime(tmp_path / f"shard-002{kind.suffix}", (time.time() + 9,) * 2)
    with pytest.raises(StructureError, match="changed while it was in use"):
        numbers(source)


@pytest.mark.parametrize("kind", [TARS, JSONL], ids=lambda kind: kind.suffix)
@pytest.mark.parametrize("packed", ["bz2", "xz"])
def test_compressed_shards_are_an_error_that_says_what_to_do(tmp_path, kind, packed):
    path = write(tmp_path, kind) / f"more{kind.suffix}.{packed}"
    path.touch()
    for use in (open_source, lambda path: prepare(path, kind=kind)):
        with pytest.raises(SpecError, match=r"compressed.* Decompress them"):
            use(tmp_path)
    for use in (open_source, lambda path: index_files(str(path), kind)):
        with pytest.raises(SpecError, match=r"compressed.* Decompress them"):
            use(path)


def test_two_formats_in_a_folder_are_an_error_unless_it_is_prepared(tmp_path, kind):
    other = next(one for one in WRITERS if one is not kind)
    folder = prepared(tmp_path, kind)
    WRITERS[other](folder / f"stats{other.suffix}", range(3))
    assert numbers(open_source(folder)) == [*range(TOTAL)]
    shutil.rmtree(folder / ".nv-meta")
    with pytest.raises(SpecError, match=rf"found .*stats\{other.suffix}"):
        open_source(folder)
