"""Runs whose weights change: the same batches whoever runs them, exactly at their steps."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction

import pytest
from trees import LATER, UP, batches, leaf

from energy_data.core.context import Context
from energy_data.errors import SpecError
from energy_data.loading.checkpoint.saved_run import SavedTree, order_trees
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.passes import ConcatSpec, EpochizeSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.order.schedule import Clock, Schedule
from loading.runs import loader_of, loaders_of, run
from loading.workers import worker_loader

SIZES = {"a": 1000, "b": 300, "c": 450, "d": 90}
LEAVES = {name: leaf(name, size) for name, size in SIZES.items()}
CLOCK = Clock(samples_per_microbatch=5, microbatches_per_step=8)
FADE = Schedule("linear", ((4, 3), (12, 0)))
RISE = Schedule("cosine", ((4, 0), (12, 3)))


def blend(**weights):
    return BlendSpec(tuple(Part(LEAVES[name], weight) for name, weight in weights.items()))


def tree(order, clock=CLOCK, batch_size=5):
    return batches(ReadSpec(of=ReferencesSpec(of=order, clock=clock)), batch_size)


CHANGING = tree(
    BlendSpec((Part(blend(a=2, b=RISE), FADE), Part(LEAVES["c"], LATER), Part(blend(d=UP, a=1))))
)


def through_json(loaders):
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


def test_batches_are_the_same_on_any_number_of_ranks():
    one = run(loaders_of(CHANGING, 1), rounds=240)
    for ranks in (2, 3, 8):
        assert run(loaders_of(CHANGING, ranks), rounds=240 // ranks) == one


def test_workers_give_the_same_batches_and_go_on_from_a_save_within_a_change():
    expected = run(loaders_of(CHANGING, 1), rounds=90)
    first = worker_loader(CHANGING, workers=2, lanes=24, prefetch=4)
    given = run([first], 41)
    second = worker_loader(CHANGING, workers=3, lanes=24)
    second.load_state_dict(through_json([first])[0])
    given |= run([second], 49)
    assert given == expected


@pytest.mark.parametrize("round_", [0, 1, 15, 16, 17, 31, 33, 60])
def test_saved_around_a_change_it_goes_on_on_other_ranks(round_):
    expected = run(loaders_of(CHANGING, 1), rounds=240)
    loaders = loaders_of(CHANGING, 2)
    given = run(loaders, round_)
    others = loaders_of(CHANGING, 3)
    for loader in others:
        loader.restore_state_global(through_json(loaders))
    given |= run(others, 40)
    assert given == {g: batch for g, batch in expected.items() if g < len(given)}


def test_a_leaf_comes_and_goes_exactly_with_its_steps():
    spec = tree(blend(a=1, c=Schedule("step", ((0, 0), (7, 2), (11, 0), (20, 1)))))
    for g, batch in run(loaders_of(spec, 3), rounds=80).items():
        there = any(key.startswith("c/") for key in batch)
        assert there == (7 <= g // 8 < 11 or g // 8 >= 20)


def test_nested_shares_are_multiplied_at_the_place_of_the_run():
    clock = Clock(samples_per_microbatch=5)
    inner = blend(b=Schedule("linear", ((0, 0), (3000, 1)), "samples"), c=1)
    outer = Schedule("linear", ((0, 1), (3000, 0)), "samples")
    spec = tree(BlendSpec((Part(inner, outer), Part(LEAVES["a"], 1))), clock)
    drawn = Counter(
        key[0] for batch in run(loaders_of(spec, 1), rounds=600).values() for key in batch
    )
    places = [(n + 0.5) / 3000 for n in range(3000)]
    expected = sum((1 - x) / (2 - x) * x / (1 + x) for x in places)
    assert abs(drawn["b"] - expected) < 12  # of 24 lanes
    assert sum(drawn.values()) == 3000


def test_before_the_first_change_it_is_the_blend_without_one():
    plain = tree(blend(a=3, b=1, c=1), None)
    later = tree(
        blend(a=Schedule("step", ((0, 3), (10, 1))), b=1, c=Schedule("linear", ((9, 1), (14, 5))))
    )
    before, after = (run([loader_of(spec)], 120) for spec in (plain, later))
    assert {g: b for g, b in before.items() if g < 72} == {g: b for g, b in after.items() if g < 72}
    assert before != after


def test_a_run_that_is_given_a_schedule_on_its_way_repeats_nothing():
    loader = loader_of(tree(blend(a=3, b=1), None), lanes=1)
    before = run([loader], 20)
    other = loader_of(tree(blend(a=FADE, b=1, c=RISE)), lanes=1)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())), on_mismatch="keep_matching")
    keys = [key for batch in (before | run([other], 80)).values() for key in batch]
    for name, size in SIZES.items():
        first = [key for key in keys if key.startswith(f"{name}/")][:size]
        assert len(set(first)) == len(first)


@pytest.mark.parametrize("before", [CHANGING, tree(blend(a=3, b=1), None)])
def test_a_schedule_given_on_the_way_is_at_the_place_of_the_run(before):
    loader = loader_of(before, lanes=6)
    run([loader], 72)
    appears = tree(blend(a=1, c=Schedule("step", ((0, 0), (12, 1)))))
    other = loader_of(appears, lanes=6)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())), on_mismatch="keep_matching")
    for g, batch in run([other], 60).items():
        assert any(key.startswith("c/") for key in batch) == (g // 8 >= 12)
    again = loader_of(appears, lanes=6)
    again.load_state_dict(json.loads(json.dumps(other.state_dict())))
    assert run([again], 10) == run([other], 10)


def test_an_edited_schedule_goes_on_from_a_saved_one():
    loader = loader_of(CHANGING, lanes=6)
    run([loader], 100)
    drawn = {name: facts.drawn for name, facts in loader.stats().leaves.items()}
    saved = SavedTree.unpack(loader.state_dict()["tree"])
    (again,) = order_trees(saved.spec).values()
    assert again.clock == CHANGING.of.of.clock
    weights = [[part.weight for part in of.of.parts] for of in (again, CHANGING.of.of)]
    assert weights[0] == weights[1]
    other = loader_of(tree(blend(a=1, b=1, c=1, d=1)), lanes=6)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())), on_mismatch="keep_matching")
    assert {name: facts.drawn for name, facts in other.stats().leaves.items()} == drawn


def test_a_run_without_schedules_says_nothing_of_a_clock():
    spec = tree(blend(a=1), None).of.of
    assert "clock" not in spec.to_dict()[1]


@pytest.mark.parametrize(
    ("order", "clock", "problem"),
    [
        (blend(a=UP, b=1), Clock(), "follow steps. Give `microbatches_per_step`"),
        (blend(a=Schedule("step", ((0, 1),), "tokens")), CLOCK, "Give `tokens_per_sample`"),
        (ConcatSpec((blend(a=UP, b=1),)), CLOCK, "go on without end"),
        (ConcatSpec((EpochizeSpec(of=blend(a=UP), length=3),)), CLOCK, "go on without end"),
    ],
)
def test_where_the_place_of_the_run_is_not_known_weights_do_not_change(order, clock, problem):
    with pytest.raises(SpecError, match=problem):
        ReferencesSpec(of=order, clock=clock)


def test_a_finite_stream_has_no_weights_that_change():
    with pytest.raises(SpecError, match="finite stream"):
        ReferencesSpec(of=blend(a=UP, b=1), clock=CLOCK, deal=3)


def test_streams_are_not_blended_by_weights_that_change():
    stream = ReadSpec(of=ReferencesSpec(of=LEAVES["a"]))
    with pytest.raises(SpecError, match="Put the blend there"):
        BlendSpec((Part(stream, UP), Part(stream)))


def test_all_lanes_build_one_table_of_weights():
    context = Context(lanes=8)
    nodes = [CHANGING.build(context.in_lane(lane)) for lane in range(8)]
    for node in nodes:
        node.take(3)
    tables = [name for name in context._shared if name[0] == "stretches"]
    assert len(tables) == 3


@pytest.mark.parametrize(
    "weight",
    [
        Schedule("step", ((0, 0), (7, 2.5))),
        Schedule("linear", ((0, Fraction(1, 3)),), "tokens", Fraction(7, 2)),
    ],
)
def test_a_schedule_and_a_clock_are_the_same_in_a_state(weight):
    clock = Clock(
        samples_per_microbatch=3,
        microbatches_per_step=2,
        tokens_per_sample="10/3",
        first_microbatch=5,
    )
    of = tree(blend(a=1, c=weight), clock).of.of
    (again,) = order_trees(SavedTree.unpack(SavedTree.pack(of)).spec).values()
    assert again.clock == clock
    assert again.of.parts[1].weight == weight
