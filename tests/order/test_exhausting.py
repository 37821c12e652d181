"""A finite blend goes by weight while its children last, and gives each one its count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.order.splits import integer_weights
from energy_data.order.weighted import ExhaustingChoice, WeightedChoice

GOLDEN = [0, 0, 2, 0, 1, 0, 0, 1, 0, 2, 1, 1, 2, 1, 1, 2, 1, 1]


def make(weights, counts, lane=0, lanes=1):
    return ExhaustingChoice(weights, counts, key=7, lane=lane, lanes=lanes)


@settings(max_examples=100)
@given(
    children=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=1, max_size=12),
    lane=st.integers(0, 3),
    cut=st.integers(0, 800),
)
def test_every_child_has_exactly_its_count(children, lane, cut):
    weights, counts = [w for w, _ in children], [n for _, n in children]
    if not any(weights):
        weights[0] = 1
    wanted = [n if w else 0 for w, n in zip(weights, counts, strict=True)]
    choice = make(weights, counts, lane, 4)
    assert choice.total == sum(wanted)
    drawn = choice.choose(0, choice.total)
    assert drawn.dtype == np.int32
    assert np.bincount(drawn, minlength=len(weights)).tolist() == wanted
    cut = min(cut, choice.total)
    fresh = make(weights, counts, lane, 4)
    assert np.array_equal(fresh.choose(cut, choice.total - cut), drawn[cut:])
    assert np.array_equal(
        fresh.counts_before(cut), np.bincount(drawn[:cut], minlength=len(weights))
    )


def test_until_a_child_ends_it_is_the_weighted_choice():
    weights = [5, 2, 1, 4]
    choice = make(weights, [100, 1000, 1000, 0], 1, 4)
    endless = WeightedChoice([5, 2, 1, 0], key=7, lane=1, lanes=4)
    drawn = choice.choose(0, choice.total)
    first_end = int(np.flatnonzero(drawn == 0)[-1]) + 1
    assert 150 < first_end < 170
    assert np.array_equal(drawn[:first_end], endless.choose(0, first_end))


def test_those_that_are_left_share_by_their_weights():
    drawn = make([6, 2, 1], [600, 10_000, 10_000]).choose(0, 10_000)
    rest = drawn[int(np.flatnonzero(drawn == 0)[-1]) + 1 :]
    shares = (np.arange(len(rest)) + 1) / 3
    assert np.abs((rest == 2).cumsum() - shares).max() < 2


def test_blocks_in_any_order_agree():
    rng = np.random.default_rng(0)
    weights = integer_weights([1 / (i + 1) for i in range(100)])
    counts = rng.integers(0, 300, 100).tolist()
    whole = make(weights, counts).choose(0, sum(counts))
    choice = make(weights, counts)
    for start in rng.integers(0, len(whole), 40).tolist():
        block = choice.choose(start, min(500, len(whole) - start))
        assert np.array_equal(block, whole[start : start + 500])
        assert np.array_equal(
            choice.counts_before(start), np.bincount(whole[:start], minlength=100)
        )


@pytest.mark.parametrize("counts", ["equal", "two groups", "random"])
def test_a_thousand_children_end_one_by_one(counts):
    rng = np.random.default_rng(1)
    weights = integer_weights([1 / (i + 1) for i in range(1000)])
    wanted = {
        "equal": [20] * 1000,
        "two groups": [10] * 500 + [50] * 500,
        "random": rng.integers(0, 100, 1000).tolist(),
    }[counts]
    choice = make(weights if counts == "random" else [1] * 1000, wanted)
    drawn = choice.choose(0, choice.total)
    assert np.bincount(drawn, minlength=1000).tolist() == wanted


def test_counts_of_billions_are_exact():
    counts = [10**12, 3 * 10**9, 17, 5 * 10**11]
    choice = make([2**32, 1, 1, 2**31], counts, 3, 8)
    assert choice.counts_before(choice.total).tolist() == counts
    for start in (10**9, 10**12, choice.total - 5000):
        drawn = choice.choose(start, 5000)
        grown = choice.counts_before(start + 5000) - choice.counts_before(start)
        assert np.array_equal(np.bincount(drawn, minlength=4), grown)


def test_a_lane_without_draws_is_empty():
    choice = make([1, 2], [0, 0])
    assert choice.total == 0
    assert choice.choose(0, 0).shape == (0,)
    assert choice.counts_before(0).tolist() == [0, 0]


def test_draws_after_the_end_are_refused():
    choice = make([1, 0], [3, 9])
    assert choice.choose(0, 3).tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="3 draws in all, draw 4"):
        choice.choose(2, 2)
    with pytest.raises(ValueError, match="3 draws in all, draw 5"):
        choice.counts_before(5)


def test_impossible_weights_and_counts_are_refused():
    with pytest.raises(ValueError, match="some weight must be > 0"):
        make([0, 0], [1, 1])
    with pytest.raises(ValueError, match=r"fewer than 2\*\*48 draws"):
        make([1], [2**48])


def test_the_order_is_the_same_for_ever():
    choice = make([5, 2, 1], [6, 8, 4], 1, 3)
    assert choice.choose(0, 18).tolist() == GOLDEN
