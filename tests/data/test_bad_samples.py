"""A sample that is damaged in its tar is an error in its place; the others are read."""

from __future__ import annotations

import os

import numpy as np
import pytest
from tars import bare, dataset, expected, one_shard, read_all, sample_files

from energy_data.data.registry import open_source
from energy_data.errors import SampleError, StructureError

pytestmark = pytest.mark.usefixtures("reading")


def harmed(tmp_path, files, harm, row=7, size=40):
    """Return the samples of a shard whose bytes were changed after preparing, and the offsets."""
    source = one_shard(tmp_path, files)
    tar = tmp_path / "a.tar"
    offsets = np.fromfile(tmp_path / "a.tar.idx", "<u8").tolist()
    data = bytearray(tar.read_bytes())
    harm(data, offsets[row])
    earlier = tar.stat().st_mtime_ns
    tar.write_bytes(data)
    os.utime(tar, ns=(earlier, earlier))
    return read_all(open_source(source.path)), offsets


def seal(data, at):
    """Write the right checksum into the header at `at`."""
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])


def flip(data, at):
    data[at + 3] ^= 1


def zero(data, at):
    data[at : at + 512] = bytes(512)


def lie(data, at):
    data[at + 124 : at + 136] = b"77777777777\0"
    seal(data, at)


def other_key(data, at):
    data[at + 1024 : at + 1034] = b"otherkey.x"
    seal(data, at + 1024)


def same_part(data, at):
    data[at + 1024 : at + 1124] = data[at : at + 100]
    seal(data, at + 1024)


def no_part(data, at):
    for header in (at, at + 1024, at + 2048):
        data[header : header + 100] = b"nopart".ljust(100, b"\0")
        seal(data, header)


def reserved_part(data, at):
    data[at : at + 100] = b"d/00007.__key__".ljust(100, b"\0")
    seal(data, at)


def bad_text(data, at):
    data[at + 512 + 5] = 0xFF


@pytest.mark.parametrize(
    ("harm", "problem", "offset"),
    [
        (flip, "no tar header", 0),
        (zero, "no tar header", 0),
        (lie, "needs 8589934592 bytes", 512),
        (other_key, "a part of sample 'otherkey'", 1024),
        (same_part, "two parts 'txt'", 1024),
        (no_part, "no file with a key", 0),
        (reserved_part, "two parts '__key__'", 0),
        (bad_text, r"part 'txt' is not UTF-8: invalid start byte in its byte 5", 517),
    ],
)
def test_one_bad_sample_is_an_error_in_its_place(tmp_path, harm, problem, offset):
    files = [part for n in range(50) for part in sample_files(n)]
    samples, offsets = harmed(tmp_path, files, harm)
    error = samples.pop(7)
    assert isinstance(error, SampleError)
    assert error.index == 7
    assert error.shard == "a.tar"
    assert error.dataset == str(tmp_path)
    assert error.offset == offsets[7] + offset
    with pytest.raises(SampleError, match=problem):
        raise error
    assert [bare(one) for one in samples] == [expected(n) for n in range(50) if n != 7]


def test_damage_in_the_headers_of_large_samples(tmp_path):
    files = [part for n in range(50) for part in sample_files(n, 40_000)]
    second = 512 + 40_448
    for harm in (flip, lie, zero):
        samples, offsets = harmed(
            tmp_path, files, lambda data, at, harm=harm: harm(data, at + second)
        )
        error = samples.pop(7)
        assert isinstance(error, SampleError)
        assert offsets[7] + second <= error.offset <= offsets[7] + second + 512
        assert [bare(one) for one in samples] == [expected(n, 40_000) for n in range(50) if n != 7]


def test_a_tar_that_is_cut_while_it_is_read(tmp_path):
    source = open_source(dataset(tmp_path, size=40_000))
    source.read(np.arange(60))
    os.truncate(tmp_path / "shard-000.tar", 100_000)
    for numbers in (np.arange(5), np.arange(60)):
        with pytest.raises(StructureError, match="has 100000"):
            source.read(numbers)


def test_a_sample_of_pax_records_only(tmp_path):
    files = [part for n in range(50) for part in sample_files(n)]

    def harm(data, at):
        for header in (at, at + 1024, at + 2048):
            data[header + 156] = ord("x")
            data[header + 512 : header + 1024] = b"14 comment=xy\n".ljust(512, b"\0")
            seal(data, header)

    samples, _ = harmed(tmp_path, files, harm)
    with pytest.raises(SampleError, match=r"pax records|needs|no file"):
        raise samples[7]


@pytest.mark.parametrize("count", [5, 40])
@pytest.mark.parametrize("field", ["__key__", "__subflavors__", "__sources__"])
def test_a_part_named_as_a_field_of_ours_is_bad_in_blocks_of_any_size(tmp_path, field, count):
    files = [(f"{number:04d}.bin", b"x") for number in range(40)]
    files[3] = (f"0003.{field}", b"evil")
    source = one_shard(tmp_path, files)
    bad = source.read(np.arange(count))[3]
    assert isinstance(bad, SampleError)
    assert f"two parts '{field}'" in str(bad)
