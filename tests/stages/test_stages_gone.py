"""Leaves that an edit takes out and a later one puts back go on where they were."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest
from damaging import signed
from loading.runs import in_order, loaders_of
from trees import batches, leaf, samples

from energy_data.errors import StateError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec

KEEPING = {"on_mismatch": "keep_matching"}
X, Y, Z = leaf("x", 100), leaf("y", 60), leaf("z", 80)


def blend(*leaves):
    return batches(samples(BlendSpec(tuple(map(Part, leaves)))))


def plan(*stages):
    begins = [0, *(end for _, end, _ in stages)]
    return StagedSpec(
        stages=tuple(
            Stage(name=name, of=of, begin=begin, end=end)
            for (name, end, of), begin in zip(stages, begins, strict=False)
        ),
    )


def saved(loaders):
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


def restored(spec, states, ranks, *, own=False, **facts):
    loaders = loaders_of(spec, ranks, lanes=4)
    for number, loader in enumerate(loaders):
        if own:
            loader.load_state_dict(states[number], **facts)
        else:
            loader.restore_state_global(states, **facts)
    return loaders


def of_x(given):
    return [key for batch in given for key in batch if key.startswith("x")]


PLAIN = (blend(X, Y), blend(Y), blend(Y, Z), blend(X, Z))
STAGED = tuple(plan(("a", None, body)) for body in PLAIN)
LATER = (
    plan(("a", 8, blend(X, Y)), ("b", None, blend(Y))),
    *(plan(("c", None, body)) for body in PLAIN[1:]),
)


@pytest.mark.parametrize("specs", [PLAIN, STAGED, LATER])
@pytest.mark.parametrize(("ranks", "own"), [(1, False), (2, True), (2, False)])
def test_a_leaf_taken_out_in_one_edit_and_put_back_two_later_goes_on(specs, ranks, own):
    loaders = loaders_of(specs[0], ranks, lanes=4)
    before = of_x(in_order(loaders, 8 // ranks))
    assert before
    for spec in specs[1:-1]:
        loaders = restored(spec, saved(loaders), ranks, own=own, on_mismatch="keep_matching")
        loaders = restored(spec, saved(loaders), ranks, own=own)  # saved again as it is
        assert not of_x(in_order(loaders, 4 // ranks))
    loaders = restored(specs[-1], saved(loaders), 3 - ranks, on_mismatch="keep_matching")
    after = of_x(in_order(loaders, 16 // (3 - ranks)))
    assert after
    assert not set(before) & set(after)
    alone = of_x(in_order(loaders_of(blend(X), 1, lanes=4), 32))
    assert set(before) | set(after) <= set(alone)
    state = saved(loaders)
    assert "x" not in str([entry for entry in state[0]["start"] if entry[0] == ""])


def test_another_dataset_under_the_id_begins():
    (loader,) = loaders_of(PLAIN[0], 1, lanes=4)
    in_order([loader], 8)
    (loader,) = restored(PLAIN[1], saved([loader]), 1, on_mismatch="keep_matching")
    other = blend(leaf("x", 101), Y)
    (again,) = restored(other, saved([loader]), 1, on_mismatch="keep_matching")
    assert of_x(in_order([again], 8)) == of_x(in_order(loaders_of(other, 1, lanes=4), 8))


def test_strict_carries_a_leaf_of_a_stage_ahead_that_is_put_back():
    first = plan(("a", None, blend(X, Y)))
    (loader,) = loaders_of(first, 1, lanes=4)
    before = of_x(in_order([loader], 8))
    (loader,) = restored(plan(("b", None, blend(Y))), saved([loader]), 1, **KEEPING)
    in_order([loader], 4)
    ahead = plan(("b", 16, blend(Y)), ("c", None, blend(X)))
    (loader,) = restored(ahead, saved([loader]), 1)
    assert not set(before) & set(of_x(in_order([loader], 16)))


def test_a_stage_that_restarts_a_leaf_does_not_lose_how_far_it_was_in_others():
    (loader,) = loaders_of(plan(("a", 8, blend(X)), ("b", None, blend(Y))), 1, lanes=4)
    before = of_x(in_order([loader], 12))
    restarting = Stage(name="c", of=blend(X), begin=16, on_enter="restart")
    only_there = StagedSpec(stages=(Stage(name="b", of=blend(Y), begin=0, end=16), restarting))
    (loader,) = restored(only_there, saved([loader]), 1, **KEEPING)
    in_order([loader], 2)
    (loader,) = restored(
        plan(("b", 16, blend(Y)), ("d", None, blend(X))), saved([loader]), 1, **KEEPING
    )
    after = of_x(in_order([loader], 10))
    assert after
    assert not set(before) & set(after)


def edited_once():
    (loader,) = loaders_of(PLAIN[0], 1, lanes=4)
    in_order([loader], 7)
    (loader,) = restored(PLAIN[1], saved([loader]), 1, on_mismatch="keep_matching")
    in_order([loader], 4)
    (state,) = saved([loader])
    return state, next(n for n, entry in enumerate(state["start"]) if entry[:2] == ["", "gone"])


def is_refused(state):
    for spec in (PLAIN[1], PLAIN[3]):
        (loader,) = loaders_of(spec, 1, lanes=4)
        before = saved([loader])
        with pytest.raises(StateError, match="damaged"):
            loader.load_state_dict(signed(state), on_mismatch="keep_matching")
        assert saved([loader]) == before


@pytest.mark.parametrize(
    "said", [5, None, "xy", {"x": 1}, ["x"], ["x", None], [1, "a"], ["x", "p", "y", "q"], []]
)
def test_damaged_names_of_leaves_that_are_gone_are_a_state_error(said):
    state, number = edited_once()
    state["start"][number][2] = json.dumps(said)
    is_refused(state)


@pytest.mark.parametrize("drawn", [5, None, "a", [], [1, 2], [None], ["1"], [-5], [1.5], [1 << 99]])
def test_damaged_numbers_of_leaves_that_are_gone_are_a_state_error(drawn):
    state, number = edited_once()
    row = state["places"]["0"]
    at = 3 + row[3:-1:2].index(number) * 2
    lacking = deepcopy(state)
    row[at + 1] = json.dumps(drawn)
    is_refused(state)
    del lacking["places"]["0"][at : at + 2]
    is_refused(lacking)


@pytest.mark.parametrize("clock", [-1, "1", None, 1.5, True, [1]])
def test_a_damaged_beginning_of_rounds_is_a_state_error(clock):
    state, _ = edited_once()
    (said,) = (entry for entry in state["start"] if entry[:2] == ["", "clock"])
    said[2] = clock
    is_refused(state)


def test_a_micro_batch_below_none_is_a_state_error():
    state, _ = edited_once()
    for lane, row in state["places"].items():
        row[0] = int(lane) - 4
    is_refused(state)
