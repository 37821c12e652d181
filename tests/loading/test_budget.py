"""A run that asks more of a leaf than `max_repetitions`: told at its start, or exactly then."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from trees import batches

from energy_data.config.compile import check_repetitions, compile_stream
from energy_data.config.load import load
from energy_data.errors import DataError, SpecError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.order.schedule import Clock, Schedule
from energy_data.tasks.encoders import DefaultTaskEncoder
from energy_data.tasks.mixture import StreamBuilder
from energy_data.testing import NumberSource
from loading.runs import loader_of, loaders_of, run

CLOCK = Clock(samples_per_microbatch=5)


def leaf(name, num_samples, most=None, tokens=None):
    source = NumberSource(num_samples, name)
    return LeafSpec(Leaf(id=name, source=source, max_repetitions=most, tokens_per_sample=tokens))


SMALL, LARGE, OTHER = leaf("small", 100, Fraction(4)), leaf("large", 9000), leaf("other", 500)


def tree(*parts):
    order = BlendSpec(tuple(Part(of, weight) for of, weight in parts))
    return batches(ReadSpec(of=ReferencesSpec(of=order, clock=CLOCK)), 5)


def taken(loaders):
    """Return the keys of what is given before the error, and the error."""
    keys = []
    for loader in loaders:
        try:
            for batch in loader:
                keys += batch
        except DataError as error:
            caught = error
    return keys, caught


def test_a_mixture_that_asks_too_much_names_the_leaf():
    spec = tree((SMALL, 2), (LARGE, 3), (OTHER, 3))
    check_repetitions(spec, samples=1600)
    with pytest.raises(SpecError) as caught:
        check_repetitions(spec, samples=3200)
    assert caught.value.faults == [
        "leaf 'small': the run draws 800 samples of it, but at most 400 are allowed: it has 100, "
        "max_repetitions 4. Lower its weight, shorten the run, or allow more.",
    ]


def test_weights_that_change_are_counted_as_they_change():
    rare = Schedule("step", ((0, 1), (1000, 0)), "samples")
    check_repetitions(tree((SMALL, rare), (LARGE, 3)), samples=1_000_000)
    with pytest.raises(SpecError, match="draws 500 samples of it, but at most 400 are allowed"):
        check_repetitions(tree((SMALL, rare), (LARGE, 1)), samples=1_000_000)


def test_a_budget_in_tokens_is_one_in_samples_by_the_mean_length():
    small, large = leaf("s", 100, Fraction(2), Fraction(10)), leaf("l", 900, None, Fraction(90))
    spec = tree((small, 1), (large, 1))
    check_repetitions(spec, tokens=50 * 400)
    with pytest.raises(SpecError, match=r"draws 20[12] samples"):
        check_repetitions(spec, tokens=50 * 403)


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        ({"samples": 0}, "budget_samples: must be a whole number >= 1"),
        ({"tokens": -3}, "budget_tokens: must be a whole number >= 1"),
        ({"samples": 5, "tokens": 5}, "Keep one"),
    ],
)
def test_a_budget_that_is_none_is_refused(budget, problem):
    with pytest.raises(SpecError, match=problem):
        check_repetitions(tree((SMALL, 1)), **budget)


@pytest.mark.parametrize("most", [Fraction(1), Fraction(5, 2), Fraction(4)])
@pytest.mark.parametrize("ranks", [1, 3])
def test_without_a_budget_a_run_stops_exactly_at_the_first_draw_too_many(most, ranks):
    spec = tree((leaf("x", 90, most), 1), (LARGE, 2))
    keys, error = taken(loaders_of(spec, ranks, lanes=6))
    drawn = [key for key in keys if key.startswith("x/")]
    assert len(drawn) <= 90 * most
    assert max(drawn.count(key) for key in set(drawn)) <= -(-most // 1)
    assert "leaf 'x': its 90 samples were drawn" in str(error)
    assert len(drawn) > 90 * most - 6 * 5  # a batch that is begun in each lane is not given


def test_every_sample_comes_up_as_often_as_it_may():
    spec = batches(ReadSpec(of=ReferencesSpec(of=leaf("x", 90, Fraction(2)))), 1)
    keys, _ = taken(loaders_of(spec, 6, lanes=6))
    assert sorted(keys) == sorted(2 * [f"x/{n}" for n in range(90)])


def test_the_stop_is_at_the_same_micro_batch_whoever_runs_and_after_a_restore():
    spec = tree((leaf("x", 90, Fraction(2)), 1), (LARGE, 2))
    whole, _ = taken([loader_of(spec, lanes=6)])
    half = loader_of(spec, lanes=6)
    first = [key for batch in run([half], 20).values() for key in batch]
    again = loader_of(spec, lanes=6)
    again.load_state_dict(json.loads(json.dumps(half.state_dict())))
    rest, error = taken([again])
    assert first + rest == whole
    assert "leaf 'x'" in str(error)


def opened(path, *, split_part, subset, subflavors):
    return NumberSource(100, path.rsplit("/", 1)[-1])


def stream(node):
    builder = StreamBuilder(
        batch_size=5, task_encoder=DefaultTaskEncoder(), microbatches_per_step=4
    )
    data = load({"splits": {"train": node}})
    return compile_stream(data, "train", open_source=opened, builder=builder).spec


def test_stages_that_end_are_counted_together():
    rare = {"path": "x", "max_repetitions": 3}
    stages = [
        {"name": "one", "end": 10, "blend": [rare, {"path": "y"}]},
        {"name": "two", "end": 30, "blend": [rare, {"path": "y"}]},
        {"name": "three", "path": "y"},
    ]
    check_repetitions(stream({"staged": {"stages": stages}}))
    stages[1]["end"] = 31
    with pytest.raises(SpecError, match="leaf 'x:train': the run draws 310 samples of it"):
        check_repetitions(stream({"staged": {"stages": stages}}))
