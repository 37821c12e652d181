"""torch.distributed.checkpoint: saved by real ranks, loaded by any number of them."""

from __future__ import annotations

import json

import pytest
from trees import A, B, batches, not_third, samples

from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.filter import FilterSpec
from loading.runs import loader_of, run

BLEND = BlendSpec((Part(A, 5), Part(B, 2)))
SPEC = batches(FilterSpec(of=samples(BLEND), predicate=not_third), 3)

RANK = """
import json, sys, warnings
from itertools import islice
from pathlib import Path
import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from loading.runs import loader_of
from loading.test_checkpoint import SPEC

warnings.simplefilter("ignore")
folder, load = Path(sys.argv[1]), sys.argv[2] == "load"
distributed.init_process_group("gloo")
number, ranks = distributed.get_rank(), distributed.get_world_size()
loader, model = loader_of(SPEC, number, ranks, 24), {"weight": torch.zeros(3)}
together = {"model": model, "loader": loader}
if load:
    dcp.load(together, checkpoint_id=folder / "checkpoint")
    assert model["weight"].tolist() == [1, 2, 3]
drawn = [(loader.last_batch, batch) for batch in islice(loader, 24 // ranks)]
if not load:
    model["weight"] += torch.tensor([1, 2, 3])
    dcp.save(together, checkpoint_id=folder / "checkpoint")
(folder / f"drawn-{load}-{ranks}-{number}.json").write_text(json.dumps(drawn))
distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, gloo_ranks):
    folder = tmp_path_factory.mktemp("dcp")
    imports = ("torch.distributed.checkpoint",)
    gloo_ranks.run_well(RANK, folder, 4, str(folder), "save", imports=imports)
    for ranks in (4, 2, 1):
        gloo_ranks.run_well(RANK, folder, ranks, str(folder), "load")
    return folder


def drawn(folder, load, ranks):
    given = {}
    for number in range(ranks):
        for g, batch in json.loads((folder / f"drawn-{load}-{ranks}-{number}.json").read_text()):
            given[g] = tuple(batch)
    return dict(sorted(given.items()))


EXPECTED = run([loader_of(SPEC, lanes=24)], rounds=48)


@pytest.mark.parametrize("ranks", [4, 2, 1])
def test_saved_by_four_gloo_ranks_it_goes_on_on_another_number_of_them(folder, ranks):
    assert {**drawn(folder, False, 4), **drawn(folder, True, ranks)} == EXPECTED


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
