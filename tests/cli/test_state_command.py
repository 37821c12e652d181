"""`energy-data state`: looking into states."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from loading.runs import loader_of, loaders_of, run
from trees import A, B, batches, samples

from energy_data.cli.main import main
from energy_data.loading.checkpoint.saved_file import read_state
from energy_data.nodes.blend import BlendSpec, Part

BLEND = batches(samples(BlendSpec((Part(A, 2), Part(B)))), 3)


def state(*arguments):
    return CliRunner().invoke(main, ["state", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path):
    """Files of states: `of(loader)` saves one."""

    def of(loader, name="state.json"):
        path = tmp_path / name
        path.write_text(json.dumps(loader.state_dict()))
        return path

    return of


def test_a_state_says_where_the_run_is_and_what_was_drawn(saved):
    loader = loader_of(BLEND, lanes=4)
    run([loader], 8)
    said = state("show", saved(loader)).output.splitlines()
    assert "next micro-batch: 8" in said
    assert "  a: 16 samples drawn, 1.6 epochs of 10" in said
    assert "  b: 8 samples drawn, 2 epochs of 4" in said


def test_the_command_knows_the_nodes_of_a_state_in_a_new_process(saved):
    path = saved(loader_of(BLEND, lanes=4))
    command = [sys.executable, "-m", "energy_data.cli.main", "state", "show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == state("show", path).stdout


def test_states_of_all_ranks_are_one_run(saved):
    loaders = loaders_of(BLEND, 2, lanes=4)
    run(loaders, 4)
    files = [saved(loader, f"{rank}.json") for rank, loader in enumerate(loaders)]
    assert "next micro-batch: 8" in state("show", *files).output
    assert "saved by: rank 1 of 2" in state("show", files[1]).output


def test_a_state_of_torch_is_read_too(tmp_path):
    torch.save(loader_of(BLEND, lanes=4).state_dict(), tmp_path / "state.pt")
    assert "next micro-batch: 0" in state("show", tmp_path / "state.pt").output


def test_a_folder_of_distributed_checkpoint_is_read_too(tmp_path):
    loader = loader_of(BLEND, lanes=4)
    run([loader], 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # there is no process group
        dcp.save({"train": loader, "val": loader_of(BLEND)}, checkpoint_id=tmp_path, no_dist=True)
    assert "next micro-batch: 8" in state("show", tmp_path, "--key", "train").output
    assert "found 'train', 'val'. Pass the `key`" in state("show", tmp_path).output


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b"[" * 900 + b"]" * 900, id="deep list"),
        b"",
        b"nothing",
        b"\x80\x02nothing",
        b"{}",
        b"[]",
    ],
)
def test_a_file_that_is_no_state_is_an_error_that_says_so(tmp_path, text):
    (tmp_path / "state").write_bytes(text)
    refused = state("show", tmp_path / "state")
    assert refused.exit_code == 1
    assert "Pass what" in refused.output or "there is none" in refused.output


def test_the_merged_state_of_all_ranks_restores_any_number(saved, tmp_path):
    loaders = loaders_of(BLEND, 2, lanes=4)
    run(loaders, 4)
    files = [saved(loader, f"{rank}.json") for rank, loader in enumerate(loaders)]
    done = state("merge", *files, "--output", tmp_path / "run.json")
    assert done.output == f"{tmp_path}/run.json: the run at micro-batch 8, 4 lanes\n"
    one, four = loader_of(BLEND, lanes=4), loaders_of(BLEND, 4, lanes=4)
    for loader in (one, *four):
        loader.load_state_dict(read_state(tmp_path / "run.json"))
    assert run([one], 4) == run(four, 1) == run(loaders, 2)


def test_states_that_are_no_whole_run_are_not_merged(saved, tmp_path):
    loaders = loaders_of(BLEND, 2, lanes=4)
    done = state("merge", saved(loaders[1]), "--output", tmp_path / "run.json")
    assert done.exit_code == 1
    assert "it covers 1 of 2 ranks, missing 0" in done.output
    assert not (tmp_path / "run.json").exists()


def test_a_file_that_is_there_is_not_overwritten(saved):
    path = saved(loader_of(BLEND, lanes=4))
    before = path.read_bytes()
    done = state("merge", path, "--output", path)
    assert (done.exit_code, path.read_bytes()) == (1, before)
    assert "File exists" in done.output
