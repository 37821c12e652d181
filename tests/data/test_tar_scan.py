from __future__ import annotations

import io
import subprocess
import tarfile

import numpy as np
import pytest
import webdataset
from tars import sample_files, write_tar

from energy_data.data.files.local import LocalFile
from energy_data.data.tar import index as tar_scan
from energy_data.data.tar.header import split_name
from energy_data.data.tar.index import scan
from energy_data.errors import StructureError

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def by_tarfile(path):
    """What Energon's prepare computes, with tarfile."""
    offsets, keys, parts = [], [], []
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            named = split_name(member.name) if member.isreg() else None
            if named is None:
                continue
            if not keys or named[0] != keys[-1]:
                keys.append(named[0])
                offsets.append(member.offset)
            parts.append((len(keys) - 1, named[1], member.offset_data, member.size))
        offsets.append(tar.offset)
    return offsets, keys, parts


def check(path):
    found = scan(LocalFile(str(path)), with_parts=True)
    offsets, keys, parts = by_tarfile(path)
    assert found.offsets.tolist() == offsets
    assert found.keys == keys
    assert [tuple(part) for part in found.parts] == parts
    return found


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 40_000])
def test_offsets_are_those_of_tarfile(tmp_path, kind, size):
    files = [part for n in range(100) for part in sample_files(n, size)]
    assert len(check(write_tar(tmp_path / "a.tar", files, kind)).keys) == 100


@pytest.mark.parametrize("kind", FORMATS[1:])
def test_long_and_foreign_names(tmp_path, kind):
    names = ["a/" * 90 + f"{n}.txt" for n in range(100)]
    names += [f"grüße-{n}.txt" for n in range(100)] + [f"{'x' * 300}{n}.a.b" for n in range(100)]
    check(write_tar(tmp_path / "a.tar", [(name, name.encode()) for name in names], kind))


def test_ustar_prefixes(tmp_path):
    names = [f"{'folder/' * 15}{'x' * 60}-{n}.txt" for n in range(200)]
    check(write_tar(tmp_path / "a.tar", [(name, b"x") for name in names]))


