"""States restored lane by lane on other ranks, as torch.distributed.checkpoint does: all alike."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import batches, leaf, samples

from energy_data.errors import StateMismatchError
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from loading.runs import in_order, loaders_of
from loading.steps import STREAM, ranks_of, take

LANES = 12
BODIES = {name: batches(samples(leaf(name, 70))) for name in "ab"}


def plan(end_of_a, resume="strict"):
    stages = (
        Stage(name="a", of=BODIES["a"], begin=0, end=end_of_a),
        Stage(name="b", of=BODIES["b"], begin=end_of_a, end=None),
    )
    return StagedSpec(stages=stages, resume=resume)


def saved_on(ranks, at, end_of_a=12):
    """Return what ranks save after `at[1]` batches each; before, one had played `at[0]` alone."""
    spec = plan(end_of_a)
    loaders = loaders_of(spec, 1, LANES)
    in_order(loaders, at[0])
    whole = loaders[0].state_dict()
    loaders = loaders_of(spec, ranks, LANES)
    for loader in loaders:
        loader.restore_state_global(whole)
    in_order(loaders, at[1])
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


def by_lane(states, rank, ranks):
    """Return of a checkpoint what a rank loads: the rows of its lanes; of the rest, anybody's."""
    rows = {lane: row for state in states for lane, row in state["places"].items()}
    places = {lane: row for lane, row in rows.items() if int(lane) % ranks == rank}
    return {**states[rank % len(states)], "places": places}


def decision(loader, restore, state):
    try:
        restore(loader, state)
    except StateMismatchError as error:
        return str(error)
    return loader.state_dict()


DIVISORS = st.sampled_from([1, 2, 3, 4, 6, 12])


@settings(max_examples=60, deadline=None)
@given(
    before=DIVISORS,
    now=DIVISORS,
    alone=st.integers(0, 5),
    rounds=st.integers(0, 5),
    end=st.sampled_from([12, 24]),
    rule=st.sampled_from(["strict", "ablation"]),
)
def test_each_rank_decides_from_the_rows_of_its_lanes_as_from_the_whole(
    before, now, alone, rounds, end, rule
):
    states = saved_on(before, (alone, rounds))
    mine, whole = (loaders_of(plan(end, rule), now, LANES) for _ in range(2))
    for rank, (loader, other) in enumerate(zip(mine, whole, strict=True)):
        own = by_lane(states, rank, now)
        found = decision(loader, lambda to, said: to.load_state_dict(said), own)
        assert found == decision(other, lambda to, said: to.restore_state_global(said), states)


def test_ranks_that_load_their_lanes_refuse_together_what_leads_back():
    states = saved_on(2, (0, 5), end_of_a=4)  # at micro-batch 10: stage a is over
    for rank, loader in enumerate(loaders_of(plan(8), 4, LANES)):
        with pytest.raises(StateMismatchError, match="saved, at micro-batch 10 of the run"):
            loader.load_state_dict(by_lane(states, rank, 4))


def test_ranks_that_load_their_lanes_go_on_together_at_a_place_that_is_no_multiple_of_them():
    states = saved_on(2, (1, 2))  # at micro-batch 5, on 2 ranks
    edited = plan(8)
    loaders = loaders_of(edited, 4, LANES)
    for rank, loader in enumerate(loaders):
        loader.load_state_dict(by_lane(states, rank, 4))
    whole = in_order(loaders_of(edited, 1, LANES), 25)
    assert in_order(loaders, 5) == whole[5:]


@pytest.mark.parametrize(("before", "now"), [(1, 4), (2, 4), (4, 6)])
def test_steps_begin_at_the_same_place_on_ranks_that_load_their_lanes_of_a_run_without_steps(
    before, now
):
    loaders = loaders_of(STREAM, before, LANES)
    in_order(loaders, 5)
    states = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
    mine, whole = (ranks_of(STREAM, now, target=20) for _ in range(2))
    for rank, (loader, other) in enumerate(zip(mine, whole, strict=True)):
        loader.load_state_dict(by_lane(states, rank, now))
        other.restore_state_global(states)
        assert loader.state_dict() == other.state_dict()
    assert take(mine, 10) == take(whole, 10)


def test_between_steps_other_ranks_go_on_from_their_lanes_as_from_the_whole():
    loaders = ranks_of(STREAM, 2, target=20)
    while not take(loaders, 1)[0][0][1].is_last:
        pass
    states = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
    mine, whole = (ranks_of(STREAM, 4, target=20) for _ in range(2))
    for rank, (loader, other) in enumerate(zip(mine, whole, strict=True)):
        loader.load_state_dict(by_lane(states, rank, 4))
        other.restore_state_global(states)
        assert loader.state_dict() == other.state_dict()
    assert take(mine, 10) == take(whole, 10)
