"""The compiled part of reading tars makes of them what Python makes of them."""

from __future__ import annotations

import gc
import io
import os
import sys
import tarfile
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tars import one_shard, sample_files, write_tar

from energy_data import RawTensor, SampleError, StructureError
from energy_data.core.batch_memory import TensorRow
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.tar import native, reader

pytestmark = pytest.mark.skipif(native.TAR is None, reason="installed without a compiler")

RAW = RawTensor("uint8", (64, 64))
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
LONG = [f"{'long' * 24}/", f"{'longer' * 30}/"]
FOLDERS = ["", "d/", "d.x/", "./", "__d__/", "ü/", "\udcff/", *LONG]
EXTENSIONS = ["txt", "json", "cls", "bin", "seg.bin", "npy", "odd", "x" * 40, "", "__key__", "a/b"]
PARTS = {
    "txt": ["text", "", "Grüße", b"\xff\xfe", "t" * 70_000],
    "json": ['{"a": [1, 2.5, null]}', "{", ""],
    "cls": ["7", "seven"],
}


def payloads(extension):
    known = PARTS.get(extension)
    if known:
        return st.sampled_from([p if isinstance(p, bytes) else p.encode() for p in known])
    sizes = [0, 1, 511, 512, 513, 4096, 9000, 70_000]
    return st.sampled_from(sizes).map(lambda n: bytes(k % 251 for k in range(n)))


parts = st.sampled_from(EXTENSIONS).flatmap(lambda e: st.tuples(st.just(e), payloads(e)))
samples = st.tuples(st.sampled_from(FOLDERS), st.lists(parts, min_size=1, max_size=4))
flips = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6)


def read_rows(source, indices):
    return type(source).read_together([source], np.zeros_like(indices), indices, rows=True)


def plain(value):
    """Return something that is equal for equal values, of any kind."""
    if isinstance(value, SampleError):
        return "bad", str(value), value.offset, value.key, value.index
    if isinstance(value, TensorRow):
        return plain(value.tensor)
    if isinstance(value, torch.Tensor | np.ndarray):
        return type(value).__name__, str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return [(name, plain(one)) for name, one in value.items()]
    return type(value).__name__, value


def read(folder, numbers, decoders, *, rows):
    """Return what is read, or what is raised instead."""
    try:
        source = open_source(folder, decoders=decoders)
        found = read_rows(source, numbers) if rows else source.read(numbers)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be the same
        return f"{type(error).__name__}: {error}"
    return [plain(one) for one in found]


def read_in_python(folder, numbers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "TAR", None)
        return read(folder, numbers, None, rows=False)


def read_both(folder, count, decoders=None, *, rows=False):
    """Read all, in two orders, in both ways; check that they are equal and return the first."""
    assert native.TAR is not None
    found = []
    for numbers in (np.arange(count), np.arange(count)[::-1].repeat(2), np.arange(min(2, count))):
        found.append(read(folder, numbers, decoders, rows=rows))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "TAR", None)
            assert found[-1] == read(folder, numbers, decoders, rows=rows)
    return found[0]


def write(folder, made, kind):
    """Write samples of (folder, parts) into a shard, two of each; return how many there are."""
    folder.mkdir(exist_ok=True)
    for old in folder.rglob("*.*"):
        if old.is_file():
            old.unlink()
    with tarfile.open(folder / "a.tar", "w", format=kind, errors="surrogateescape") as tar:
        for number, (where, files) in enumerate([*made, *made]):
            for extension, data in files:
                member = tarfile.TarInfo(f"{where}{number:03d}.{extension}")
                member.size, member.mtime = len(data), number + 0.5
                tar.addfile(member, io.BytesIO(data))
    prepare(folder, workers=1, force=True)
    return len(open_source(folder))