def test_folders_links_and_metadata_are_no_samples(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        for n in range(100):
            folder = tarfile.TarInfo(f"d{n}/")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            link = tarfile.TarInfo(f"d{n}/link.txt")
            link.type, link.linkname, link.size = tarfile.SYMTYPE, "x", 0
            tar.addfile(link)
            for name in (f"d{n}/a.txt", f"d{n}/noextension", f"__m{n}__/b.txt", f"d{n}/.hidden"):
                member = tarfile.TarInfo(name)
                member.size = 5
                tar.addfile(member, io.BytesIO(b"hello"))
    check(path)


def test_names_that_energon_takes(tmp_path):
    names = [
        "./1.txt",
        "a.b/c.txt",
        "__MACOSX/._c.jpg",
        "x/.y",
        "__x__",
        "__x__.txt",
        "q.",
        "é.txt",
    ]
    check(write_tar(tmp_path / "a.tar", [(name, b"") for name in names], tarfile.GNU_FORMAT))


def test_tars_in_tars_are_payload(tmp_path):
    inner = write_tar(tmp_path / "inner.tar", [p for n in range(50) for p in sample_files(n)])
    files = [(f"{n}.tar", inner.read_bytes()[: 512 * 20]) for n in range(200)]
    assert len(check(write_tar(tmp_path / "a.tar", files)).keys) == 200


def test_mtimes_that_need_pax_records(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for n in range(100):
            member = tarfile.TarInfo(f"{n}.txt")
            member.size, member.mtime = 5, 1.5
            tar.addfile(member, io.BytesIO(b"hello"))
    check(path)


def test_pax_records_may_change_the_size(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("1.txt")
        member.size, member.pax_headers = 5, {"size": "5"}
        tar.addfile(member, io.BytesIO(b"hello"))
    check(path)


def test_base_256_sizes(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("1.txt", b"hello"), ("2.txt", b"you")])
    data = bytearray(path.read_bytes())
    data[124:136] = b"\x80" + (5).to_bytes(11, "big")
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    path.write_bytes(data)
    check(path)


def test_tars_of_webdataset(tmp_path):
    path = tmp_path / "a.tar"
    with webdataset.TarWriter(str(path)) as writer:
        for n in range(100):
            writer.write({"__key__": f"{n:06d}", "txt": f"text {n}", "cls": n, "json": {"n": n}})
    assert len(check(path).keys) == 100


@pytest.mark.parametrize("kind", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_tars_of_gnu_tar(tmp_path, kind):
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for n in range(100):
        (tmp_path / "in" / "deep" / f"{n:03d}.txt").write_text("x" * n)
    path = tmp_path / "a.tar"
    names = ["-C", str(tmp_path / "in"), "."]
    subprocess.run(["tar", f"--format={kind}", "-cf", str(path), *names], check=True)
    assert len(check(path).keys) == 100


@pytest.mark.parametrize("size", [40, 40_000])
def test_a_cut_tar_is_noticed_wherever_it_is_cut(tmp_path, size):
    path = write_tar(tmp_path / "a.tar", [p for n in range(80) for p in sample_files(n, size)])
    whole = path.read_bytes()
    end = int(scan(LocalFile(str(path))).offsets[-1])
    rng = np.random.default_rng(0)
    for cut in [0, 1, 511, 512, 513, 1024, end - 1, end, *rng.integers(0, end, 60).tolist()]:
        short = tmp_path / "short.tar"
        short.write_bytes(whole[:cut])
        with pytest.raises(StructureError, match=r"cut|damaged"):
            scan(LocalFile(str(short)))


def test_a_damaged_header_is_named_with_its_byte(tmp_path):
    path = write_tar(tmp_path / "a.tar", [p for n in range(80) for p in sample_files(n)])
    data = bytearray(path.read_bytes())
    data[1024 * 100 + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(StructureError, match="checksum") as caught:
        scan(LocalFile(str(path)))
    assert (caught.value.shard, caught.value.offset) == (str(path), 1024 * 100)


def test_a_size_beyond_the_file_is_named_with_its_key(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("1.txt", b"x"), ("2.txt", b"x")])
    data = bytearray(path.read_bytes())
    data[1024 + 124 : 1024 + 136] = b"77777777777\0"
    data[1024 + 148 : 1024 + 156] = b" " * 8
    data[1024 + 148 : 1024 + 156] = b"%06o\0 " % sum(data[1024:1536])
    path.write_bytes(data)
    with pytest.raises(StructureError, match=r"2\.txt.*needs 8589934592 bytes"):
        scan(LocalFile(str(path)))


def test_a_key_that_comes_again_is_an_error(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("1.txt", b"x"), ("2.txt", b"x"), ("1.json", b"{}")])
    with pytest.raises(StructureError, match="second sample has this key") as caught:
        scan(LocalFile(str(path)))
    assert (caught.value.key, caught.value.offset) == ("1", 2048)


def test_a_tar_of_folders_has_no_samples(tmp_path):
    found = scan(
        LocalFile(str(write_tar(tmp_path / "a.tar", [(f"d{n}/", b"") for n in range(99)])))
    )
    assert found.keys == []
    assert found.offsets.tolist() == [99 * 512]


def test_joined_tars_are_an_error(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("1.txt", b"x")])
    other = write_tar(tmp_path / "b.tar", [("2.txt", b"x")])
    path.write_bytes(path.read_bytes() + other.read_bytes())
    with pytest.raises(StructureError, match="cat"):
        scan(LocalFile(str(path)))


def test_sparse_files_are_refused(tmp_path):
    with (tmp_path / "1.txt").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 20)
        file.write(b"x")
    for kind in ("gnu", "pax"):
        path = tmp_path / f"{kind}.tar"
        command = [
            "tar",
            f"--format={kind}",
            "-S",
            "-cf",
            str(path),
            "-C",
            str(tmp_path),
            "1.txt",
        ]
        subprocess.run(command, check=True)
        with pytest.raises(StructureError, match="sparse"):
            scan(LocalFile(str(path)))


def test_extended_headers_do_not_take_memory_on_their_word(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("x" * 200 + ".txt", b"x")], tarfile.GNU_FORMAT)
    data = bytearray(path.read_bytes())
    data[124:136] = b"77777777777\0"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    path.write_bytes(data)
    with pytest.raises(StructureError, match="extended header needs"):
        scan(LocalFile(str(path)))


def test_strides_and_steps_agree(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    files = [(f"{n}.bin", rng.bytes(int(rng.integers(0, 60_000)))) for n in range(300)]
    path = write_tar(tmp_path / "a.tar", files)
    for probed, large in ((0, 0), (0, 1 << 40), (64, 16384)):
        monkeypatch.setattr(tar_scan, "_PROBED", probed)
        monkeypatch.setattr(tar_scan, "_LARGE", large)
        check(path)
