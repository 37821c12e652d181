from __future__ import annotations

import errno
import gzip
import json
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import yaml
from tars import bare, expected, read_all, sample_files, write_tar

from energy_data.data import prepare as tar_prepare
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.splits import parse_patterns
from energy_data.errors import SpecError, StructureError


def shards(folder, count=10, samples=3):
    for shard in range(count):
        numbers = range(shard * samples, (shard + 1) * samples)
        files = [part for n in numbers for part in sample_files(n)]
        write_tar(folder / f"s{shard % 2}" / f"shard_{shard:03d}.tar", files)
    return folder


def splits(folder):
    return yaml.safe_load((folder / ".nv-meta" / "split.yaml").read_text())["split_parts"]


def test_a_script_needs_no_guard_to_prepare_with_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from energy_data.data.prepare import prepare\n"
        f"print(prepare(Path({str(shards(tmp_path / 'data'))!r}), workers=2).num_samples)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("30\n", "")


def test_what_is_written_and_said(tmp_path):
    done = []
    summary = prepare(
        shards(tmp_path), split="8,1,1", workers=1, progress=lambda *at: done.append(at)
    )
    assert summary.num_samples == 30
    assert summary.extensions == ["txt", "json", "bin"]
    assert done == [(n, 10) for n in range(1, 11)]
    meta = tmp_path / ".nv-meta"
    assert {path.name for path in meta.iterdir()} == {
        ".info.json",
        "split.yaml",
        "dataset.yaml",
        "index.uuid",
    }
    info = json.loads((meta / ".info.json").read_text())
    assert set(info) == {"energon_version", "shard_counts"}
    names = [f"s0/shard_{n:03d}.tar" for n in range(0, 10, 2)]
    names += [f"s1/shard_{n:03d}.tar" for n in range(1, 10, 2)]
    assert info["shard_counts"] == dict.fromkeys(names, 3)
    assert list(info["shard_counts"]) == names
    assert yaml.safe_load((meta / "dataset.yaml").read_text()) == {
        "__module__": "megatron.energon",
        "__class__": "CrudeWebdataset",
    }
    sizes = {part: len(open_source(tmp_path, split_part=part)) for part in splits(tmp_path)}
    assert sizes == {"train": 24, "val": 3, "test": 3}


def test_runs_of_shards_become_braces(tmp_path):
    for n in (0, 1, 2, 4, 8, 9, 10):
        write_tar(tmp_path / f"a-{n:02d}.tar", sample_files(n))
    for name in ("b{1}.tar", "b,.tar", "b9.tar", "b10.tar", "c1_of_2.tar", "c2_of_2.tar"):
        write_tar(tmp_path / name, sample_files(hash(name) % 1000))
    prepare(tmp_path, workers=1)
    written = splits(tmp_path)["train"]
    assert "a-{00..02}.tar" in written
    assert "a-{08..10}.tar" in written
    assert "c{1..2}_of_2.tar" in written
    assert len(open_source(tmp_path)) == 13


def test_splits_by_pattern(tmp_path):
    shards(tmp_path)
    texts = ["train:s0/.*", "val:s1/shard_00{1,3}", "test:*/shard_009.tar"]
    summary = prepare(tmp_path, split=parse_patterns(texts), workers=1)
    assert [len(part) for part in summary.split_parts.values()] == [5, 2, 1]
    for texts, problem in (
        (["train:x.*"], "no shard matches the pattern 'x"),
        (["train"], "must be PART:PATTERN"),
        (["train:{"], "braces"),
    ):
        with pytest.raises((SpecError, StructureError), match=problem):
            prepare(tmp_path, split=parse_patterns(texts), force=True, workers=1)


@pytest.mark.parametrize("split", ["", "a", "1,2,3,4", "-1,2", "0,0,0", "1/0", "nan", "1,1000,1"])
def test_ratios_that_cannot_be(tmp_path, split):
    with pytest.raises(SpecError, match="ratio"):
        prepare(shards(tmp_path, 2), split=split, workers=1)


def test_ratios_are_exact(tmp_path):
    summary = prepare(shards(tmp_path), split="0.7,0.2,0.1", workers=1)
    assert [len(part) for part in summary.split_parts.values()] == [7, 2, 1]


