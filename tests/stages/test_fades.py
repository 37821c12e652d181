"""Ramps between stages whose batches differ: step by step, one pipeline or the other."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice, pairwise

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from loader.runs import flat, in_order, loader_of, loaders_of, run
from loader.workers import worker_loader
from trees import batches, groups, leaf, packs, samples

from energy_data.core.context import Context
from energy_data.errors import SpecError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.fade import Fade
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.testing import assert_resumes_exactly

X, Y, Z = leaf("x", 100), leaf("y", 60), leaf("z", 80)
MIXED = BlendSpec((Part(X, 2), Part(Y)))
OTHER = BlendSpec((Part(X), Part(Z, 3)))
SHORT, LONG = batches(samples(MIXED), 2), batches(samples(OTHER), 5)


def fading(*bodies, steps=12, sizes=(1, 1), kind="linear", lengths=(6, 18), **facts):
    """Stages of so many steps, each fading into the next over its first `steps` steps."""
    stages, begin = [], 0
    for number, of in enumerate(bodies):
        size, before = sizes[number % 2], sizes[(number - 1) % 2]
        fade = Fade(kind=kind, steps=steps, before=before, now=size) if number else None
        num = (lengths[min(number, 1)] - (steps if fade else 0)) * size
        end = begin + num + (fade.batches if fade else 0)
        end = None if number == len(bodies) - 1 else end
        stages.append(
            Stage(name=f"s{number}", of=of, begin=begin, end=end, fade=fade,
                  microbatches_per_step=size)
        )  # fmt: skip
        begin = end
    return StagedSpec(stages=tuple(stages), **facts)


TWO = fading(SHORT, LONG)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
@pytest.mark.parametrize("steps", [1, 2, 7, 50, 1001])
def test_the_share_of_own_steps_rises_from_none_to_all(kind, steps):
    own = Fade(kind=kind, steps=steps, before=1, now=1).own
    assert not own[0]
    assert steps < 7 or own[-1]
    way = [t / steps for t in range(steps)]
    for t in range(steps + 1):
        if kind == "linear":
            assert abs(own[:t].sum() - sum(way[:t])) <= 0.51
    assert abs(int(own.sum()) - steps / 2) <= 1
    if steps > 40:
        fifths = [own[n * steps // 5 : (n + 1) * steps // 5].mean() for n in range(5)]
        assert all(one < other for one, other in pairwise(fifths))


def test_a_fade_in_one_step_makes_no_step_itself():
    fade = Fade(kind="step", steps=9, before=3, now=2)
    assert (fade.batches, fade.batches_before) == (27, 27)
    assert [fade.is_own(g) for g in (0, 26, 27, 10**9)] == [False, False, True, True]


def test_every_step_is_of_one_stage_and_of_its_size():
    spec = fading(SHORT, LONG, sizes=(4, 6))
    fade = spec.stages[1].fade
    given = run(loaders_of(spec, 1, lanes=8), 24 + fade.batches + 12)
    starts = [24 + int(begin) for begin in fade.begins]
    for t, own in enumerate(fade.own):
        sizes = {len(given[g]) for g in range(starts[t], starts[t + 1])}
        assert sizes == {5 if own else 2}
        assert starts[t + 1] - starts[t] == (6 if own else 4)
    assert {len(given[g]) for g in range(24)} == {2}
    assert {len(given[g]) for g in range(starts[-1], starts[-1] + 12)} == {5}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_it_is_the_same_on_any_ranks_and_workers_and_restored_at_every_micro_batch(ranks, workers):
    spec = fading(SHORT, LONG, SHORT, sizes=(4, 2), lengths=(3, 14))
    end = spec.stages[2].begin + spec.stages[2].fade.batches + 12
    expected = in_order([loader_of(spec, lanes=8)], end)
    options = {"start_method": "fork"} if workers else {}
    for rank in range(ranks):
        loader = worker_loader(spec, workers, rank, ranks, lanes=8, **options)
        try:
            stream, states = iter(loader), []
            for g in range(rank, end, ranks):
                states.append(json.loads(json.dumps(loader.state_dict())))
                assert next(stream) == expected[g]
        finally:
            loader.close()
        for g in range(0, end - 8, ranks * (1 if workers == 0 else 9)):
            other = loader_of(spec, rank, ranks, lanes=8)
            other.load_state_dict(states[g // ranks])
            assert list(islice(other, 8 // ranks)) == expected[g + rank : g + 8 : ranks]


def test_saved_inside_on_two_ranks_it_goes_on_on_four_and_one():
    spec = fading(SHORT, LONG, sizes=(4, 8))
    expected = run([loader_of(spec, lanes=8)], 90)
    for rounds in (13, 17, 20, 30):
        first = loaders_of(spec, 2, lanes=8)
        run(first, rounds)
        states = json.loads(json.dumps([loader.state_dict() for loader in first]))
        for ranks in (1, 4):
            others = loaders_of(spec, ranks, lanes=8)
            for loader in others:
                loader.restore_state_global(states)
            given = run(others, 8 // ranks)
            assert list(given) == list(range(2 * rounds, 2 * rounds + 8))
            assert given == {g: expected[g] for g in given}


PACKED = fading(
    batches(packs(samples(MIXED)), 2),
    batches(packs(samples(OTHER), 9), 1),
    batches(samples(MIXED), 2),
    batches(samples(OTHER), 3),
    lengths=(5, 20),
)
BODIES = {
    "plain": fading(SHORT, LONG, SHORT),
    "packed": PACKED,
    "grouped": fading(groups(samples(MIXED)), LONG, groups(samples(OTHER), 3), LONG),
    "switched": fading(batches(packs(samples(X)), 1), SHORT, LONG, kind="step"),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("lane", [0, 2])
def test_each_leaf_is_drawn_from_as_if_it_were_alone(name, lane):
    node = BODIES[name].build(Context(lane=lane, lanes=3))
    keys = []
    for _ in range(40):
        keys += flat(next(node))
        for one in (X, Y, Z):
            mine = Counter(key for key in keys if key[0] == one.leaf.id)
            alone = batches(samples(one), 1).build(Context(lane=lane, lanes=3))
            # All that was given is among what is drawn first, and what is held back is little.
            drawn = Counter(key for _ in range(mine.total() + 40) for key in next(alone))
            assert not mine - drawn


def test_nothing_is_lost_and_nothing_comes_twice_when_a_packing_stage_has_faded():
    node = PACKED.build(Context(lanes=1))
    keys = []
    for _ in range(5 + 20 + 20 + 60):
        keys += flat(next(node))
    for one in (X, Y, Z):
        mine = [key for key in keys if key[0] == one.leaf.id]
        alone = batches(samples(one), 1).build(Context())
        assert Counter(mine) == Counter(key for _ in mine for key in next(alone))


def test_stages_that_fade_resume_at_every_step():
    for spec in BODIES.values():
        assert_resumes_exactly(spec, lane=1, lanes=2, steps=34)
    assert_resumes_exactly(evolve(PACKED, buffers="drop"), steps=50)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_whatever_fades_into_what_it_resumes_and_each_leaf_is_read_once(data):
    orders = st.sampled_from([X, Y, MIXED, OTHER])
    kinds = st.sampled_from([
        lambda order: batches(samples(order), 2),
        lambda order: batches(packs(samples(order)), 1),
        lambda order: groups(samples(order)),
    ])  # fmt: skip
    bodies = [data.draw(kinds)(data.draw(orders)) for _ in range(data.draw(st.integers(2, 4)))]
    bodies.append(batches(samples(MIXED)))
    spec = fading(*bodies, steps=data.draw(st.integers(1, 6)), lengths=(4, 9))
    node = spec.build(Context(lane=0, lanes=1))
    end = spec.stages[-1].begin + 9
    at, given = data.draw(st.integers(0, end)), []
    for number in range(end + 40):
        if number == at:
            state = json.loads(json.dumps(node.state_dict()))
            node = spec.build(Context(lane=0, lanes=1))
            node.load_state_dict(state)
        given += flat(next(node))
    for one in (X, Y):
        mine = [key for key in given if key[0] == one.leaf.id]
        alone = batches(samples(one), 1).build(Context())
        assert Counter(mine) == Counter(key for _ in mine for key in next(alone))


def test_a_stage_that_restarts_may_fade_in():
    stages = (TWO.stages[0], evolve(TWO.stages[1], on_enter="restart"))
    node = evolve(TWO, stages=stages).build(Context())
    given = [next(node) for _ in range(40)]
    short = [key for batch in given if len(batch) == 2 for key in batch]
    long = [key for batch in given if len(batch) == 5 for key in batch]
    alone = evolve(TWO, stages=(evolve(stages[1], begin=0, fade=None),)).build(Context())
    assert long == [key for _ in range(len(long) // 5) for key in next(alone)]
    first = evolve(TWO, stages=(evolve(stages[0], end=None),)).build(Context())
    assert short == [key for _ in range(len(short) // 2) for key in next(first)]


def test_fades_that_cannot_be_are_refused():
    first, second = TWO.stages
    with pytest.raises(SpecError, match="stage 's0' is the first, nothing fades into it"):
        StagedSpec(stages=(evolve(first, fade=second.fade),))
    with pytest.raises(SpecError, match=r"over 12 micro-batches, and that has 5\. Make the ramp"):
        StagedSpec(stages=(first, evolve(second, end=11)))
    with pytest.raises(SpecError, match="fade: steps must be >= 1, got 0"):
        Fade(kind="linear", steps=0, before=1, now=1)
