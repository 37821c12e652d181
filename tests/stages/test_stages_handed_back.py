"""What stages had drawn and not given when they were edited: given once, and nothing beside it."""

from __future__ import annotations

import json
from functools import cache

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from loading.runs import flat, in_order, loader_of
from trees import batches, by_number, groups, joined, leaf, packs, samples

from energy_data.core.context import Context
from energy_data.errors import StateMismatchError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.leaf_history import held
from energy_data.nodes.passes import LimitSpec
from energy_data.nodes.select_pack import SelectPackSpec
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedNode, StagedSpec
from energy_data.order.schedule import Schedule
from energy_data.testing import next_item

LEAVES = {name: leaf(name, 3000) for name in "xy"}  # so many that no lane comes to an end
X, Y = LEAVES.values()
MIXED = BlendSpec((Part(X, 2), Part(Y)))
FIRST, SECOND, END = 6, 16, 22  # micro-batches: where stages end, and the last save
KEEPING = {"on_mismatch": "keep_matching"}


def threes(drawn: list) -> list:
    """All samples of a buffer, in threes."""
    return [drawn[n : n + 3] for n in range(0, len(drawn), 3)]


def singles(drawn: list) -> list:
    return [[sample] for sample in drawn]


def bodies(order):
    read = samples(order)
    threes_of = SelectPackSpec(of=read, select=threes, pack=joined, buffer_size=7)
    return {
        "plain": batches(read),
        "packs": batches(packs(read), 2),
        "split packs": batches(packs(read, limits={"tokens": 5}, over_long="split"), 3),
        "groups": groups(read),
        "groups of packs": groups(packs(read, 4)),
        "selected": batches(threes_of, 1),
    }


OF_X, OF_BOTH = bodies(X), bodies(MIXED)
BODIES = {
    f"{kind} of {name}": body
    for name, of in (("x", OF_X), ("both", OF_BOTH))
    for kind, body in of.items()
}


def plan(*stages, **facts):
    """Stages as (name, end, body)."""
    begins = [0, *(end for _, end, _ in stages)]
    return StagedSpec(
        stages=tuple(
            Stage(name=name, of=of, begin=begin, end=end)
            for (name, end, of), begin in zip(stages, begins, strict=False)
        ),
        **facts,
    )


def three(first, second, third):
    return [("a", FIRST, first), ("b", SECOND, second), ("c", None, third)]


