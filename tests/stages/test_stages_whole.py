"""Stages through the calls that users make, over real files."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import islice

import pytest
from webdataset import TarWriter

from energy_data import SpecError, WorkerConfig, get_loader, get_train_dataset

SCRIPT = """
import json, sys
from itertools import islice
from energy_data import WorkerConfig, get_loader, get_train_dataset
dataset = get_train_dataset(
    "run.yaml", batch_size=4, microbatches_per_step=2, worker_config=WorkerConfig(lanes=4)
)
for state in json.load(sys.stdin):
    loader = get_loader(dataset)
    loader.load_state_dict(state)
    print(json.dumps([batch["__key__"] for batch in islice(loader, 12)]))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with two datasets and a run over them, which is in a file of its own."""
    for name in ("web", "books"):
        (tmp_path / name).mkdir()
        with TarWriter(str(tmp_path / name / "shard-0.tar")) as tar:
            for number in range(60):
                tar.write({"__key__": f"{name}-{number}", "txt": "..."})
    (tmp_path / "inner.yaml").write_text(
        "splits: {train: {blend: [{path: books, weight: 3}, {path: web}]}}"
    )
    (tmp_path / "run.yaml").write_text(
        """
splits:
  train:
    staged:
      stages:
        - {name: one, end: 3, blend: [{path: web, weight: {linear: {0: 3, 3: 1}}}, {path: books}]}
        - {name: two, end: 7, path: inner.yaml}
        - {name: three, params: {batch_size: 2}, path: web}
"""
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(**facts):
    facts = {"microbatches_per_step": 2, "worker_config": WorkerConfig(lanes=4), **facts}
    return get_loader(get_train_dataset("run.yaml", batch_size=4, **facts))


@pytest.mark.usefixtures("folder")
def test_a_stage_may_be_a_file_of_its_own_and_weights_may_follow_a_stage():
    loader = start()
    batches = list(islice(loader, 20))
    names = ["one"] * 6 + ["two"] * 8 + ["three"] * 6
    assert [batch["__stage__"][1] for batch in batches] == names
    assert [len(batch["__key__"]) for batch in batches] == [4] * 14 + [2] * 6
    of_two = [key.partition("-")[0] for batch in batches[6:14] for key in batch["__key__"]]
    assert 20 <= of_two.count("books") <= 28


@pytest.mark.usefixtures("folder")
def test_stats_count_a_leaf_over_all_stages():
    loader = start()
    given = [key for batch in islice(loader, 20) for key in batch["__key__"]]
    leaves = loader.stats().leaves
    for name in ("web", "books"):
        drawn = sum(key.startswith(name) for key in given)
        assert leaves[f"{name}:train"].drawn == drawn
        assert leaves[f"{name}:train"].epochs == drawn / 60


def test_it_goes_on_in_a_new_process(folder):
    loader, states, keys = start(), [], []
    for _ in range(24):
        states.append(loader.state_dict())
        keys.append(next(iter(loader))["__key__"])
    around = [0, 5, 6, 7, 10]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps([states[number] for number in around]),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [keys[number : number + 12] for number in around]
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected


@pytest.mark.usefixtures("folder")
def test_stages_do_not_go_with_one_pass_nor_steps_without_their_size():
    with pytest.raises(SpecError, match="stages need an endless stream"):
        start(repeat=False)
    with pytest.raises(SpecError, match="the number of micro-batches in a step is not known"):
        start(microbatches_per_step=None)
    with pytest.raises(SpecError, match="which 4 ranks cannot share evenly"):
        start(worker_config=WorkerConfig(0, 4))
