"""Which edits of its stages a saved run bears, by each rule."""

from __future__ import annotations

import json
import logging
import re

import pytest
from attrs import evolve
from damaging import signed
from loading.runs import in_order, loader_of, loaders_of
from trees import batches, leaf, packs, samples

from energy_data.errors import StateError, StateMismatchError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec

X, Y, Z = leaf("x", 100), leaf("y", 60), leaf("z", 80)
BODY = {"x": batches(samples(X)), "y": batches(samples(Y), 2), "z": batches(samples(Z))}
MIXED = batches(samples(BlendSpec((Part(X), Part(Z)))))


def plan(*stages, resume="strict"):
    """Stages as (name, end) or (name, end, body)."""
    begin, built = 0, []
    for name, end, *body in stages:
        of = body[0] if body else BODY[name[0]]
        built.append(Stage(name=name, of=of, begin=begin, end=end))
        begin = end
    return StagedSpec(stages=tuple(built), resume=resume)


BEFORE = plan(("x", 10), ("y", 20), ("z", None))
KEEPING = {"on_mismatch": "keep_matching"}


def state_at(batch, spec=BEFORE):
    loader = loader_of(spec, lanes=4)
    in_order([loader], batch)
    return json.loads(json.dumps(loader.state_dict()))


def goes_on(state, spec, count=15, **facts):
    loader = loader_of(spec, lanes=4)
    loader.load_state_dict(state, **facts)
    return in_order([loader], count)


EDITS_AHEAD = {
    "the end of the stage being played moves away": plan(("x", 10), ("y", 28), ("z", None)),
    "it moves nearer": plan(("x", 10), ("y", 16), ("z", None)),
    "a later stage is renamed": plan(("x", 10), ("y", 20), ("zebra", None, BODY["z"])),
    "a later stage has another mixture": plan(("x", 10), ("y", 20), ("z", None, MIXED)),
    "a stage is put in between": plan(("x", 10), ("y", 20), ("x2", 23), ("z", None)),
    "later stages are taken out": plan(("x", 10), ("y", None)),
}


@pytest.mark.parametrize("edit", EDITS_AHEAD)
def test_strict_takes_what_lies_ahead_as_if_it_had_always_been_so(edit):
    spec = EDITS_AHEAD[edit]
    expected = in_order([loader_of(spec, lanes=4)], 30)
    assert goes_on(state_at(15), spec) == expected[15:]


@pytest.mark.parametrize("name", ["y10", "y/10"])
def test_a_stage_ahead_is_free_although_its_name_begins_with_that_of_one_played(name):
    was = plan(("y", 16), (name, None))
    now = plan(("y", 16), (name, None, batches(packs(samples(X)))))
    expected = in_order([loader_of(now, lanes=4)], 30)
    assert goes_on(state_at(15, was), now) == expected[15:]


def test_what_a_stage_with_a_slash_in_its_name_has_drawn_is_counted_once():
    drawn = plan(("x", 8), ("x/2", None))
    expected = in_order([loader_of(BODY["x"], lanes=4)], 24)
    given = goes_on(state_at(16, drawn), plan(("x3", None)), 8, **KEEPING)
    assert given == expected[16:]


EDITS_BEHIND = {
    "stage 'x' is over as number 0, and it is gone": plan(("x1", 10), ("y", 20), ("z", None)),
    "stage 'x' is over as number 0, and it is now number 1": plan(("y", 10), ("x", 20), ("z", 30)),
    "stage 'x' is over; end was 10, is 12": plan(("x", 12), ("y", 20), ("z", None)),
    "stage 'x' is over; leaf 'z' is new": plan(("x", 10, MIXED), ("y", 20), ("z", None)),
    "stage 'y' is being played; leaf 'y' is gone": plan(("x", 10), ("y", 20, MIXED), ("z", None)),
    "stage 'y' is being played; end was 20, is 12, which the run has passed": plan(
        ("x", 10), ("y", 12), ("z", None)
    ),
    "stage 'y' is being played; end was 20, is 15. To begin another": plan(
        ("x", 10), ("y", 15), ("z", None)
    ),
    "stage 'y' is being played as number 1, and it is gone": plan(
        ("x", 10), ("y1", 20), ("z", None)
    ),
}


@pytest.mark.parametrize("problem", EDITS_BEHIND)
def test_strict_refuses_what_was_played_to_be_edited_and_nothing_moves(problem):
    loader = loader_of(EDITS_BEHIND[problem], lanes=4)
    in_order([loader], 3)
    before = loader.state_dict()
    with pytest.raises(StateMismatchError) as caught:
        loader.load_state_dict(state_at(15))
    assert problem in str(caught.value)
    assert "at micro-batch 15 of the run (resume: strict)" in str(caught.value)
    assert loader.state_dict() == before


