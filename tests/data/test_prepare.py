from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import yaml
from tars import bare, expected, read_all, sample_files, write_tar

from energy_data.data.registry import open_source
from energy_data.data.tar.nv_meta import parse_patterns
from energy_data.data.tar.prepare import prepare
from energy_data.errors import SpecError, StructureError


def shards(folder, count=10, samples=3):
    for shard in range(count):
        numbers = range(shard * samples, (shard + 1) * samples)
        files = [part for n in numbers for part in sample_files(n)]
        write_tar(folder / f"s{shard % 2}" / f"shard_{shard:03d}.tar", files)
    return folder


def splits(folder):
    return yaml.safe_load((folder / ".nv-meta" / "split.yaml").read_text())["split_parts"]


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
    assert list((tmp_path / ".nv-meta").iterdir()) == []
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
        "from energy_data.data.tar.prepare import prepare\n"
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
