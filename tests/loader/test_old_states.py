"""States saved by earlier versions of energy_data go on as the run that saved them went on."""

import json
from pathlib import Path

import pytest

from energy_data.errors import StateMismatchError
from energy_data.loading.checkpoint.run_state import READS
from loader.old_runs import ALONE, PACKED, RUNS, STAGED, batches, loaders, write

SAVED = {
    name: json.loads(path.read_text())
    for name, path in sorted(
        (path.stem, path) for path in (Path(__file__).parent / "old_states").glob("*.json")
    )
}


def test_there_is_a_state_of_each_version():
    versions = {state["version"] for saved in SAVED.values() for state in saved["states"]}
    assert SAVED.keys() == RUNS.keys()
    assert versions == set(READS)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", sorted(name for name, run in RUNS.items() if run[1] > 1))
def test_an_old_state_goes_on_on_any_number_of_ranks(name, ranks, tmp_path):
    going_on = loaders(write(tmp_path, RUNS[name][0]), ranks)
    for loader in going_on:
        loader.restore_state_global(SAVED[name]["states"])
    assert batches(going_on, 24 // ranks) == SAVED[name]["after"]


@pytest.mark.parametrize("name", sorted(RUNS))
def test_ranks_go_on_from_their_own_old_states(name, tmp_path):
    metadataset, ranks, arguments = RUNS[name]
    going_on = loaders(write(tmp_path, metadataset), ranks, **arguments)
    for loader, state in zip(going_on, SAVED[name]["states"], strict=True):
        loader.load_state_dict(state)
    assert batches(going_on, 24 // ranks) == SAVED[name]["after"]


@pytest.mark.parametrize("name", sorted(ALONE))
def test_ranks_that_began_between_rounds_decide_alike_on_an_edit(name, tmp_path):
    edited = STAGED.replace("name: second, for: 8", "name: second, for: 6")
    going_on = loaders(write(tmp_path, edited), RUNS[name][1])
    for loader, state in zip(going_on, SAVED[name]["states"], strict=True):
        with pytest.raises(StateMismatchError, match="ended at 22, which is past"):
            loader.load_state_dict(state)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run[0] == PACKED])
def test_a_stage_of_an_old_state_that_is_renamed_passes_over_no_sample(name, ranks, tmp_path):
    edited = PACKED.replace("name: second", "name: other")
    edited = edited.replace("unit: microbatches", "unit: microbatches\n      resume: ignore")
    going_on = loaders(write(tmp_path, edited), ranks)
    for loader in going_on:
        loader.restore_state_global(SAVED[name]["states"])
    assert batches(going_on, 24 // ranks) == SAVED[name]["after"]