def test_parameters_and_seeds_of_what_was_played_must_stay():
    stages = tuple(
        evolve(stage, params={"seq_len": 4}, microbatches_per_step=1) for stage in BEFORE.stages
    )
    spec = evolve(BEFORE, stages=stages)
    longer = evolve(stages[1], params={"seq_len": 8, "new": 1}, seed=5)
    changed = evolve(spec, stages=(stages[0], longer, stages[2]))
    with pytest.raises(StateMismatchError) as caught:
        goes_on(state_at(15, spec), changed)
    assert "stage 'y' is being played; seq_len was 4, is 8" in str(caught.value)
    assert "stage 'y' is being played; seed was None, is 5" in str(caught.value)
    assert "new" not in str(caught.value).replace("new stage", "")


def test_an_ablation_that_begins_at_the_saved_state_equals_the_continuous_run():
    continuous = plan(("x", 5), ("z", None))
    expected = in_order([loader_of(continuous, lanes=4)], 25)
    state = state_at(5, plan(("x", None)))
    with pytest.raises(StateMismatchError, match="resume: ablation"):
        goes_on(state, continuous)
    assert goes_on(state, evolve(continuous, resume="ablation"), 20) == expected[5:]


@pytest.mark.parametrize(("at", "said"), [(4, "has passed"), (6, None)])
def test_an_ablation_begins_neither_before_the_saved_state_nor_must_it_at_once(at, said):
    spec = plan(("x", at), ("z", None), resume="ablation")
    state = state_at(5, plan(("x", None)))
    if said is None:
        assert goes_on(state, spec) == in_order([loader_of(spec, lanes=4)], 20)[5:]
    else:
        with pytest.raises(StateMismatchError, match=said):
            goes_on(state, spec)


def test_a_state_saved_exactly_at_a_boundary_is_of_the_next_stage_which_is_still_free():
    state = state_at(10)
    spec = plan(("x", 10), ("w", 20, MIXED), ("z", None))
    assert goes_on(state, spec) == in_order([loader_of(spec, lanes=4)], 25)[10:]
    assert goes_on(state, BEFORE) == in_order([loader_of(BEFORE, lanes=4)], 25)[10:]


def test_a_state_from_before_the_first_batch_bears_any_plan():
    spec = plan(("z", 3), ("x", None))
    assert goes_on(state_at(0), spec) == in_order([loader_of(spec, lanes=4)], 15)


def test_keep_matching_lets_leaves_go_on_by_their_ids_and_says_so(caplog):
    spec = plan(("x", 10, MIXED), ("q", None, MIXED))
    with caplog.at_level(logging.INFO):
        given = goes_on(state_at(15), spec, 20, **KEEPING)
    of_x = [key for batch in given for key in batch if key.startswith("x")]
    before = [key for batch in in_order([loader_of(BEFORE, lanes=4)], 10) for key in batch]
    assert not set(of_x) & set(before)
    assert "leaves that continue where they were: 2" in caplog.text
    assert "leaf 'y' is gone" in caplog.text


@pytest.mark.parametrize("facts", [{}, KEEPING])
@pytest.mark.parametrize("rule", ["strict", "ablation"])
def test_no_rule_lets_a_run_go_back_to_a_stage_that_is_over(rule, facts):
    spec = plan(("x", 20), ("y", None), resume=rule)
    with pytest.raises(StateMismatchError, match="stage 'x' is over"):
        goes_on(state_at(15), spec, **facts)


def test_a_leaf_dropped_from_the_stages_goes_on_from_there_in_a_plain_tree():
    before = [key for batch in in_order([loader_of(BEFORE, lanes=4)], 30) for key in batch]
    given = goes_on(state_at(30), MIXED, 10, on_mismatch="keep_matching")
    assert not {key for batch in given for key in batch} & set(before)


def test_carried_counts_survive_the_next_save_and_the_next_edit():
    edited = plan(("x", 10, MIXED), ("q", None, MIXED))
    first = loader_of(edited, lanes=4)
    first.load_state_dict(state_at(15), **KEEPING)
    seen = [key for batch in in_order([first], 8) for key in batch]
    state = json.loads(json.dumps(first.state_dict()))
    assert goes_on(state, edited, 9) == in_order([first], 9)
    ahead = plan(("x", 10, MIXED), ("q", 30, MIXED), ("z", None, MIXED))
    then = [key for batch in goes_on(state, ahead, 12) for key in batch]
    assert not set(then) & set(seen)