@settings(max_examples=200, deadline=None)
@given(st.lists(samples, min_size=1, max_size=8), st.sampled_from(FORMATS), flips)
def test_any_tar_gives_the_same(tmp_path_factory, made, kind, flipped):
    folder = tmp_path_factory.getbasetemp() / "any"
    try:
        count = write(folder, made, kind)
    except Exception:  # noqa: BLE001 - names that no tar can have, or no sample in it
        return
    tar = folder / "a.tar"
    data, facts = bytearray(tar.read_bytes()), tar.stat()
    for place, value in flipped:
        data[int(place * len(data))] = value
    tar.write_bytes(data)
    os.utime(tar, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    for decoders, rows in ((None, False), ({"bin": RAW}, True), ({"txt": "bytes"}, False)):
        read_both(folder, count, decoders, rows=rows)


@pytest.mark.parametrize("kind", FORMATS)
def test_plain_samples_are_left_to_nobody_else(tmp_path, monkeypatch, kind):
    write_tar(tmp_path / "a.tar", [part for n in range(50) for part in sample_files(n)], kind)
    prepare(tmp_path, workers=1)
    monkeypatch.setattr(reader, "read_strictly", None)
    assert len(open_source(tmp_path).read(np.arange(50))) == 50


def test_tensors_are_left_to_nobody_else(tmp_path, monkeypatch):
    files = [(f"{n}.bin", bytes([n]) * 4096) for n in range(50)]
    source = one_shard(tmp_path, files, decoders={"bin": RAW})
    monkeypatch.setattr(reader, "read_strictly", None)
    found = read_rows(source, np.arange(50)[::-1])
    assert [sample["bin"].number for sample in found] == list(range(50))
    assert [int(sample["bin"].tensor[0, 0]) for sample in found] == list(range(50))[::-1]


def test_samples_of_any_size_may_be_neighbours(tmp_path):
    sizes = [10, 70_000, 20, 60_000, 60_000, 60_000, 60_000, 60_000, 30, 66_000, 1]
    files = [(f"{n}.bin", bytes([n]) * size) for n, size in enumerate(sizes)]
    one_shard(tmp_path, files)
    found = read_both(tmp_path, len(sizes))
    assert [dict(sample)["bin"] for sample in found] == [("bytes", data) for _, data in files]


SCATTERED_SIZES = [1, 5_000, 9_000, 30_000, 64_000, 70_000]  # too far apart to be read together


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from(SCATTERED_SIZES), min_size=70, max_size=150), st.randoms())
def test_many_scattered_samples_of_several_shards_are_the_same(tmp_path_factory, sizes, random):
    folder = tmp_path_factory.mktemp("scattered")
    for shard in range(3):
        some = [(n, size) for n, size in enumerate(sizes) if n % 3 == shard]
        files = [(f"{n:03d}.bin", bytes([n]) * size) for n, size in some]
        write_tar(folder / f"{shard}.tar", files)
    prepare(folder, workers=1)
    source = open_source(folder)
    numbers = np.array(random.choices(range(len(sizes)), k=2 * len(sizes)))
    by_key = {sample["__key__"]: sample["bin"] for sample in source.read(np.arange(len(sizes)))}
    assert by_key == {f"{n:03d}": bytes([n]) * size for n, size in enumerate(sizes)}
    assert read(folder, numbers, None, rows=False) == read_in_python(folder, numbers)


@pytest.mark.parametrize("by", ["compiled", "python"])
def test_a_file_that_is_cut_while_it_is_read_says_so(tmp_path, monkeypatch, by):
    if by == "python":
        monkeypatch.setattr(native, "TAR", None)
    source = one_shard(tmp_path, [part for n in range(20) for part in sample_files(n)])
    assert len(source.read(np.arange(20))) == 20
    os.truncate(tmp_path / "a.tar", 7 * 3072)
    assert len(source.read(np.arange(7))) == 7
    with pytest.raises(StructureError, match="It was cut"):
        source.read(np.arange(20))


class Stop(BaseException):
    """Not an error of a sample."""


