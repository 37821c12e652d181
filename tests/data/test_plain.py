from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tars import bare, expected, read_all, sample_files, write_tar

from energy_data.cli.main import main
from energy_data.data.files import offsets
from energy_data.data.registry import FORMATS, open_source
from energy_data.data.tar import index as tar_index
from energy_data.errors import SpecError, StructureError


def shards(folder, count=3):
    for shard in range(count):
        files = [part for n in range(shard * 5, shard * 5 + 5) for part in sample_files(n)]
        write_tar(folder / f"shard-{shard:03d}.tar", files)
    return folder


@pytest.mark.parametrize(
    ("name", "numbers"),
    [
        ("", range(15)),
        ("shard-{000..002}.tar", range(15)),
        ("shard-00{1,2}.tar", range(5, 15)),
        ("shard-001.tar", range(5, 10)),
    ],
)
def test_folders_tars_and_patterns(tmp_path, name, numbers):
    shards(tmp_path / "a")
    shards(tmp_path / "b")
    source = open_source(tmp_path / "a" / name)
    assert [bare(one) for one in read_all(source)] == list(map(expected, numbers))
    assert source.fingerprint == open_source(tmp_path / "b" / name).fingerprint
    assert source.read(np.array([0]))[0]["__sources__"][0].shard.startswith("shard-00")


def test_paths_relative_to_where_we_are(tmp_path, monkeypatch):
    shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("shard-001.tar", "./shard-00{1..1}.tar"):
        assert bare(open_source(name).read(np.array([0]))[0]) == expected(5)


def test_indices_are_kept_and_made_anew_when_the_tar_is_newer(tmp_path):
    shards(tmp_path, 1)
    open_source(tmp_path)
    index = tmp_path / "shard-000.tar.idx"
    before = index.stat()
    open_source(tmp_path)
    assert index.stat().st_ino == before.st_ino
    write_tar(tmp_path / "shard-000.tar", sample_files(77))
    later = time.time_ns() + 10**9
    os.utime(tmp_path / "shard-000.tar", ns=(later, later))
    assert [bare(one) for one in read_all(open_source(tmp_path))] == [expected(77)]
    index.write_bytes(b"")
    assert [bare(one) for one in read_all(open_source(tmp_path))] == [expected(77)]


def test_read_only_folders_are_indexed_in_the_cache_of_the_user(tmp_path, monkeypatch):
    shards(tmp_path / "data")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write = offsets.write_atomically

    def refuse(index, data, mode):
        if "data" in Path(index).parent.name:
            raise PermissionError(13, "Permission denied")
        write(index, data, mode)

    monkeypatch.setattr(offsets, "write_atomically", refuse)
    assert len(read_all(open_source(tmp_path / "data"))) == 15
    assert len(list((tmp_path / "cache").rglob("*.idx"))) == 3
    assert not list((tmp_path / "data").glob("*.idx"))
    monkeypatch.setattr(tar_index, "_group", None)
    assert len(read_all(open_source(tmp_path / "data"))) == 15


def test_nowhere_to_write_an_index(tmp_path, monkeypatch):
    def refuse(index, data, mode):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(offsets, "write_atomically", refuse)
    with pytest.raises(SpecError, match="XDG_CACHE_HOME"):
        open_source(shards(tmp_path))


def test_what_is_not_there(tmp_path):
    shards(tmp_path)
    with pytest.raises(SpecError, match="2 of its 5 files are missing"):
        open_source(tmp_path / "shard-{000..004}.tar")
    with pytest.raises(SpecError, match="1 of its 1 files are missing"):
        open_source(tmp_path / "nowhere.tar")
    with pytest.raises(SpecError, match=r"nowhere-\*.tar: it matches no file. Name a .tar file"):
        open_source(tmp_path / "nowhere-*.tar")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SpecError, match=r"no \.jsonl, .* or \.tar files"):
        open_source(tmp_path / "empty")
    with pytest.raises(SpecError, match="its one split part is 'train'"):
        open_source(tmp_path, split_part="val")
    with pytest.raises(SpecError, match="it is not prepared"):
        open_source(tmp_path, split_config="other.yaml")
    with pytest.raises(StructureError, match="more than"):
        open_source(tmp_path / "{0..99999999999}.tar")
    write_tar(tmp_path / "none" / "a.tar", [])
    with pytest.raises(SpecError, match="no samples"):
        open_source(tmp_path / "none")
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.tgz").write_bytes(b"")
    with pytest.raises(SpecError, match="compressed"):
        open_source(tmp_path / "packed")


@pytest.mark.parametrize("suffix", sorted({one.suffix for one in FORMATS if one.shards} - {".mds"}))
def test_a_folder_with_files_of_several_splits_is_an_error(tmp_path, suffix):
    for name in ("train-0", "train-1", "x_dev", "eval/0"):
        (tmp_path / f"{name}{suffix}").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}{suffix}").touch()
    with pytest.raises(SpecError, match=r"of several splits, found train-0.*, x_dev.*, eval/0"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train-0", "test-0"),
        ("training/en/0", "test/en/0"),
        ("a-train.1", "a-test.1"),
        ("data/train2", "data/test2"),
    ],
)
def test_what_the_error_of_several_splits_advises_works(tmp_path, train, test):
    for number, name in enumerate((train, test)):
        write_tar(tmp_path / f"{name}.tar", sample_files(number))
    with pytest.raises(SpecError) as refused:
        open_source(tmp_path)
    pattern, command = re.findall(r"as in (\S+), or run `energy-data (.*)`", str(refused.value))[0]
    assert [bare(one) for one in read_all(open_source(pattern))] == [expected(0)]
    assert CliRunner().invoke(main, shlex.split(command)).exit_code == 0
    source = open_source(tmp_path, split_part="test")
    assert [bare(one) for one in read_all(source)] == [expected(1)]


@pytest.mark.parametrize("names", [("train-0", "train-1", "other"), ("tests", "trainer", "value")])
def test_a_folder_with_files_of_one_split_or_none_is_a_dataset(tmp_path, names):
    for number, name in enumerate(names):
        write_tar(tmp_path / f"{name}.tar", sample_files(number))
    assert len(open_source(tmp_path)) == 3


def test_a_damaged_tar_is_an_error_of_structure(tmp_path):
    shards(tmp_path)
    (tmp_path / "shard-001.tar").write_bytes(b"x" * 5000)
    with pytest.raises(StructureError, match=r"shard-001\.tar, byte 0: no tar header"):
        open_source(tmp_path)
    assert not (tmp_path / "shard-001.tar.idx").exists()


def test_a_bar_is_shown_to_those_who_look_on(tmp_path, monkeypatch):
    shown = io.StringIO()
    shown.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", shown)
    open_source(shards(tmp_path))
    assert "Indexing shards" in shown.getvalue()


def test_opening_starts_no_thread(tmp_path, monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", None)
    assert len(open_source(shards(tmp_path))) == 15


def test_several_processes_may_index_at_once(tmp_path):
    shards(tmp_path, 20)
    code = (
        "import sys; from energy_data.data.registry import open_source\n"
        "print(len(open_source(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [run.communicate()[0] for run in runs] == ["100\n"] * 2
    assert len(list(tmp_path.iterdir())) == 40