def test_excluded_tars_and_packed_ones(tmp_path):
    shards(tmp_path)
    (tmp_path / "x.tar.gz").write_bytes(b"")
    with pytest.raises(SpecError, match=r"x\.tar\.gz.*compressed"):
        prepare(tmp_path, workers=1)
    summary = prepare(tmp_path, exclude=r"s1|\.gz$", workers=1)
    assert len(summary.shard_counts) == 5
    for exclude, problem in ((".", "leaves none"), ("(", "regular expression")):
        with pytest.raises(SpecError, match=problem):
            prepare(tmp_path, exclude=exclude, force=True, workers=1)


def test_preparing_again_needs_force_and_keeps_what_was_chosen_by_hand(tmp_path):
    prepare(shards(tmp_path), workers=1)
    with pytest.raises(SpecError, match="--force"):
        prepare(tmp_path, workers=1)
    meta = tmp_path / ".nv-meta"
    (meta / "dataset.yaml").write_text("a: 1\n")
    split = yaml.safe_load((meta / "split.yaml").read_text())
    (meta / "split.yaml").write_text(yaml.safe_dump({**split, "exclude": ["s0/shard_000.tar"]}))
    before = (meta / "index.uuid").read_text()
    prepare(tmp_path, force=True, workers=1)
    assert (meta / "dataset.yaml").read_text() == "a: 1\n"
    assert (meta / "index.uuid").read_text() != before
    assert len(open_source(tmp_path)) == 27


def test_a_second_try_after_damage_finds_nothing_of_the_first(tmp_path):
    shards(tmp_path)
    bad = tmp_path / "s1" / "shard_009.tar"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:2000])
    with pytest.raises(StructureError, match=r"shard_009"):
        prepare(tmp_path, workers=1, sqlite=True)
    with pytest.raises(StructureError, match=r"shard_009"):
        prepare(tmp_path, workers=1)
    assert {path.name for path in (tmp_path / ".nv-meta").glob("*")} == set()
    bad.write_bytes(whole)
    summary = prepare(tmp_path, workers=1)
    assert summary.extensions == ["txt", "json", "bin"]
    assert len(read_all(open_source(tmp_path))) == 30


def test_empty_shards_are_left_out_and_named(tmp_path):
    shards(tmp_path, 2)
    write_tar(tmp_path / "empty.tar", [])
    write_tar(tmp_path / "folders.tar", [("a/", b"")])
    summary = prepare(tmp_path, workers=1)
    assert summary.empty_shards == ["empty.tar", "folders.tar"]
    assert len(summary.shard_counts) == 2


def test_nothing_to_prepare(tmp_path):
    with pytest.raises(SpecError, match=r"no \.tar files"):
        prepare(tmp_path)
    write_tar(tmp_path / "empty.tar", [])
    with pytest.raises(SpecError, match="no samples"):
        prepare(tmp_path)
    with pytest.raises(SpecError, match="not a folder"):
        prepare(tmp_path / "empty.tar")
    (tmp_path / "zero.tar").write_bytes(b"")
    with pytest.raises(StructureError, match=r"zero\.tar.*cut"):
        prepare(tmp_path)


def test_the_database_of_energon(tmp_path):
    prepare(shards(tmp_path), workers=1, sqlite=True)
    with sqlite3.connect(tmp_path / ".nv-meta" / "index.sqlite") as database:
        rows = database.execute(
            "SELECT p.content_byte_offset, p.content_byte_size, s.tar_file_id FROM samples s "
            "JOIN sample_parts p USING (tar_file_id, sample_index) "
            "WHERE s.sample_key = 'd/00007' AND p.part_name = 'bin'"
        ).fetchall()
        total = database.execute("SELECT sum(byte_size) FROM samples").fetchone()[0]
    database.close()
    [(offset, size, number)] = rows
    names = list(json.loads((tmp_path / ".nv-meta" / ".info.json").read_text())["shard_counts"])
    data = (tmp_path / names[number]).read_bytes()
    assert data[offset : offset + size] == expected(7)["bin"]
    assert total == 30 * 3 * 1024


def test_a_key_in_two_shards_has_no_place_in_the_database(tmp_path):
    for name in ("a.tar", "b.tar"):
        write_tar(tmp_path / name, sample_files(1))
    with pytest.raises(StructureError, match=r"a\.tar has a sample with this key") as caught:
        prepare(tmp_path, workers=1, sqlite=True)
    assert (caught.value.shard, caught.value.key) == ("b.tar", "d/00001")
    assert not (tmp_path / ".nv-meta").exists()
    assert prepare(tmp_path, workers=1).num_samples == 2