def test_what_a_decoder_raises_is_a_bad_sample_only_if_it_is_an_error(tmp_path):
    source = one_shard(tmp_path, sample_files(0), decoders={"bin": lambda _: 1 / 0})
    (found,) = source.read(np.arange(1))
    assert "division by zero" in str(found)

    def stop(_):
        raise Stop

    source = one_shard(tmp_path, sample_files(0), decoders={"bin": stop})
    with pytest.raises(Stop):
        source.read(np.arange(1))


def test_a_decoder_may_read_the_dataset_itself(tmp_path):
    files = [part for n in range(4) for part in sample_files(n)]
    plain_source = one_shard(tmp_path, files)
    inner = open_source(
        tmp_path, decoders={"bin": lambda _: plain_source.read(np.arange(4))[3]["__key__"]}
    )
    assert [sample["bin"] for sample in inner.read(np.arange(4))] == ["d/00003"] * 4


def test_a_decoder_may_keep_what_it_is_given(tmp_path):
    kept = []
    source = one_shard(
        tmp_path,
        [part for n in range(40) for part in sample_files(n)],
        decoders={"bin": lambda data: kept.append(memoryview(data))},
    )
    source.read(np.arange(40))
    assert [bytes(view) for view in kept] == [sample_files(n)[2][1] for n in range(40)]


def test_an_index_that_cannot_be_says_where(tmp_path):
    one_shard(tmp_path, [part for n in range(9) for part in sample_files(n)])
    index = tmp_path / "a.tar.idx"
    offsets, facts = np.fromfile(index, "<u8"), index.stat()
    for wrong in (offsets[5], offsets[5] + 1, 1 << 40, 1 << 63, offsets[3]):
        changed = offsets.copy()
        changed[6] = wrong
        index.write_bytes(changed.tobytes())
        os.utime(index, ns=(facts.st_atime_ns, facts.st_mtime_ns + int(wrong) % 1000))
        assert "which is invalid" in read_both(tmp_path, 9)


def test_nothing_is_kept(tmp_path):
    """References are counted by hand there: after many reads, as many objects are alive."""
    files = [part for n in range(20) for part in sample_files(n)]
    files += [("bad.txt", b"\xff"), ("bad.json", b"{"), ("odd", b""), ("t.raw", bytes(4096))]
    decoders = {"raw": RAW, "bin": lambda data: len(data)}
    source = one_shard(tmp_path, files, decoders=decoders, subflavors={"a": 1})
    numbers = np.arange(len(source))

    def alive():
        gc.collect()
        own = source.options.subflavors, source.layout.origin, source.part.shards[0]
        counted = (*own, RAW, decoders["bin"], source.path, TensorRow, bytes)
        return list(map(sys.getrefcount, counted)), len(gc.get_objects())

    for read in (source.read, partial(read_rows, source)):
        read(numbers)
        counts, objects = alive()
        for _ in range(50):
            read(numbers)
        after, objects_after = alive()
        assert np.abs(np.subtract(after, counts)).max() < 20
        assert abs(objects_after - objects) < 50


RECORDS = {
    b"28 mtime=1700000000.1234567\n": True,
    b"15 mtime=17000\n13 atime=2.5\n": True,
    b"15 mtime=17000\n" + bytes(13): True,
    b"28 SCHILY.xattr.path=abcdef\n": True,
    b"28 GNU.sparse.major=1234567\n": False,
    b"28 path=another.name.of.it/\n": False,
    b"28 size=00000000000000000004\n"[:27] + b"\n": False,
    b"27 mtime=1700000000.1234567\n": False,
    b"99 mtime=1700000000.1234567\n": False,
    b"0028mtime=1700000000.1234567\n"[:28]: False,
    b"28 mtime 1700000000.1234567\n": False,
    b"junk".ljust(28, b"."): False,
    b"0000000000000000028 mtime=1\n": False,
}


