"""A dataset is prepared in parts, by programs that share a disk only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

import pytest
from click.testing import CliRunner
from tars import sample_files, write_tar

from energy_data.cli.main import main
from energy_data.data import indexing
from energy_data.data.files.local import version_of
from energy_data.data.jsonl import JSONL
from energy_data.data.prepare import prepare, prepare_part
from energy_data.data.registry import open_source
from energy_data.data.tar.source import TARS
from energy_data.errors import SpecError, StructureError


def write(folder, kind=TARS, count=7):
    """Write shards of 0 to 3 samples each."""
    for shard in range(count):
        numbers = range(10 * shard, 10 * shard + shard % 4)
        path = folder / f"{shard % 2}" / f"{shard}{kind.suffix}"
        if kind is TARS:
            write_tar(path, [part for n in numbers for part in sample_files(n)])
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps({"n": n}) + "\n" for n in numbers))
    return folder


def run(*arguments):
    return CliRunner().invoke(main, ["prepare", *map(str, arguments), "--non-interactive"])


def files(folder):
    """All files of a dataset but the uuid."""
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in found.items() if path.name != UUID}


UUID = "index.uuid"
OPTIONS = {
    "tars": (TARS, [], []),
    "tars without index.sqlite": (TARS, ["--no-sqlite"], ["--split-ratio", "2,1,1"]),
    "excluded ones": (TARS, ["--exclude", "0/"], ["--sample-type", "CrudeWebdataset"]),
    "jsonl": (JSONL, [], ["--split-parts", "train:0/.*", "--split-parts", "val:1/.*"]),
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("of", [3, 10])
def test_parts_write_what_one_preparation_writes_byte_for_byte(tmp_path, options, of):
    kind, of_part, of_finish = OPTIONS[options]
    once, parts = write(tmp_path / "once", kind), write(tmp_path / "parts", kind)
    assert run(once, *of_part, *of_finish).exit_code == 0
    for part in reversed(range(of)):
        assert run(parts, "--part", part, "--of", of, *of_part).exit_code == 0
    assert not (parts / ".nv-meta").exists()
    done = run(parts, "--finish", *of_part, *of_finish)
    assert (done.exit_code, done.stderr) == (0, "")
    assert files(parts) == files(once)
    assert (parts / ".nv-meta" / UUID).exists()


def test_a_part_says_what_it_did_and_is_skipped_the_next_time(tmp_path):
    folder = write(tmp_path / "x")
    assert " part 1 of 2: 7 samples in 3 shards, " in run(folder, "--part", 1, "--of", 2).stdout
    (part,) = (folder / indexing.FOLDER).iterdir()
    before = version_of(str(part))
    done = run(folder, "--part", 1, "--of", 2)
    assert done.stdout == f"{folder}, part 1 of 2: 7 samples in 3 shards, was indexed before\n"
    assert version_of(str(part)) == before
    assert "0 samples in 0 shards" in run(folder, "--part", 30, "--of", 64).stdout


def change(folder):
    write_tar(folder / "1" / "3.tar", sample_files(99))


def add(folder):
    write_tar(folder / "1" / "4.tar", sample_files(98))


def remove_index(folder):
    (folder / "1" / "3.tar.idx").unlink()


def damage(folder):
    part = folder / indexing.FOLDER / "5-of-7.part"
    part.write_bytes(part.read_bytes()[:-9])


EVENTS = {change: ([5], 7), add: ([0, 6], 10), remove_index: ([5], 9), damage: ([5], 9)}


@pytest.mark.parametrize("event", EVENTS)
def test_a_dataset_that_changed_after_a_part_is_noticed_and_the_part_made_again(tmp_path, event):
    folder, (outdated, num_samples) = write(tmp_path / "x"), EVENTS[event]
    for number in range(7):
        prepare_part(folder, number, 7, sqlite=True)
    event(folder)
    named = ", ".join(map(str, outdated))
    with pytest.raises(SpecError, match=rf"parts? {named} of 7: .* --part {outdated[0]} --of 7"):
        prepare(folder, sqlite=True, finish=True)
    assert not (folder / ".nv-meta").exists()
    again = [prepare_part(folder, number, 7, sqlite=True) for number in range(7)]
    assert [number for number, one in enumerate(again) if not one.was_indexed] == outdated
    assert prepare(folder, sqlite=True, finish=True).num_samples == num_samples


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([], "no part of it is indexed. Run `energy-data prepare .* --part N --of M`"),
        ([0, 2], r"parts 1, 3 of 4: not indexed\. Run `energy-data prepare .* --part 1 --of 4`"),
    ],
)
def test_missing_parts_are_named(tmp_path, parts, problem):
    folder = write(tmp_path / "x")
    for number in parts:
        prepare_part(folder, number, 4)
    with pytest.raises(SpecError, match=problem):
        prepare(folder, finish=True)
    assert not (folder / ".nv-meta").exists()


def test_parts_without_keys_are_none_for_an_index_by_key(tmp_path):
    folder = write(tmp_path / "x")
    prepare_part(folder, 0, 1, sqlite=False)
    with pytest.raises(SpecError, match=r"other options .*--no-sqlite"):
        prepare(folder, sqlite=True, finish=True)
    prepare_part(folder, 0, 1, sqlite=True)
    assert prepare(folder, finish=True).num_samples == 9


def test_a_part_that_is_killed_leaves_nothing_that_is_taken_for_a_part(tmp_path):
    folder = write(tmp_path / "x")
    script = (
        "import os, pathlib, sys\n"
        "from energy_data.data.prepare import prepare_part\n"
        "kill = lambda done, total: done == 3 and os.kill(os.getpid(), 9)\n"
        "prepare_part(pathlib.Path(sys.argv[1]), 0, 2, sqlite=True, progress=kill)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, folder], check=False).returncode == -9
    prepare_part(folder, 1, 2, sqlite=True)
    with pytest.raises(SpecError, match="part 0 of 2: not indexed"):
        prepare(folder, sqlite=True, finish=True)
    assert len(open_source(folder)) == 9
    assert not prepare_part(folder, 0, 2, sqlite=True).was_indexed
    assert prepare(folder, sqlite=True, finish=True).num_samples == 9
    assert not (folder / indexing.FOLDER).exists()


def test_a_damaged_shard_leaves_no_part(tmp_path):
    folder = write(tmp_path / "x")
    os.truncate(folder / "1" / "5.tar", 700)
    with pytest.raises(StructureError, match=r"1/5\.tar"):
        prepare_part(folder, 0, 2)
    assert list((folder / indexing.FOLDER).iterdir()) == []


def test_a_prepared_dataset_is_prepared_again_in_parts_by_force_only(tmp_path):
    folder = write(tmp_path / "x")
    prepare(folder, split="1,1,0")
    with pytest.raises(SpecError, match="it is prepared"):
        prepare_part(folder, 0, 1)
    for options in ({"force": True}, {"index_only": True}):
        before = (folder / ".nv-meta" / UUID).read_text()
        prepare_part(folder, 0, 1, **options)
        parts = prepare(folder, finish=True, **options).split_parts
        assert Counter(map(len, parts.values())) == Counter([2, 3, 0])
        assert (folder / ".nv-meta" / UUID).read_text() != before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--part", 3], "--part and --of go together"),
        (["--part", 0, "--of", 2, "--finish"], "exclude each other"),
        (["--part", 0, "--of", 2, "--split-ratio", "1,1"], "--split-ratio: a part is only indexed"),
        (["--part", 2, "--of", 2], "there is no part 2 of 2. Give 0 <= part < 2"),
        (["--finish", "--fix-duplicates"], "prepare the dataset at once"),
    ],
)
def test_options_that_do_not_go_together_are_an_error(tmp_path, arguments, problem):
    done = run(write(tmp_path / "x"), *arguments)
    assert done.exit_code in (1, 2)
    assert problem in done.stderr