def test_indices_have_the_permissions_of_their_tars(tmp_path):
    shards(tmp_path, 1)
    tar = tmp_path / "s0" / "shard_000.tar"
    tar.chmod(0o640)
    prepare(tmp_path, workers=1)
    assert tar.with_name("shard_000.tar.idx").stat().st_mode & 0o777 == 0o640


def test_processes_find_the_same(tmp_path):
    one = prepare(shards(tmp_path / "a"), workers=1, sqlite=True)
    script = (
        "import sys, pathlib\n"
        "from energy_data.data.prepare import prepare\n"
        "if __name__ == '__main__':\n"
        "    print(prepare(pathlib.Path(sys.argv[1]), workers=2, sqlite=True).shard_counts)\n"
    )
    (tmp_path / "run.py").write_text(script)
    shards(tmp_path / "b")
    command = [sys.executable, str(tmp_path / "run.py"), str(tmp_path / "b")]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.strip() == str(one.shard_counts)
    for index in (tmp_path / "a").rglob("*.idx"):
        other = tmp_path / "b" / index.relative_to(tmp_path / "a")
        assert other.read_bytes() == index.read_bytes()


def test_samples_are_read_in_the_order_of_shards(tmp_path):
    prepare(shards(tmp_path), workers=1)
    order = [n for even in (0, 1) for s in range(even, 10, 2) for n in range(s * 3, s * 3 + 3)]
    assert [bare(one) for one in read_all(open_source(tmp_path))] == list(map(expected, order))
    assert np.fromfile(tmp_path / "s0" / "shard_000.tar.idx", "<u8").tolist() == [
        0,
        3072,
        6144,
        9216,
    ]
    assert not list((tmp_path / "s0").glob(".*"))


NOT_WHOLE = {
    "killed while indexing": "import os; os.kill(os.getpid(), 9)",
    "no space left": "raise OSError(28, 'No space left on device')",
    "stopped by the user": "raise KeyboardInterrupt",
}