@cache
def order(name, lane, lanes):
    """What a lane draws of a leaf, in its order."""
    node = batches(samples(LEAVES[name]), 1).build(Context(lane=lane, lanes=lanes))
    return [key for _ in range(1500 // lanes) for key in next_item(node)]


def plain(state):
    return json.loads(json.dumps(state))


def waiting(loader):
    """The keys that each lane has drawn and not given, of leaves that are gone too."""
    stages = {
        lane: next(inner for _, inner in node.walk() if isinstance(inner, StagedNode))
        for lane, node in loader._nodes_before(None).items()
    }
    return {
        lane: [
            f"{name}/{number}"
            for past in (node.history(len(node.spec.stages)), loader._gone.past(lane))
            for name, _, number in past.waiting()
        ]
        for lane, node in stages.items()
    }


def check(given, loader, lanes):
    """Nothing was left out, nothing came twice: with what waits, these are the first draws."""
    waits = waiting(loader)
    for lane in range(lanes):
        keys = [key for batch in given[lane::lanes] for key in flat(batch)]
        assert len(keys) == len(set(keys))
        drawn = sorted([*{key.partition("[")[0] for key in keys}, *waits[lane]])
        for name in LEAVES:
            mine = [key for key in drawn if key.startswith(name)]
            assert mine == sorted(order(name, lane, lanes)[: len(mine)])


def edits(stages, g):
    """The stages edited so that a state at micro-batch g can go on: how, rule, stages.

    Rule None: only `on_mismatch="keep_matching"` accepts the edit.
    """
    played = next(n for n, (_, end, _) in enumerate(stages) if end is None or g < end)
    before, (name, end, of), after = stages[:played], stages[played], stages[played + 1 :]
    later = [(name, end and end + 5, of) for name, end, of in after]
    begin = before[-1][1] if before else 0
    longer, new = (name, end and end + 5, of), f"new at {g}"
    yield "rename", None, [*before, (f"{name}2", end, of), *after]
    yield "rename all", None, [(f"{name}2", end, of) for name, end, of in stages]
    yield "lengthen", "strict", [*before, longer, *later]
    if before:
        yield "lengthen one that is over", None, [
            *before[:-1], (before[-1][0], g, before[-1][2]), (f"{name}2", end, of), *after,
        ]  # fmt: skip
        yield "remove", None, [*before[:-1], longer, *later]
    yield "insert", None, [*before, (new, g + 3, OF_X["packs"]), longer, *later]
    if g > begin:
        yield "begin one here", "ablation", [
            *before, (name, g, of), (new, g + 6, OF_BOTH["groups"]), (f"{new}, last", None, of),
        ]  # fmt: skip
        yield "begin one here in another mixture", None, [
            *before, (name, g, of), (new, None, OF_BOTH["plain"]),
        ]  # fmt: skip


def all_cases(stages, lanes):
    """Yield the batches before and a loader that goes on under edited stages, from every place."""
    loader = loader_of(plan(*stages), lanes=lanes)
    stream, before = iter(loader), []
    for g in range(1, END + 1):
        before.append(next(stream))
        state = plain(loader.state_dict())
        for number, (_, rule, edited) in enumerate(edits(stages, g)):
            if (number + g) % 3:
                continue  # the others at the next places
            keep = rule is None or g % 2 == 0
            again = loader_of(plan(*edited, resume="strict" if keep else rule), lanes=lanes)
            again.load_state_dict(state, **KEEPING if keep else {})
            yield list(before), again


@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
@pytest.mark.parametrize(("first", "second"), [("packs", "plain"), ("plain", "packs")])
def test_after_any_edit_at_any_micro_batch_nothing_is_left_out_or_given_twice(first, second, lanes):
    stages = three(OF_X[first], OF_X[second], OF_BOTH["plain"])
    for before, again in all_cases(stages, lanes):
        check(before + in_order([again], 3 * lanes), again, lanes)


def test_what_is_kept_of_a_removed_leaf_is_not_kept_of_those_that_stay():
    packs = BODIES["groups of packs of x"]
    stages = three(BODIES["groups of both"], packs, packs)
    loader = loader_of(plan(*stages), lanes=1)
    given, state = in_order([loader], 7), plain(loader.state_dict())
    edited = next(edited for name, _, edited in edits(stages, 7) if name == "remove")
    loader = loader_of(plan(*edited, resume="strict"), lanes=1)
    loader.load_state_dict(state, **KEEPING)
    check(given + in_order([loader], 8), loader, 1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_whatever_holds_samples_back_they_are_given_once_after_edits_of_edits(data):
    lanes = data.draw(st.integers(1, 4))
    stages = three(*(BODIES[data.draw(st.sampled_from(sorted(BODIES)))] for _ in range(3)))
    given = []
    loader = loader_of(plan(*stages), lanes=lanes)
    for _ in range(data.draw(st.integers(1, 3))):
        given += in_order([loader], data.draw(st.integers(1, 12)))
        known = {name: edit for name, *edit in edits(stages, len(given))}
        rule, stages = known[data.draw(st.sampled_from(sorted(known)))]
        keep = rule is None or data.draw(st.booleans())
        state = plain(loader.state_dict())
        loader = loader_of(plan(*stages, resume="strict" if keep else rule), lanes=lanes)
        loader.load_state_dict(state, **KEEPING if keep else {})
    given += in_order([loader], data.draw(st.integers(1, 8 * lanes)))
    check(given, loader, lanes)


@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", sorted(OF_X))
def test_a_stage_over_one_leaf_that_is_renamed_gives_what_it_would_have_given(kind, lanes):
    def stages(name):
        return [("a", 2 * lanes, OF_X[kind]), (name, None, OF_X["plain"])]

    loader = loader_of(plan(*stages("b")), lanes=lanes)
    before = in_order([loader], 2 * lanes)
    whole = (
        before + in_order([loader_of(plan(*stages("b")), lanes=lanes)], 9 * lanes)[len(before) :]
    )
    for g in range(2 * lanes, 7 * lanes):
        again = loader_of(plan(*stages("c")), lanes=lanes)
        again.load_state_dict(plain(loader.state_dict()), **KEEPING)
        assert in_order([again], 2 * lanes) == whole[g : g + 2 * lanes]
        assert in_order([loader], 1) == whole[g : g + 1]


@pytest.mark.parametrize("kind", sorted(OF_BOTH))
@pytest.mark.parametrize("name", ["default", "a"])
@pytest.mark.parametrize("around", [lambda of: of, lambda of: LimitSpec(of=of, length=300)])
def test_what_a_run_without_stages_was_holding_is_given_by_its_stages(kind, name, around):
    loader = loader_of(around(OF_BOTH[kind]), lanes=3)
    before = in_order([loader], 10)
    spec = plan((name, 14, OF_X["packs"]), ("b", None, OF_BOTH["plain"]))
    again = loader_of(around(spec), lanes=3)
    again.load_state_dict(plain(loader.state_dict()), **KEEPING)
    check(before + in_order([again], 12), again, 3)
    again = loader_of(LimitSpec(of=spec, length=200), lanes=3)
    with pytest.raises(StateMismatchError, match="the nodes above the stages were edited"):
        again.load_state_dict(loader.state_dict(), **KEEPING)


@pytest.mark.parametrize("kind", sorted(OF_BOTH))
def test_a_leaf_that_is_taken_out_and_put_back_gives_what_was_held_of_it_first(kind):
    loader = loader_of(plan(("a", None, OF_BOTH[kind])), lanes=2)
    given = in_order([loader], 8)
    held = {lane: {key for key in keys if key[0] == "y"} for lane, keys in waiting(loader).items()}
    for name, body in ("b", OF_X["plain"]), ("c", OF_X["packs"]), ("d", OF_BOTH["plain"]):
        state = plain(loader.state_dict())
        loader = loader_of(plan((name, None, body)), lanes=2)
        loader.load_state_dict(state, **KEEPING)
        given += in_order([loader], 4 if name < "d" else 20)
    check(given, loader, 2)
    for lane, keys in held.items():
        assert keys <= {key for batch in given[16:][lane::2] for key in batch}


def restarting(first, second):
    spec = plan(("a", 6, first), ("b", None, second))
    return evolve(spec, stages=(spec.stages[0], evolve(spec.stages[1], on_enter="restart")))


def test_a_stage_that_restarts_its_leaves_goes_on_with_what_it_holds():
    loader = loader_of(restarting(OF_X["plain"], OF_X["packs"]), lanes=2)
    whole = in_order([loader_of(loader.dataset.spec, lanes=2)], 40)
    assert in_order([loader], 16) == whole[:16]
    again = loader_of(restarting(OF_BOTH["plain"], OF_X["packs"]), lanes=2)
    again.load_state_dict(plain(loader.state_dict()), **KEEPING)
    assert in_order([again], 24) == whole[16:]


def test_a_stage_that_restarts_its_leaves_from_now_on_begins_in_its_own_order():
    loader = loader_of(plan(("a", 6, OF_X["plain"]), ("b", None, OF_X["plain"])), lanes=2)
    in_order([loader], 16)
    spec = restarting(OF_X["plain"], OF_X["plain"])
    again = loader_of(spec, lanes=2)
    again.load_state_dict(plain(loader.state_dict()), **KEEPING)
    assert in_order([again], 8) == in_order([loader_of(spec, lanes=2)], 14)[6:]


@pytest.mark.parametrize("kind", sorted(OF_X))
def test_stats_count_what_was_drawn_again_once(kind):
    loader = loader_of(plan(*three(OF_X[kind], OF_BOTH[kind], OF_X["plain"])), lanes=2)
    given = [{key.partition("[")[0] for key in flat(batch)} for batch in in_order([loader], 30)]
    waits = sum(map(len, waiting(loader).values()))
    drawn = sum(leaf.drawn for leaf in loader.stats().leaves.values())
    assert drawn == len(set().union(*given)) + waits


def test_what_was_held_comes_first_in_a_stage_whose_weights_follow_the_run_too():
    rising = Schedule("linear", ((0, 1), (50, 9)))
    later = batches(samples(BlendSpec((Part(X, rising), Part(Y)))))
    loader = loader_of(plan(("a", 12, OF_BOTH["packs"]), ("b", None, later)), lanes=2)
    given = in_order([loader], 30)
    again = loader_of(plan(("a2", 12, OF_BOTH["packs"]), ("b2", None, later)), lanes=2)
    again.load_state_dict(plain(loader.state_dict()), **KEEPING)
    check(given + in_order([again], 20), again, 2)
    loader = loader_of(plan(("a", None, OF_BOTH["packs"])), lanes=2)
    given = in_order([loader], 9)
    again = loader_of(plan(("b", None, later)), lanes=2)
    again.load_state_dict(plain(loader.state_dict()), **KEEPING)
    check(given + in_order([again], 20), again, 2)


def test_a_sample_with_parts_in_several_nodes_is_handed_back_once():
    parts = EncodeSpec(of=samples(X), encode=by_number)
    ones = SelectPackSpec(of=parts, select=singles, pack=joined, buffer_size=7)
    node = groups(ones, 3).build(Context())
    handed_back = []
    for _ in range(8):
        node.take(1)
        handed_back.append(list(held(node)))
    assert any(handed_back)
    assert all(len(waiting) == len(set(waiting)) for waiting in handed_back)
