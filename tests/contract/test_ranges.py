"""Every source says which bytes its samples are read from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from shutil import ignore_patterns

from contract.test_sources import made, read, source

from energy_data.data.registry import open_source
from energy_data.remote.cache_space import NEAR, merged

__all__ = ["made", "source"]  # fixtures


def test_samples_are_read_from_their_ranges_only(made, tmp_path, monkeypatch):
    for module in ("part", "tokens.source"):
        monkeypatch.setattr(f"energy_data.data.{module}.NEAR", 0)
    path, keys = made
    source = open_source(path, **keys)
    for first, count in ((0, 1), (2, 5), (len(source) - 3, 3)):
        copy = tmp_path / f"{first}" / "copy"
        shutil.copytree(
            path if path.is_dir() else path.parent, copy, ignore=ignore_patterns("copy")
        )
        other = open_source(copy if path.is_dir() else copy / path.name, **keys)
        keep_only(other.ranges(first, count))
        expected = [without_place(one) for one in read(source, range(first, first + count))]
        assert [without_place(one) for one in read(other, range(first, first + count))] == expected


def test_ranges_of_all_samples_are_no_more_than_the_files_and_those_of_parts_make_them_up(source):
    count = len(source)
    whole = merged(source.ranges(0, count))
    for path, begin, end in whole:
        assert 0 <= begin < end <= Path(path).stat().st_size
    parts = [*source.ranges(0, 17), *source.ranges(17, count - 17)]
    assert merged(parts, NEAR if source.is_filtered else 0) == whole


def keep_only(ranges):
    """Set all bytes of these files to zero that are in none of the ranges, in the same version."""
    for path in {path for path, _, _ in ranges}:
        facts, data = Path(path).stat(), Path(path).read_bytes()
        kept = bytearray(len(data))
        for of, begin, end in ranges:
            if of == path:
                kept[begin:end] = data[begin:end]
        with open(path, "r+b") as file:  # noqa: PTH123 - the same file, whose handles stay valid
            file.write(kept)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))


def without_place(sample):
    return {name: value for name, value in sample.items() if name != "__sources__"}