@pytest.mark.parametrize("problem", NOT_WHOLE)
def test_a_preparation_that_fails_leaves_no_trace_in_the_dataset(tmp_path, problem):
    folder = shards(tmp_path / "a", 4)
    script = (
        "import pathlib, sys\n"
        "from energy_data.data import prepare\n"
        "def fail(*_):\n"
        f"    {NOT_WHOLE[problem]}\n"
        "prepare.write_atomically = fail\n"
        "prepare.prepare(pathlib.Path(sys.argv[1]), split='1,1,0', workers=1, sqlite=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, folder], capture_output=True, text=True)
    assert done.returncode != 0
    assert ("No space left" in done.stderr) == (problem == "no space left")
    assert len(open_source(folder)) == 12  # as if it were never prepared
    assert prepare(folder, split="1,1,0", workers=1).split_parts["val"]


def test_a_full_disk_is_an_error_that_names_the_dataset(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    prepare(shards(tmp_path), split="1,1,0", workers=1)
    before = {path: path.read_bytes() for path in (tmp_path / ".nv-meta").iterdir()}
    monkeypatch.setattr(tar_prepare, "write_atomically", full)
    with pytest.raises(SpecError, match=r"cannot be prepared.*No space left") as caught:
        prepare(tmp_path, force=True, workers=1)
    assert str(tmp_path) in str(caught.value)
    assert {path: path.read_bytes() for path in (tmp_path / ".nv-meta").iterdir()} == before


def test_a_dataset_that_lost_its_info_is_an_error_until_it_is_prepared_again(tmp_path):
    prepare(shards(tmp_path), split="3,1,1", workers=1)
    parts = splits(tmp_path)
    (tmp_path / ".nv-meta" / ".info.json").unlink()
    with pytest.raises(SpecError, match=r"preparation is incomplete.*no \.info\.json"):
        open_source(tmp_path)
    prepare(tmp_path, workers=1)  # it is not prepared, so this needs no `force`
    assert splits(tmp_path) == parts
    assert len(open_source(tmp_path)) == 18


@pytest.mark.parametrize("options", [{"force": True}, {"index_only": True}])
def test_preparing_again_keeps_the_split(tmp_path, options):
    prepare(shards(tmp_path), split={"train": ["s0/.*"], "dev": ["s1/.*5.tar"]}, workers=1)
    parts = splits(tmp_path)
    write_tar(tmp_path / "s0" / "shard_002.tar", sample_files(1000))
    assert prepare(tmp_path, workers=1, **options).num_samples == 28
    assert splits(tmp_path) == parts
    assert len(read_all(open_source(tmp_path))) == 13
    assert len(open_source(tmp_path, split_part="dev")) == 3


def test_shards_that_a_kept_split_does_not_have_are_named(tmp_path):
    prepare(shards(tmp_path, 4), split="1,1,0", workers=1)
    write_tar(tmp_path / "new.tar", sample_files(1000))
    assert prepare(tmp_path, force=True, workers=1).unused_shards == ["new.tar"]


def test_a_split_that_cannot_be_kept_must_be_given(tmp_path):
    prepare(shards(tmp_path, 4), split="1,1,0", workers=1)
    (tmp_path / ".nv-meta" / "split.yaml").unlink()
    with pytest.raises(SpecError, match=r"cannot be kept: give one"):
        prepare(tmp_path, force=True, workers=1)
    assert prepare(tmp_path, split="1,1,0", force=True, workers=1).split_parts["val"]


def test_a_shard_belongs_to_one_part(tmp_path):
    split = {"train": ["s0/.*", "s1/shard_001.*"], "val": ["s1/.*"]}
    with pytest.raises(SpecError, match=r"'train' and of 'val' both match 's1/shard_001\.tar'"):
        prepare(shards(tmp_path), split=split, workers=1)


def test_links_to_nothing_are_named_and_links_to_shards_are_shards(tmp_path):
    shards(tmp_path / "real", 4)
    folder = tmp_path / "linked"
    folder.mkdir()
    (folder / "a.tar").symlink_to(tmp_path / "real" / "s0" / "shard_000.tar")
    (folder / "more").symlink_to(tmp_path / "real" / "s1")
    (folder / "again").symlink_to(folder)
    assert open_source(folder).part.shards == ["a.tar", "more/shard_001.tar", "more/shard_003.tar"]
    (folder / "b.tar").symlink_to(tmp_path / "gone.tar")
    for use in (open_source, prepare):
        with pytest.raises(SpecError, match=r"1 of its 4 shards .* do not exist, b\.tar first"):
            use(folder)
    assert prepare(folder, exclude="b", workers=1).num_samples == 9


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    shards(tmp_path, 2)

    def denied(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("energy_data.data.shards.os.scandir", denied)  # root may read everything
    with pytest.raises(SpecError, match="cannot be read: Permission denied"):
        open_source(tmp_path)


def test_folders_of_other_files_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("energy_data.data.shards._MOST_OTHERS", 5)
    for number in range(6):
        (tmp_path / f"{number}.png").touch()
    with pytest.raises(SpecError, match=r"more than 5 files that do not end with \.jsonl, "):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("x.tar", gzip.compress(bytes(2000) + b"x" * 2000, mtime=0), "compressed with gzip"),
        ("x.tar", b"BZh91AY" * 200, "compressed with bzip2"),
        ("x.tar", b"PK34" * 1000, r"it is not a tar: it begins with b'PK34PK34'"),
    ],
)
def test_files_that_are_no_tars_are_called_what_they_are(tmp_path, name, data, problem):
    (tmp_path / name).write_bytes(data + bytes(512))
    with pytest.raises(StructureError, match=problem):
        open_source(tmp_path / name)


def test_a_path_that_is_too_long_is_an_error_of_the_path(tmp_path):
    with pytest.raises((SpecError, StructureError), match=r"File name too long. Check the path"):
        open_source(tmp_path / ("x" * 300))


def test_a_pattern_of_too_many_names_is_an_error_and_not_cut(tmp_path):
    with pytest.raises(StructureError, match="more than 1,000,000 names"):
        open_source(f"{tmp_path}/shard-{{0..1000000}}.tar")
    with pytest.raises(StructureError, match="more than 1,000,000 names"):
        prepare(shards(tmp_path, 2), split={"train": ["s{0..1000000}/.*"]}, workers=1)


def test_a_pattern_with_stars_stands_for_tars(tmp_path):
    shards(tmp_path, 6)
    assert len(open_source(f"{tmp_path}/s0/shard_*.tar")) == 9
    with pytest.raises(SpecError, match=r"Name a \.tar file"):
        open_source(f"{tmp_path}/s0/page_*.tar")
