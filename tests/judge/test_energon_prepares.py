"""The real Energon and we write the same beside the same tars."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile

import pytest
from click.testing import CliRunner

from energy_data.cli.main import main

pytestmark = pytest.mark.slow

ANSWERS = {
    "fields": ["3,1,1", "y", 0, "y", "png", "json[captions][0]"],
    "either": ["3,1,1", "", 10, "y", "jpg,png", "txt", "", ""],
    "crude": ["3,2,0", "y", 11],
    "none": ["1,2,2", "n"],
    "functions": ["3,1,1", "y", 8, "n"],
}
OPTIONS = {
    "type": [
        "--sample-type",
        "CaptioningSample",
        "--field-map",
        '{"image": "png", "caption": "txt"}',
    ],
    "parts": ["--split-parts", "train:s-[0-2].*", "--split-parts", "val:s-{3,4}"],
    "shuffled": ["--split-ratio", "3,1,1", "--shuffle-tars", "--sample-type", "CrudeWebdataset"],
    "excluded": ["--split-ratio", "1,1,0", "--exclude", "s-[13]", "--skip-dataset-yaml"],
    "named": [
        "--split-ratio",
        "3,1,1",
        "--sample-type",
        "CrudeWebdataset",
        "--dataset-yaml-name",
        "x.yaml",
    ],
}
OPTIONS["type"] += ["--split-ratio", "3,1,1"]
OPTIONS["parts"] += ["--sample-type", "CrudeWebdataset"]


@pytest.mark.parametrize("case", [*ANSWERS, *OPTIONS])
def test_options_and_answers_write_the_same(energon, tmp_path, case):
    answers = ANSWERS.get(case)
    options = OPTIONS.get(case, [])
    if answers is None:
        options = [*options, "--non-interactive"]
    for name in ("ours", "theirs"):
        write_small(tmp_path / name)
    energon.prepares(tmp_path / "theirs", *options, answers=answers)
    asking = [] if answers is None else ["--interactive"]
    said = "".join(f"{answer}\n" for answer in answers or [])
    done = CliRunner().invoke(
        main, ["prepare", str(tmp_path / "ours"), *options, *asking], input=said
    )
    assert done.exit_code == 0, done.output
    ours, theirs = written(tmp_path / "ours"), written(tmp_path / "theirs")
    assert ours == theirs


def write_small(folder):
    folder.mkdir()
    for shard in range(5):
        with tarfile.open(folder / f"s-{shard}.tar", "w") as tar:
            for number in range(shard + 1):
                for extension in ("png", "jpg", "txt", "json"):
                    member = tarfile.TarInfo(f"{shard}-{number}.{extension}")
                    member.size = 2
                    tar.addfile(member, io.BytesIO(b"{}"))


def written(folder):
    """Return what is in the files of a prepared dataset, all that should be equal of it."""
    meta = folder / ".nv-meta"
    files = {path.name: path.read_text() for path in meta.glob("*.yaml")}
    files["counts"] = list(json.loads((meta / ".info.json").read_text())["shard_counts"].items())
    files["index"] = {path.name: path.read_bytes() for path in folder.glob("*.idx")}
    files["functions"] = (meta / "sample_loader.py").exists()
    database = sqlite3.connect(meta / "index.sqlite")
    for table in ("samples", "sample_parts"):
        files[table] = sorted(database.execute(f"SELECT * FROM {table}").fetchall())
    said = "SELECT type, name, tbl_name FROM sqlite_master"
    files["schema"] = sorted(database.execute(said).fetchall())
    database.close()
    return files


def test_duplicate_keys_are_mended_alike(energon, tmp_path):
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        for shard in range(2):
            write_small(tmp_path / name / str(shard))
    options = ["--split-ratio", "1,0,0", "--non-interactive", "--sample-type", "CrudeWebdataset"]
    options += ["--fix-duplicates"]
    try:
        energon.prepares(tmp_path / "theirs", *options)
    except AssertionError as error:
        if "numba" in str(error):
            pytest.skip("its tar patcher needs numba")
        raise
    done = CliRunner().invoke(main, ["prepare", str(tmp_path / "ours"), *options])
    assert done.exit_code == 0, done.output
    assert written(tmp_path / "ours") == written(tmp_path / "theirs")