def test_a_run_without_stages_goes_on_as_the_stage_default():
    body = batches(samples(BlendSpec((Part(X, 2), Part(Y)))))
    continuous = plan(("default", 7, body), ("z", None))
    expected = in_order([loader_of(continuous, lanes=4)], 22)
    state = state_at(7, body)
    assert goes_on(state, evolve(continuous, resume="ablation")) == expected[7:]
    with pytest.raises(StateMismatchError, match="resume: ablation"):
        goes_on(state, continuous)
    later = plan(("default", 9, body), ("z", None))
    assert goes_on(state, later) == in_order([loader_of(later, lanes=4)], 22)[7:]


def test_keep_matching_takes_a_state_without_stages_too():
    state = state_at(9, MIXED)
    before = {key for batch in in_order([loader_of(MIXED, lanes=4)], 9) for key in batch}
    spec = plan(("z", 12), ("x", None))
    given = goes_on(state, spec, 12, **KEEPING)
    assert not before & {key for batch in given for key in batch}


def test_a_stage_that_restarts_goes_on_in_its_own_order_when_another_is_edited():
    def restarting(of_x):
        spec = plan(("x", 10, of_x), ("y", None))
        return evolve(spec, stages=(spec.stages[0], evolve(spec.stages[1], on_enter="restart")))

    whole = in_order([loader_of(restarting(BODY["x"]), lanes=4)], 40)
    state = state_at(16, restarting(BODY["x"]))
    given = goes_on(state, restarting(MIXED), 24, **KEEPING)
    assert sorted(sum(given, ())) == sorted(sum(whole[16:], ()))


def test_stages_cost_a_state_nothing_per_leaf():
    many = batches(samples(BlendSpec(tuple(Part(leaf(f"l{n}", 50)) for n in range(1000)))))
    one, three = (
        loader_of(spec, lanes=8)
        for spec in (
            plan(("x", None, many)),
            plan(("x", 9, many), ("y", 18, many), ("z", None, many)),
        )
    )
    sizes = []
    for loader in (one, three):
        in_order([loader], 19)
        sizes.append(len(json.dumps(loader.state_dict())))
    assert sizes[1] - sizes[0] < 1000  # for 1,000 leaves, 8 lanes and two stages that are over


def test_a_damaged_place_of_a_stage_is_an_error_and_no_new_start():
    state = state_at(15)
    (field,) = (entry for entry in state["start"] if entry[:2] == ["root/y/of/of", "draws"])
    field[1] = "draw"
    with pytest.raises(StateMismatchError):
        goes_on(signed(state), BEFORE)
    with pytest.raises(StateMismatchError):
        goes_on(signed(state), EDITS_AHEAD["it moves nearer"])


@pytest.mark.parametrize("spec", [BEFORE, EDITS_AHEAD["it moves nearer"]])
@pytest.mark.parametrize(
    ("name", "value", "must"),
    [
        ("taken", "[]", "be a number from 0"),
        ("taken", [1], "be a number from 0"),
        ("taken", None, "be a number from 0"),
        ("taken", -1, "be a number from 0 to 2**48, got -1"),
        ("taken", 1.5, "be a number from 0 to 2**48, got 1.5"),
        ("taken", 10**30, "be a number from 0"),
        ("carried", 5, "be a list of numbers from 0 to 2**48, got 5"),
        ("carried", [0, "a", 0], "be a list of numbers from 0 to 2**48, got 'a' at index 1"),
        ("carried", [10**30, 0, 0], "be a list of numbers"),
        ("carried", [0, 0, -3], "be a list of numbers from 0 to 2**48, got -3 at index 2"),
        ("carried", [[1], 0, 0], "be a list of numbers"),
        ("carried", [1], "have a number for each of 3 leaves"),
    ],
)
def test_a_damaged_value_of_a_stage_is_a_state_error_before_anything_moves(spec, name, value, must):
    state = state_at(15)
    (number,) = (n for n, entry in enumerate(state["start"]) if entry[:2] == ["root", name])
    row = state["places"]["0"]
    value = json.dumps(value) if isinstance(value, list) else value
    if number in row[3:-1:2]:
        row[4 + row[3:-1:2].index(number) * 2] = value
    else:
        row[-1:] = [number, value, 0]
    loader = loader_of(spec, lanes=4)
    with pytest.raises(StateError, match=re.escape(f"damaged: '{name}' of root must {must}")):
        loader.load_state_dict(signed(state))
    assert in_order([loader], 3) == in_order([loader_of(spec, lanes=4)], 3)


def test_stages_at_another_place_than_their_lane_are_a_state_error():
    state = state_at(15)
    (number,) = (n for n, entry in enumerate(state["start"]) if entry[:2] == ["root", "taken"])
    row = state["places"]["0"]
    row[4 + row[3:-1:2].index(number) * 2] += 1
    with pytest.raises(StateError, match="lane 0 is at micro-batch 16, and its stages at 20"):
        goes_on(signed(state), BEFORE)


