"""Keys that are in several shards get a folder of their shard's name."""

import tarfile

import numpy as np
import pytest
from tars import read_all, write_tar

from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.tar.prefix import prefix_names
from energy_data.errors import StructureError

pytestmark = pytest.mark.usefixtures("reading")

LONG = "n" * 90


@pytest.mark.parametrize("kind", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_duplicate_keys_are_made_different_and_nothing_else(tmp_path, kind):
    for shard in range(2):
        files = [("a.txt", f"{shard}".encode()), ("d/b.txt", b"b"), (f"{LONG}.txt", b"c" * 9000)]
        write_tar(tmp_path / "x" / f"s{shard}.tar", files, kind)
    with pytest.raises(StructureError, match="fix-duplicates"):
        prepare(tmp_path, sqlite=True, workers=1)
    prepare(tmp_path, sqlite=True, fix_duplicates=True, workers=1)
    samples = read_all(open_source(tmp_path))
    assert [sample["__key__"] for sample in samples] == [
        f"x/s{shard}.tar/{key}" for shard in range(2) for key in ("a", "d/b", LONG)
    ]
    assert [sample["txt"] for sample in samples] == ["0", "b", "c" * 9000, "1", "b", "c" * 9000]


def test_tars_without_duplicates_stay_as_they_are(tmp_path):
    for shard in range(2):
        write_tar(tmp_path / f"{shard}.tar", [(f"{shard}.txt", b"x")])
    before = (tmp_path / "0.tar").read_bytes()
    prepare(tmp_path, fix_duplicates=True, workers=1)
    assert (tmp_path / "0.tar").read_bytes() == before


def test_links_and_folders_go_along(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("d/", b""), ("d/a.txt", b"x")])
    with tarfile.open(path, "a") as tar:
        member = tarfile.TarInfo("d/b.txt")
        member.type, member.linkname = tarfile.LNKTYPE, "d/a.txt"
        tar.addfile(member)
    prefix_names(tmp_path, "a.tar")
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["a.tar/d", "a.tar/d/a.txt", "a.tar/d/b.txt"]
        assert tar.extractfile("a.tar/d/b.txt").read() == b"x"


def test_a_damaged_tar_is_left_as_it_is(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("a.txt", b"x" * 5000)])
    path.write_bytes(path.read_bytes()[:3000])
    before = path.read_bytes()
    with pytest.raises(StructureError, match="cannot be copied"):
        prefix_names(tmp_path, "a.tar")
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["a.tar"]


def test_a_key_twice_in_one_shard_is_not_mended(tmp_path):
    write_tar(tmp_path / "a.tar", [("a.txt", b"x"), ("b.txt", b"x"), ("a.json", b"{}")])
    with pytest.raises(StructureError, match="a second sample has this key"):
        prepare(tmp_path, fix_duplicates=True, workers=1)
    assert np.all([one.name == "a.tar" for one in tmp_path.iterdir()])
