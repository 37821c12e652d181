"""Stages with worker processes, and with nodes that hold samples back."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import pytest
from attrs import evolve
from loading.runs import flat, in_order, loader_of, run
from loading.workers import QUICK, worker_loader
from trees import batches, groups, leaf, packs, samples, staged

from energy_data.core.context import Context
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.leaf_history import held
from energy_data.testing import assert_resumes_exactly, next_item

X, Y = leaf("x", 100), leaf("y", 60)
SWITCHING = staged(batches(samples(X)), batches(samples(Y), 2), batches(samples(X), 4), every=2)


@pytest.mark.parametrize("method", QUICK)
@pytest.mark.parametrize(
    ("workers", "prefetch"), [(0, 1), (1, 1), (1, 5), (2, 2), (2, 5), (3, 1), (3, 5)]
)
@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("ranks", [1, 2])
def test_stages_of_5_5_and_5_steps_run_5_5_and_5(ranks, accumulation, workers, prefetch, method):
    per_step = ranks * accumulation
    bodies = batches(samples(X)), batches(samples(Y), 2), batches(samples(X), 4)
    spec = staged(*bodies, every=per_step)
    expected = in_order([loader_of(spec, lanes=8)], 15 * per_step)
    sizes = [len(batch) for batch in expected]
    assert sizes == [3] * 5 * per_step + [2] * 5 * per_step + [4] * 5 * per_step
    for rank in range(ranks):
        options = {"prefetch": prefetch, "start_method": method} if workers else {}
        loader = worker_loader(spec, workers, rank, ranks, **options)
        try:
            assert list(islice(loader, 15 * accumulation)) == expected[rank::ranks]
        finally:
            loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_of_four_ranks_with_one_worker_it_goes_on_on_one_with_four(method):
    spec = staged(batches(samples(X)), batches(samples(Y), 2), batches(samples(X)), every=4)
    expected = run([loader_of(spec, lanes=8)], 60)
    four = [loader_of(spec, rank, 4, lanes=8) for rank in range(4)]
    run(four, 6)
    one = worker_loader(spec, 4, start_method=method)
    try:
        one.restore_state_global([loader.state_dict() for loader in four])
        assert list(islice(one, 36)) == [expected[g] for g in range(24, 60)]
    finally:
        one.close()


@pytest.mark.parametrize("method", QUICK)
def test_saved_with_workers_around_a_boundary_it_goes_on_without_and_on_two_ranks(method):
    expected = run([loader_of(SWITCHING, lanes=8)], 30)
    loader = worker_loader(SWITCHING, 3, prefetch=5, start_method=method)
    states = []
    try:
        stream = iter(loader)
        for _ in range(24):
            states.append(json.loads(json.dumps(loader.state_dict())))
            next(stream)
    finally:
        loader.close()
    for done in (8, 9, 10, 11, 12, 18, 20, 22):
        others = [loader_of(SWITCHING, rank, 2, lanes=8) for rank in range(2)]
        for other in others:
            other.load_state_dict(states[done])
        rest = run(others, 3)
        assert rest == {g: expected[g] for g in rest}
        assert len(rest) == 6


PACKED = staged(
    batches(packs(samples(X)), 2),
    batches(samples(Y), 2),
    batches(packs(samples(X), 9), 1),
    batches(samples(X), 1),
    steps=(7, 6, 9),
)


def alone(lane, count):
    """What a lane draws of X first."""
    node = batches(samples(X), 1).build(Context(lane=lane, lanes=4))
    return [key for _ in range(count) for key in next_item(node)]


@pytest.mark.parametrize("lane", range(4))
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_a_stage_has_drawn_and_not_given_comes_first_in_the_next_that_draws(lane, stage):
    node = PACKED.build(Context(lane=lane, lanes=4))
    before = len(range(lane, PACKED.stages[stage].begin, 4))
    given = [key for _ in range(before) for key in flat(next_item(node))]
    of_x = [key for key in given if key.startswith("x")]
    next_item(node)
    returned = node.history(stage).returned
    waiting = [f"x/{n}" for _, n in returned["x"]]
    assert waiting
    assert Counter([*of_x, *waiting]) == Counter(alone(lane, len(of_x) + len(waiting)))


def test_every_sample_of_the_first_epoch_comes_once_over_both_visits():
    given = run([loader_of(PACKED, lanes=4)], 120)
    seen = Counter(k for keys in given.values() for k in flat(keys) if k.startswith("x"))
    of_lane = {n: [k for g, b in given.items() if g % 4 == n for k in flat(b)] for n in range(4)}
    for lane, keys in of_lane.items():
        of_x = [key for key in keys if key.startswith("x")]
        epoch = alone(lane, 25)
        assert len(of_x) >= 25
        assert set(epoch) <= set(of_x)
        drawn = Counter(alone(lane, len(of_x)))
        assert Counter(of_x) == drawn
    assert len(seen) == 100


def test_a_stage_that_restarts_gets_nothing_back():
    stages = (*PACKED.stages[:2], evolve(PACKED.stages[2], on_enter="restart"), PACKED.stages[3])
    node = evolve(PACKED, stages=stages).build(Context())
    first = [key for _ in range(7) for key in flat(next_item(node))]
    waiting = {f"x/{n}" for _, _, n in held(node.children["s0"])}
    for _ in range(6 + 9):
        next_item(node)
    last = [key for _ in range(len(waiting)) for key in next_item(node)]
    assert set(last) == waiting
    assert not waiting & set(first)


def test_stages_that_hold_samples_back_resume_at_every_step():
    assert_resumes_exactly(PACKED, lane=1, lanes=2, steps=16)


MIXED = {
    "blend": lambda *of: BlendSpec(tuple(map(Part, of))),
    "blend of packs": lambda *of: BlendSpec(tuple(Part(packs(each)) for each in of)),
}


@pytest.mark.parametrize("kept", [lambda of: batches(packs(of)), groups])
@pytest.mark.parametrize("mixed", MIXED)
def test_what_is_held_of_several_order_trees_goes_back_to_the_leaf_of_each(mixed, kept, caplog):
    both = kept(MIXED[mixed](samples(X), samples(Y)))
    spec = staged(both, batches(samples(X), 1), batches(samples(Y), 1), steps=(6, 30))
    with caplog.at_level("INFO", "energy_data.loading.reports"):
        given = [key for batch in in_order([loader_of(spec, lanes=1)], 66) for key in flat(batch)]
    assert "were drawn and not used: they return to their leaves" in caplog.text
    for name, one in (("x", X), ("y", Y)):
        of_leaf = [key for key in given if key.startswith(name)]
        drawn = in_order([loader_of(batches(samples(one), 1), lanes=1)], len(of_leaf))
        assert Counter(of_leaf) == Counter(flat(drawn))