PACKED = batches(packs(samples(X)))
ON_TWO_AND_FOUR = [
    (plan(("x", 8), ("y", 16), ("z", None)), 16, plan(("x", 8), ("y", 16), ("w", None, MIXED))),
    (
        plan(("x", 8), ("y", 16), ("z", None)),
        12,
        plan(("x", 8), ("y", 12), ("z", None), resume="ablation"),
    ),
    (
        plan(("x", 8, PACKED), ("y", None)),
        8,
        plan(("x", 8, PACKED), ("w", None, MIXED)),
    ),
]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("before", "at", "after"), ON_TWO_AND_FOUR)
def test_ranks_that_restore_their_own_states_decide_as_those_that_restore_the_whole(
    ranks, before, at, after
):
    first = loaders_of(before, ranks, lanes=4)
    in_order(first, at // ranks)
    states = json.loads(json.dumps([loader.state_dict() for loader in first]))
    own, whole = (loaders_of(after, ranks, lanes=4) for _ in range(2))
    for mine, other, state in zip(own, whole, states, strict=True):
        mine.load_state_dict(state)
        other.restore_state_global(states)
    assert in_order(own, 16 // ranks) == in_order(whole, 16 // ranks)


def test_what_was_kept_of_an_edited_tree_and_not_drawn_from_since_is_not_lost_by_a_stage():
    seen = {key for batch in in_order([loader_of(BODY["x"], lanes=4)], 16) for key in batch}
    kept = loader_of(MIXED, lanes=4)
    kept.load_state_dict(state_at(16, BODY["x"]), on_mismatch="keep_matching")
    state = json.loads(json.dumps(kept.state_dict()))
    spec = plan(("default", 16, MIXED), ("x", None), resume="ablation")
    given = goes_on(state, spec, 8)
    assert not seen & {key for batch in given for key in batch}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_has_ended_keeps_its_place_and_goes_on_when_its_last_stage_is_longer(ranks):
    longer = plan(("x", 8), ("y", 40))
    expected = in_order([loader_of(longer, lanes=4)], 24)
    ended = loaders_of(plan(("x", 8), ("y", 16)), ranks, lanes=4)
    assert in_order(ended) == expected[:16]
    assert [list(loader) for loader in ended] == [[]] * ranks
    states = json.loads(json.dumps([loader.state_dict() for loader in ended]))
    own, whole = (loaders_of(longer, ranks, lanes=4) for _ in range(2))
    for mine, other, state in zip(own, whole, states, strict=True):
        mine.load_state_dict(state)
        other.restore_state_global(states)
    assert in_order(own, 8 // ranks) == in_order(whole, 8 // ranks) == expected[16:]
    with pytest.raises(StateMismatchError, match="stage 'x' is over; end was 8, is 4"):
        loader_of(plan(("x", 4), ("y", 40)), lanes=4).restore_state_global(states)


UNEVEN = plan(("x", 12), ("y", None))


@pytest.mark.parametrize(
    ("rounds", "edited", "refused"),
    [
        (0, plan(("x", 12), ("y", 20), ("z", None)), None),
        (1, plan(("x", 12), ("y", 20), ("z", None)), None),
        (0, plan(("x", 12), ("z", None)), "stage 'y' is being played as number 1, and it is gone"),
        (1, plan(("x", 12), ("z", None)), "stage 'y' is being played as number 1, and it is gone"),
        (1, plan(("x", 12), ("y", 14), ("z", None)), "which the run has passed"),
        (1, plan(("x", 12), ("y", 16), ("z", None), resume="ablation"), None),
    ],
)
def test_ranks_at_a_place_that_is_no_multiple_of_their_number_decide_alike(rounds, edited, refused):
    one = loader_of(UNEVEN, lanes=4)
    in_order([one], 13)
    first = loaders_of(UNEVEN, 2, lanes=4)
    for loader in first:
        loader.restore_state_global(json.loads(json.dumps(one.state_dict())))
    in_order(first, rounds)
    states = json.loads(json.dumps([loader.state_dict() for loader in first]))
    again = loaders_of(UNEVEN, 2, lanes=4)
    for loader, state in zip(again, states, strict=True):
        loader.load_state_dict(state)
        assert loader.state_dict() == state
    own = loaders_of(edited, 2, lanes=4)
    for loader, state in zip(own, states, strict=True):
        if refused is None:
            loader.load_state_dict(state)
        else:
            with pytest.raises(StateMismatchError, match=refused):
                loader.load_state_dict(state)
    if refused is None:
        at = 13 + 2 * rounds
        assert in_order(own, 6) == in_order([loader_of(edited, lanes=4)], at + 12)[at:]
