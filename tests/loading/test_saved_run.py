"""The nodes of a saved run report what they had drawn and not returned."""

from __future__ import annotations

import json

import pytest
from attrs import evolve, frozen
from trees import (
    batches,
    groups,
    leaf,
    not_fifth,
    not_third,
    packs,
    parts,
    samples,
    selected,
    shares,
    staged,
)

from energy_data.core import spec
from energy_data.errors import StateError, StateMismatchError
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.checkpoint.saved_run import SavedRun
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.leaf_history import held
from energy_data.nodes.passes import ConcatSpec, LimitSpec
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.nodes.unary import UnarySpec
from loading.runs import in_order, loader_of

A, B, C = leaf("a", 40), leaf("b", 23), leaf("c", 9)
PARTS = EncodeSpec(of=samples(BlendSpec((Part(A), Part(B)))), encode=parts)
MIXED = FilterSpec(of=EncodeSpec(of=samples(B), encode=not_fifth), predicate=not_third)
SPLIT = {"limits": {"tokens": 5}, "over_long": "split"}
STREAMS = {
    "packs": batches(packs(samples(A))),
    "packs of streams": batches(
        packs(BlendSpec((Part(samples(A), 2), Part(samples(C), 0), Part(MIXED))))
    ),
    "packs of a blend of parts": groups(
        packs(BlendSpec((Part(samples(A)), Part(samples(C), 0), Part(PARTS))))
    ),
    "packs of parts in packs": batches(packs(packs(PARTS, **SPLIT))),
    "parts": batches(PARTS, 2),
    "groups of packs of parts": groups(packs(PARTS, 9, **SPLIT)),
    "groups of what was selected": groups(selected(PARTS, encode=not_fifth)),
    "selected of packs": batches(selected(packs(samples(BlendSpec((Part(A), Part(B))))))),
    "shares of packs": shares(packs(samples(A), **SPLIT), ((0, 9),), 2),
    "packs of a part": batches(packs(EncodeSpec(of=LimitSpec(of=PARTS, length=900), encode=dict))),
    "packs of one and another": batches(packs(ConcatSpec((LimitSpec(of=PARTS, length=9), MIXED)))),
    "stages": staged(batches(packs(MIXED)), groups(packs(PARTS)), batches(samples(C))),
}


@pytest.mark.parametrize("name", list(STREAMS))
def test_what_was_held_at_every_place_follows_from_the_state_alone(name):
    loader = loader_of(STREAMS[name], lanes=3)
    stream, found = iter(loader), 0
    for _ in range(20):
        next(stream)
        state = json.loads(json.dumps(loader.state_dict()))
        for lane, node in loader._nodes_before(None).items():
            saved = SavedRun(RunState.from_dict(state)).node(lane)
            assert list(held(saved)) == list(held(node))
            found += bool(list(held(node)))
    assert found


@frozen(kw_only=True)
class OfUsersSpec(EncodeSpec):
    """A kind that is not ours."""

    kind = "of_users"


@frozen(kw_only=True)
class NeedsTableSpec(UnarySpec):
    """A kind that needs an object which no state can have."""

    kind = "needs_table"
    table: object

    def build(self, context):
        len(self.table)
        return self.of.build(context)


def edited(body, state):
    """Continue under a stage of another name, which only leaves can do."""
    loader = loader_of(StagedSpec(stages=(Stage(name="other", of=body, begin=0),)), lanes=3)
    before = loader.state_dict()
    try:
        loader.load_state_dict(state, on_mismatch="keep_matching")
    except StateError:
        assert loader.state_dict() == before
        raise
    return loader


def test_what_a_kind_of_the_user_holds_comes_back_to_its_leaves():
    body = batches(packs(OfUsersSpec(of=samples(A), encode=dict)))
    loader = loader_of(body, lanes=3)
    in_order([loader], 4)
    pending = [list(held(node)) for node in loader._nodes_before(None).values()]
    again = edited(body, loader.state_dict())
    returned = [place["root"]["returned"] for place in again._host.states().values()]
    assert any(returned)
    assert [len(marks) for marks in returned] == [len(marks) for marks in pending]


def test_a_kind_that_no_imported_class_has_is_refused_and_nothing_moves(monkeypatch):
    loader = loader_of(batches(packs(OfUsersSpec(of=samples(A), encode=dict))), lanes=3)
    in_order([loader], 4)
    monkeypatch.delitem(spec._KINDS, "of_users")
    with pytest.raises(StateError, match="has a 'of_users', which no imported class"):
        edited(batches(packs(samples(A))), loader.state_dict())


def test_a_tree_that_cannot_be_built_again_is_refused_and_nothing_moves():
    loader = loader_of(batches(packs(NeedsTableSpec(of=samples(A), table={1, 2}))), lanes=3)
    in_order([loader], 4)
    with pytest.raises(StateMismatchError, match="cannot be built again without its functions"):
        edited(batches(packs(samples(A))), loader.state_dict())


@pytest.mark.parametrize(
    "mark", [(), (5,), (1, 0, 0), (-1, 0, 0), (0, -1, 0), (0, 0, -4), (0, 0, 0, 0)]
)
def test_references_that_are_damaged_are_a_state_error(mark):
    loader = loader_of(STREAMS["packs"], lanes=3)
    in_order([loader], 4)
    saved = RunState.from_dict(loader.state_dict())
    at = saved.places[1]["root/of"]
    place = {**saved.places[1], "root/of": {**at, "pending": (*at["pending"], mark)}}
    with pytest.raises(StateError, match="damaged"):
        SavedRun(evolve(saved, places={**saved.places, 1: place})).past(1)
