"""Small leaves: exact epochs for the consumer, and no sample twice in a batch."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import batches, leaf, not_third

from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.loader import Loader
from energy_data.nodes.blend import BlendSpec, Mixed, MixSpec, Part
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.leaf import Shuffle
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.order.schedule import Clock
from energy_data.tasks.datasets import BatchDataset, MapDataset
from loading.runs import in_order, loaders_of, run_in_step

SHUFFLES = [
    Shuffle(),
    Shuffle(buffer_size=50),
    Shuffle(sequence_length=10),
    Shuffle(buffer_size=100, sequence_length=100),
]


def stream(order: OrderSpec, batch_size: int, shuffle: Shuffle = SHUFFLES[-1]):
    clock = Clock(samples_per_microbatch=batch_size)
    return ReadSpec(of=ReferencesSpec(of=order, shuffle=shuffle, batch=batch_size, clock=clock))


def consumed(order, batch_size, lanes, count, *, ranks=1, shuffle=SHUFFLES[-1]):
    """Return the first micro-batches that make up `count` samples."""
    loaders = loaders_of(batches(stream(order, batch_size, shuffle), batch_size), ranks, lanes)
    num = -(-count // batch_size)
    return in_order(loaders, -(-num // ranks))[:num]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(("lanes", "ranks"), [(1, 1), (2, 2), (3, 1), (16, 1), (16, 4), (1024, 8)])
def test_the_consumer_receives_one_epoch_of_a_small_leaf_after_the_other(lanes, ranks, shuffle):
    given_ = consumed(leaf("a", 200), 20, lanes, 2000, ranks=ranks, shuffle=shuffle)
    for epoch in range(10):
        assert len({key for batch in given_[10 * epoch : 10 * epoch + 10] for key in batch}) == 200


@pytest.mark.parametrize("lanes", [1, 3, 16])
@pytest.mark.parametrize("size", [20, 21, 37, 59, 61, 103, 199, 1000, 7001])
def test_a_batch_has_no_sample_twice_if_the_leaf_has_as_many_samples(size, lanes):
    for batch in consumed(leaf("a", size), 20, lanes, 9 * size):
        assert len(set(batch)) == 20


@pytest.mark.parametrize(("lanes", "ranks"), [(1, 1), (3, 3), (16, 4)])
@pytest.mark.parametrize(("weights", "size"), [((1, 1), 50), ((3, 1), 200), ((7, 3), 280)])
def test_so_it_does_in_a_blend_with_the_same_draws_in_every_batch(weights, size, lanes, ranks):
    parts = map(Part, (leaf("large", 10**6), leaf("small", size)), weights)
    found = consumed(BlendSpec(tuple(parts)), 20, lanes, 40 * size, ranks=ranks)
    assert all(len(set(batch)) == 20 for batch in found)
    small = [key for batch in found for key in batch if key.startswith("small")]
    for first in range(0, len(small) - size + 1, size):
        assert len(set(small[first : first + size])) == size


def once(sample):
    yield sample["__key__"]


def test_so_it_does_if_a_generator_yields_one_of_each_sample():
    samples = SavableDataset(spec=stream(leaf("a", 60), 1), worker_config=WorkerConfig(lanes=32))
    loader = Loader(BatchDataset(MapDataset(samples, once), 4, list))
    found = [key for batch in islice(loader, 30) for key in batch]
    assert len(set(found[:60])) == len(set(found[60:])) == 60


def test_epochs_are_shuffled_differently_and_alike_for_any_number_of_lanes():
    first, second, third = (consumed(leaf("a", 180), 60, 4, 540)[n : n + 3] for n in (0, 3, 6))
    assert first != second != third
    few, many = (consumed(leaf("a", 180), 60, lanes, 1800) for lanes in (4, 16))
    assert few == many


@st.composite
def blends(draw):
    """Small leaves, some of them in a blend or a mix with a large one; and a batch size."""
    sizes = draw(st.lists(st.integers(1, 300), min_size=1, max_size=4))
    parts = [leaf(f"leaf{n}", size) for n, size in enumerate(sizes)]
    if draw(st.booleans()):
        parts.append(leaf("large", 20_000))
    weights = [draw(st.integers(1, 9)) for _ in parts]
    kind = draw(st.sampled_from([BlendSpec, MixSpec]))
    part = Mixed if kind is MixSpec else Part
    return kind(tuple(map(part, parts, weights))), draw(st.integers(1, 40))


def check_small_leaves(order, batch_size, lanes, ranks, shuffle, *, filtered, rounds):
    """Each epoch of each leaf is complete; saved anywhere, it continues on any ranks."""
    below = stream(order, batch_size, shuffle)
    spec = batches(FilterSpec(of=below, predicate=not_third) if filtered else below, batch_size)
    num = rounds * lanes
    expected = in_order(loaders_of(spec, 1, lanes), num)
    loaders = loaders_of(spec, ranks, lanes)
    half = rounds // 2 * lanes // ranks
    found = list(run_in_step(loaders, half).values())
    states = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
    (other,) = loaders_of(spec, 1, lanes)
    other.restore_state_global(states)
    assert found + in_order([other], num - len(found)) == expected
    if filtered:
        return
    sizes = {one.of.leaf.id: one.of.leaf.num_samples for one in order.parts}
    counts = {name: Counter() for name in sizes}
    for batch in expected:
        for key in batch:
            counts[key.split("/")[0]][key] += 1
    for name, size in sizes.items():
        # Lanes are a few draws apart, so a late sample of an epoch may follow an early one of the
        # next; each lane has less than 4 draws more or less than its share.
        mean, slack = counts[name].total() / size, (8 * lanes + batch_size) / size + 1
        missing = size - len(counts[name])
        assert not missing or mean <= slack
        assert max(counts[name].values(), default=0) <= mean + slack


@pytest.mark.parametrize(
    "examples", [25, pytest.param(1500, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_random_blends_of_small_leaves_have_exact_epochs_and_keep_the_law(examples):
    @settings(max_examples=examples, deadline=None)
    @given(
        blends(),
        st.sampled_from([(1, 1), (2, 1), (3, 3), (4, 2), (16, 4)]),
        st.sampled_from(SHUFFLES),
        st.booleans(),
        st.integers(1, 12),
    )
    def check(blend, run, shuffle, filtered, rounds):
        check_small_leaves(*blend, *run, shuffle, filtered=filtered, rounds=rounds)

    check()
