"""Damaged bytes: only our errors come out, soon, and nothing is allocated on a header's word."""

from __future__ import annotations

import os
import tarfile
import time
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tars import sample_files, write_tar

from energy_data.data.files.local import LocalFile
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.tar.index import scan
from energy_data.errors import DataError, SampleError, SpecError

pytestmark = pytest.mark.usefixtures("reading")

COUNT = 40
KINDS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
CASES = [(size, kind) for size in (40, 20_000) for kind in KINDS]
flips = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6)
cuts = st.one_of(st.none(), st.floats(0, 1))


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Folders with one shard each, and the bytes of its files, by size and kind of tar."""
    made = {}
    for size, kind in CASES:
        folder = tmp_path_factory.mktemp("fuzz")
        files = [part for n in range(COUNT) for part in sample_files(n, size)]
        files += [(f"{'long' * 40}{n}.txt", b"x") for n in range(3)] if kind else []
        write_tar(folder / "a.tar", files, kind)
        prepare(folder, workers=1)
        made[size, kind] = folder, {path.name: path.read_bytes() for path in folder.glob("a.*")}
    return made


def damage(data, flipped, cut):
    data = bytearray(data)
    for place, value in flipped:
        data[int(place * len(data))] = value
    return bytes(data if cut is None else data[: int(cut * len(data))])


def restore(folder, files, **changed):
    for name, data in files.items():
        path = folder / name
        path.write_bytes(changed.get(path.suffix[1:], data))
        os.utime(path, ns=(10**18, 10**18))


def check(folder):
    begin = time.monotonic()
    try:
        source = open_source(folder)
        for numbers in (np.arange(COUNT), np.arange(5), np.tile(np.arange(COUNT), 2)):
            for number, sample in zip(numbers.tolist(), source.read(numbers), strict=True):
                if isinstance(sample, dict):
                    assert set(sample) > {"__key__", "__subflavors__", "__sources__"}
                    assert sample["__sources__"][0].index == number
                else:
                    assert isinstance(sample, SampleError)
                    assert sample.index == number
    except (DataError, SpecError):
        pass
    assert time.monotonic() - begin < 5


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), flips, cuts)
def test_damaged_tars_behind_good_indices(datasets, case, flipped, cut):
    folder, files = datasets[case]
    restore(folder, files, tar=damage(files["a.tar"], flipped, cut))
    check(folder)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), flips, cuts)
def test_damaged_indices_of_good_tars(datasets, case, flipped, cut):
    folder, files = datasets[case]
    restore(folder, files, idx=damage(files["a.tar.idx"], flipped, cut))
    check(folder)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(CASES), flips, cuts)
def test_scanning_damaged_tars(datasets, case, flipped, cut):
    folder, files = datasets[case]
    path = folder / "scanned"
    path.write_bytes(damage(files["a.tar"], flipped, cut))
    begin = time.monotonic()
    try:
        found = scan(LocalFile(str(path)), with_parts=True)
        assert all(part.offset + part.size <= path.stat().st_size for part in found.parts)
    except DataError:
        pass
    assert time.monotonic() - begin < 5


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=3000), st.sampled_from(["tar", "idx"]))
def test_random_bytes_in_place_of_a_file(datasets, data, which):
    folder, files = datasets[CASES[0]]
    restore(folder, files, **{which: data})
    check(folder)
    if which == "tar":
        with suppress(DataError):
            scan(LocalFile(str(folder / "a.tar")))


META = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_metadata(datasets, data):
    folder, files = datasets[CASES[0]]
    restore(folder, files)
    meta = folder / ".nv-meta"
    kept = {path.name: path.read_bytes() for path in meta.iterdir()}
    name = data.draw(st.sampled_from(sorted(kept)))
    raw = data.draw(st.one_of(st.binary(max_size=60), flips, META))
    if isinstance(raw, bytes):
        text = raw
    elif isinstance(raw, list) and raw and isinstance(raw[0], tuple):
        text = damage(kept[name], raw, None)
    else:
        key = "shard_counts" if "info" in name else "split_parts"
        text = repr({key: raw} if data.draw(st.booleans()) else raw).encode()
    try:
        (meta / name).write_bytes(text)
        check(folder)
    finally:
        for file, content in kept.items():
            (meta / file).write_bytes(content)
