"""torch.distributed.checkpoint: saved by real ranks, loaded by any number of them."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from trees import A, B, batches, not_third, samples

from energy_data import SpecError, StateError, StateMismatchError, read_state
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.filter import FilterSpec
from loading.runs import loader_of, run
from loading.steps import STREAM, ranks_of, take

BLEND = BlendSpec((Part(A, 5), Part(B, 2)))
SPEC = batches(FilterSpec(of=samples(BLEND), predicate=not_third), 3)

RANK = """
import json, sys, warnings
from itertools import islice
from pathlib import Path
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from energy_data import read_state
from loading.runs import loader_of
from loading.test_checkpoint import SPEC

warnings.simplefilter("ignore")
folder, way = Path(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo")
number, ranks = distributed.get_rank(), distributed.get_world_size()
lanes = None if way == "read" else 24
loader, model = loader_of(SPEC, number, ranks, lanes), {"weight": torch.zeros(3)}
together = {"model": model, "loader": loader}
if way == "read":
    loader.load_state_dict(read_state(folder / "checkpoint"))
elif way == "load":
    dcp.load(together, checkpoint_id=folder / "checkpoint")
    assert model["weight"].tolist() == [1, 2, 3]
drawn = [(loader.last_batch, batch) for batch in islice(loader, 24 // ranks)]
if way == "save":
    model["weight"] += torch.tensor([1, 2, 3])
    dcp.save(together, checkpoint_id=folder / "checkpoint")
(folder / f"drawn-{way}-{ranks}-{number}.json").write_text(json.dumps(drawn))
distributed.destroy_process_group()
"""

# By default, 2 ranks have 32 lanes and 1 rank has 16, which are not those that were saved.
WAYS = [("load", 4), ("load", 2), ("load", 1), ("read", 2), ("read", 1)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, gloo_ranks):
    folder = tmp_path_factory.mktemp("dcp")
    imports = ("torch.distributed.checkpoint",)
    gloo_ranks.run_well(RANK, folder, 4, str(folder), "save", imports=imports)
    for way, ranks in WAYS:
        gloo_ranks.run_well(RANK, folder, ranks, str(folder), way)
    return folder


def drawn(folder, way, ranks):
    given = {}
    for number in range(ranks):
        for g, batch in json.loads((folder / f"drawn-{way}-{ranks}-{number}.json").read_text()):
            given[g] = tuple(batch)
    return dict(sorted(given.items()))


EXPECTED = run([loader_of(SPEC, lanes=24)], rounds=48)


@pytest.mark.parametrize(("way", "ranks"), WAYS)
def test_saved_by_four_gloo_ranks_it_goes_on_on_another_number_of_them(folder, way, ranks):
    assert {**drawn(folder, "save", 4), **drawn(folder, way, ranks)} == EXPECTED


SCOPE_RANK = """
import json, sys
from pathlib import Path
from torch import distributed
from loading.runs import loader_of, run
from loading.test_checkpoint import SPEC

distributed.init_process_group("gloo")
number, ranks = distributed.get_rank(), distributed.get_world_size()
loader = loader_of(SPEC, number, ranks)
run([loader], 3)
state = loader.state_dict(scope="run")
assert loader.save_state_rank() == state
(Path(sys.argv[1]) / f"state-{number}.json").write_text(json.dumps(state))
run([loader], number)  # so they are at different places
assert loader.save_state_rank() == loader.state_dict() != state
distributed.destroy_process_group()
"""


def test_the_state_of_the_run_is_the_same_on_all_ranks_and_restores_any_number(
    tmp_path, gloo_ranks
):
    gloo_ranks.run_well(SCOPE_RANK, tmp_path, 2, str(tmp_path))
    first, second = (json.loads((tmp_path / f"state-{n}.json").read_text()) for n in range(2))
    assert first == second
    for ranks in (1, 3):
        loaders = [loader_of(SPEC, number, ranks) for number in range(ranks)]
        for loader in loaders:
            loader.load_state_dict(first)
        found = run(loaders, 6 // ranks)
        assert found == {number: EXPECTED[number] for number in range(6, 12)}


def test_the_state_of_the_run_needs_a_group_and_that_of_a_rank_does_not():
    loader = loader_of(SPEC, 1, 2)
    assert loader.save_state_rank() == loader.state_dict()
    with pytest.raises(SpecError, match=r"the states of 2 ranks, but there is no process group"):
        loader.state_dict(scope="run")


def test_a_state_is_of_the_rank_or_of_the_run():
    with pytest.raises(SpecError, match="scope: must be 'rank' or 'run', got 'node'"):
        loader_of(SPEC).state_dict(scope="node")


def test_ranks_save_different_keys_and_all_else_is_the_same():
    states = [loader_of(SPEC, number, 4).state_dict() for number in range(4)]
    lanes = [set(state.pop("places")) for state in states]
    assert sum(map(len, lanes)) == len(set().union(*lanes)) == 24
    assert states[0] == states[1] == states[2] == states[3]
    # Nothing inside a lane's entry is taken apart: a loader that has not begun asks for the same.
    loader = loader_of(SPEC, 0, 4)
    run([loader], 20)
    for row in loader.state_dict()["places"].values():
        assert all(isinstance(value, int | str) or value == [] for value in row)


@pytest.fixture
def saved(tmp_path):
    """Return a function that saves values into a folder, from this process alone."""

    def saved(**values):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # there is no process group
            dcp.save(values, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        return tmp_path / "checkpoint"

    return saved


def after(spec=SPEC, batches=10):
    loader = loader_of(spec, lanes=4)
    run([loader], batches)
    return loader


def test_the_state_in_a_folder_is_the_one_saved(saved):
    (steps,) = ranks_of(STREAM, 1, target=10)
    take([steps], 3)
    folder = saved(model={"tree": torch.ones(2)}, train=after(), steps=steps)
    assert read_state(folder, key="train") == after().state_dict()
    assert read_state(folder, key="steps") == steps.state_dict()


def test_a_state_that_was_saved_by_itself_has_no_key(saved):
    assert read_state(saved(**after().state_dict())) == after().state_dict()


def test_the_state_in_a_folder_is_restored_after_an_edit_as_on_mismatch_says(saved):
    folder, edited = saved(loader=after()), loader_of(batches(samples(A), 3), lanes=None)
    with pytest.raises(StateMismatchError, match="leaf 'b' is gone"):
        edited.load_state_dict(read_state(folder))
    edited.load_state_dict(read_state(folder), on_mismatch="keep_matching")
    assert edited.num_lanes == 4


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda folder: (folder / ".metadata").unlink(), "has no file `.metadata`"),
        (lambda folder: (folder / ".metadata").write_bytes(b""), "cannot read it (EOFError"),
        (lambda folder: (folder / ".metadata").write_bytes(b"cno\nsuch\n."), "ModuleNotFoundError"),
        (lambda folder: (folder / "__0_0.distcp").unlink(), "cannot read it (FileNotFoundError"),
        (lambda folder: (folder / "__0_0.distcp").write_bytes(b"0" * 9), "cannot read it ("),
    ],
)
def test_a_damaged_folder_is_an_error(saved, damage, found):
    folder = saved(loader=after())
    damage(folder)
    with pytest.raises(StateError, match=re.escape(found)):
        read_state(folder)


def test_a_folder_without_the_loader_is_an_error_that_names_those_it_has(saved):
    folder = saved(train=after(), val=after())
    with pytest.raises(StateError, match="must have one loader, found 'train', 'val'"):
        read_state(folder)
    with pytest.raises(StateError, match="must have a loader 'loader', found 'train', 'val'"):
        read_state(folder, key="loader")


def test_no_object_in_a_folder_is_unpickled(saved):
    state = after().state_dict()
    folder = saved(loader={**state, "places": {**state["places"], "0": Path("no plain data")}})
    with pytest.raises(StateError, match="UnpicklingError"):
        read_state(folder)
