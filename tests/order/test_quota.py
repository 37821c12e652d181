"""Every batch of a lane has its exact part of each child."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.order.quota import QuotaChoice, WholeBatches, floor_sum
from energy_data.order.weighted import WeightedChoice

GOLDEN = {
    ((3, 1), 8, 0): [0, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1],
    ((2, 1), 8, 5): [0, 1, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0],
    ((5, 2, 1), 3, 10**9): [1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 0, 1],
}


def make(weights, size, lane=0, lanes=4):
    return QuotaChoice(weights, size, key=7, lane=lane, lanes=lanes)


def counts_of(choice, batches):
    rows = choice.choose(0, batches * choice.size).reshape(batches, choice.size)
    return np.stack([np.bincount(row, minlength=choice.num_children) for row in rows])


def quotas(weights, size):
    return size * np.array(weights) / sum(weights)


def off_by(weights, size, lanes, batches):
    """How far each lane is from its quotas after each batch, [batches, children] for each lane."""
    due = np.arange(1, batches + 1)[:, np.newaxis] * quotas(weights, size)
    each = [make(weights, size, lane, lanes) for lane in range(lanes)]
    return [counts_of(choice, batches).cumsum(axis=0) - due for choice in each]


def vectors():
    weights = st.lists(st.integers(0, 10**6), min_size=1, max_size=12)
    return weights.filter(any)


@settings(max_examples=40, deadline=None)
@given(weights=vectors(), size=st.integers(1, 40), lane=st.integers(0, 3))
def test_each_batch_has_its_quotas_rounded_down_or_up(weights, size, lane):
    counts = counts_of(make(weights, size, lane), 100)
    exact = quotas(weights, size)
    assert (counts.sum(axis=1) == size).all()
    assert (counts >= np.floor(exact + 1e-9)).all()
    assert (counts <= np.ceil(exact - 1e-9)).all()


@pytest.mark.parametrize(
    ("weights", "size"), [((2, 1), 8), ((5, 2, 1), 3), ((1, 1, 1), 7), ((30, 1), 4)]
)
def test_after_a_full_round_of_batches_proportions_are_exact(weights, size):
    rounds = sum(weights)
    for lane in range(4):
        counts = counts_of(make(weights, size, lane), 3 * rounds)
        for start in range(2 * rounds):
            in_round = counts[start : start + rounds].sum(axis=0)
            assert in_round.tolist() == [size * weight for weight in weights]


@settings(max_examples=25, deadline=None)
@given(weights=vectors(), size=st.integers(1, 40), lanes=st.sampled_from([1, 3, 16]))
def test_batches_stay_near_their_quotas_alone_and_together(weights, size, lanes):
    off = off_by(weights, size, lanes, batches=150)
    assert max(np.abs(lane).max() for lane in off) < 6
    assert np.abs(sum(off)).max() < 8


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize(
    "weights",
    [(157_726, 1_000_000, 1_000_000), (133, 333), (53, 301, 400), (131, 1000), (219, 1001)],
    ids=str,
)
def test_where_no_golden_step_comes_through_all_places_quotas_are_kept_too(weights, lanes):
    off = off_by(weights, 1, lanes, batches=1500)
    assert max(np.abs(lane).max() for lane in off) < 6
    assert np.abs(sum(off)).max() < 8


@settings(max_examples=40, deadline=None)
@given(
    weights=vectors(),
    size=st.integers(1, 30),
    cuts=st.lists(st.integers(0, 900), max_size=5).map(sorted),
    by=st.sampled_from(["samples", "batches"]),
)
def test_draws_are_the_same_from_any_place_on(weights, size, cuts, by):
    def fresh():
        if by == "samples":
            return make(weights, size, 2)
        return WholeBatches(WeightedChoice(weights, key=7, lane=2, lanes=4), size)

    whole = fresh().choose(0, 900)
    for start, end in pairwise([0, *cuts, 900]):
        assert np.array_equal(fresh().choose(start, end - start), whole[start:end])
        assert np.array_equal(
            fresh().counts_before(start), np.bincount(whole[:start], minlength=len(weights))
        )


def test_late_batches_are_as_exact_as_early_ones():
    weights, size, start = [5, 2, 1, 13], 10, 10**12
    off = make(weights, size).counts_before(start) - quotas(weights, size) * (start / size)
    assert np.abs(off).max() < 5
    grown = make(weights, size).counts_before(start + 7) - make(weights, size).counts_before(start)
    assert np.array_equal(grown, np.bincount(make(weights, size).choose(start, 7), minlength=4))


def test_a_batch_by_batches_is_of_one_child_in_the_proportion_of_weights():
    choice = WholeBatches(WeightedChoice([3, 1], key=7, lane=0, lanes=1), 5)
    counts = counts_of(choice, 80)
    assert (counts.max(axis=1) == 5).all()
    assert abs(counts[:, 1].sum() - 100) < 10


def test_within_a_batch_children_are_not_in_their_order():
    rows = make([1, 1], 16).choose(0, 64).reshape(4, 16)
    assert len({tuple(row) for row in rows.tolist()}) == 4
    assert all(np.abs(np.diff(row)).sum() > 0 for row in rows)


@settings(max_examples=80, deadline=None)
@given(
    count=st.integers(0, 60),
    divisor=st.integers(1, 50),
    slope=st.integers(0, 200),
    offset=st.integers(0, 200),
)
def test_a_sum_of_quotients_is_that_of_its_terms(count, divisor, slope, offset):
    terms = ((slope * i + offset) // divisor for i in range(count))
    assert floor_sum(count, divisor, slope, offset) == sum(terms)


@pytest.mark.parametrize("size", [0, 2**21 + 1])
def test_a_batch_of_no_size_is_refused(size):
    with pytest.raises(ValueError, match="a batch must have 1 to"):
        make([1], size)


def test_the_order_is_the_same_for_ever():
    for (weights, size, start), children in GOLDEN.items():
        assert make(weights, size).choose(start, 12).tolist() == children