def with_pax(folder, records):
    """Write samples with pax records before each part, then others in their place."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(40):
            member = tarfile.TarInfo(f"{number:03d}.txt")
            member.size, member.pax_headers = 4, {"mtime": "1700000000.1234567"}
            tar.addfile(member, io.BytesIO(b"text"))
    prepare(folder, workers=1)
    tar, index = folder / "a.tar", folder / "a.tar.idx"
    data, facts = bytearray(tar.read_bytes()), tar.stat()
    for begin in np.fromfile(index, "<u8")[:-1].tolist():
        assert data[begin + 512 : begin + 540] == next(iter(RECORDS))
        data[begin + 512 : begin + 540] = records
    tar.write_bytes(data)
    os.utime(tar, ns=(facts.st_atime_ns, facts.st_mtime_ns))


@pytest.mark.parametrize(("records", "idle"), RECORDS.items(), ids=repr)
def test_pax_records_mean_the_same_to_all(tmp_path, records, idle):
    assert len(records) == 28
    with_pax(tmp_path, records)
    found = read_both(tmp_path, 40)
    if b"path=" not in records and b"size=" not in records:
        assert [sample[0] == "bad" for sample in found] == [not idle] * 40


def test_pax_records_with_no_file_behind_them_are_told_by_all(tmp_path):
    files = [(f"{number}.{name}", b"text") for number in range(20) for name in ("txt", "text")]
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    tar = bytearray((tmp_path / "a.tar").read_bytes())
    for begin in range(1024, len(files) * 1024, 2048):  # the second part of each sample
        tar[begin + 156] = ord("x")
        tar[begin + 512 : begin + 516] = b"4 =\n"
        tar[begin + 148 : begin + 156] = b" " * 8
        tar[begin + 148 : begin + 156] = b"%06o\0 " % sum(tar[begin : begin + 512])
    facts = (tmp_path / "a.tar").stat()
    (tmp_path / "a.tar").write_bytes(tar)
    os.utime(tmp_path / "a.tar", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert all("a header needs 512 bytes" in sample[1] for sample in read_both(tmp_path, 20))


def test_offsets_at_the_end_of_all_numbers_are_nowhere(tmp_path):
    found, origin = [], open_source(one_shard(tmp_path, sample_files(0)).path).layout.origin
    with (tmp_path / "a.tar").open("rb") as file:
        begins, ends = [2**63 - 1024, 2**63 - 1024], [2**63 - 512, 2**63 - 512]
        args = [file.fileno()], [0], begins, ends, [None] * 2, [origin] * 2
        assert native.TAR.read_plain(found, *args, None) == 2
    assert found == [None, None]


def test_what_is_no_order_is_refused():
    for order in ([0], [0, 2], [0, -1], [0, 2**40]):
        with pytest.raises((IndexError, ValueError)):
            native.TAR.in_order(order, ["a", "b"])


@pytest.mark.parametrize("by", ["compiled", "python"])
def test_what_a_name_means_does_not_depend_on_what_was_read_before(tmp_path, monkeypatch, by):
    if by == "python":
        monkeypatch.setattr(native, "TAR", None)
    one_shard(tmp_path, [("0.", b""), ("nodot.txt", b""), ("2.txt", b"")])
    tar = bytearray((tmp_path / "a.tar").read_bytes())
    at = tar.index(b"nodot.txt")
    tar[at : at + 9] = b"nodot\0\0\0\0"
    tar[at + 148 : at + 156] = b" " * 8
    tar[at + 148 : at + 156] = b"%06o\0 " % sum(tar[at : at + 512])
    facts = (tmp_path / "a.tar").stat()
    (tmp_path / "a.tar").write_bytes(tar)
    os.utime(tmp_path / "a.tar", ns=(facts.st_atime_ns, facts.st_mtime_ns))
    source = open_source(tmp_path)
    before, _, after = [source.read(np.array([number]))[0] for number in (1, 0, 1)]
    assert isinstance(before, SampleError)
    assert plain(after) == plain(before)
