"""An epochised blend gives every child its exact count in every pass."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.core.keys import key, mix
from energy_data.order.grains import Grains
from energy_data.order.quota import EpochizedChoice
from energy_data.order.shares import Shares

GOLDEN = {
    ("integers", 0, 0): [2, 0, 1, 0, 2, 0, 1, 0, 2, 0, 1, 0, 0, 1, 0, 0],
    ("fractions", 1, 0): [2, 1, 2, 1, 2, 0, 1, 2, 0, 1, 2, 1, 2, 1, 2, 0],
    ("many", 2, 1000000000000): [
        66,
        195,
        117,
        172,
        154,
        182,
        88,
        71,
        106,
        129,
        191,
        164,
        140,
        185,
        60,
        9,
    ],
    ("long", 1, 5000): [1, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1],
}

SIZES = {
    "integers": [5, 2, 1],
    "fractions": [Fraction(5, 3), Fraction(7, 2), 4],
    "less than one": [Fraction(1, 10), Fraction(1, 3)],
    "with zeros": [0, 30, 0, Fraction(15, 2)],
    "one": [9],
    "many": [Fraction(i, 7) for i in range(1, 200)],
    "long": [10_000, Fraction(100_001, 3), 77],
    "mixed": [3000, 1, Fraction(1, 50), 40],
}


def dealt(sizes, lane, lanes):
    """Children whose grains are of every kind, in turns."""
    kinds = [Fraction(0), Fraction(1), Fraction(5, 2), Fraction(4)]
    keys = mix(key("children"), np.arange(len(sizes)))
    return Grains([kinds[n % 4] for n in range(len(sizes))], keys, lane=lane, lanes=lanes)


def make(sizes, lane=0, lanes=1):
    grains = dealt(sizes, lane, lanes)
    return EpochizedChoice(sizes, key=7, lane=lane, lanes=lanes, grains=grains)


def counts_before(sizes, lane, lanes, epoch):
    grains = dealt(sizes, lane, lanes)
    return [grains.count(child, floor(epoch * n)) for child, n in enumerate(sizes)]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("lanes", [1, 3, 16])
def test_every_lane_has_its_exact_counts_before_every_pass(name, lanes):
    sizes = SIZES[name]
    for lane in range(lanes):
        choice = make(sizes, lane, lanes)
        children = choice.choose(0, 5000)
        assert children.dtype == np.int32
        for epoch in range(40):
            begin, counts = choice.begin(epoch), counts_before(sizes, lane, lanes, epoch)
            assert begin == sum(counts)
            if begin <= 5000:
                assert np.bincount(children[:begin], minlength=len(sizes)).tolist() == counts
                assert choice.counts_before(begin).tolist() == counts


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("lanes", [1, 5, 64])
def test_all_lanes_together_draw_each_child_by_its_size(name, lanes):
    sizes = SIZES[name]
    for epoch in (0, 1, 2, 1000, 10**9):
        drawn = np.zeros(len(sizes), np.int64)
        for lane in range(lanes):
            choice = make(sizes, lane, lanes)
            drawn += choice.counts_before(choice.begin(epoch + 1)) - choice.counts_before(
                choice.begin(epoch)
            )
        assert drawn.tolist() == [floor((epoch + 1) * n) - floor(epoch * n) for n in sizes]


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("start", [0, 999, 10**9, 10**12, 10**13 + 1])
def test_blocks_and_counts_agree_at_any_place(name, start):
    sizes = SIZES[name]
    choice, fresh = make(sizes, 2, 3), make(sizes, 2, 3)
    whole = make(sizes, 2, 3).choose(start, 3000)
    for begin, end in ((0, 1), (1, 300), (300, 301), (301, 2900), (2900, 3000)):
        children = choice.choose(start + begin, end - begin)
        assert np.array_equal(children, whole[begin:end])
        grown = fresh.counts_before(start + end) - fresh.counts_before(start + begin)
        assert np.array_equal(np.bincount(children, minlength=len(sizes)), grown)
    assert fresh.counts_before(start).sum() == start


@settings(max_examples=50)
@given(
    sizes=st.lists(
        st.integers(0, 2000) | st.fractions(0, 100, max_denominator=50), min_size=1, max_size=6
    ).filter(any),
    lanes=st.integers(1, 70),
    start=st.integers(0, 10**10),
    data=st.data(),
)
def test_any_sizes_give_every_pass_its_counts(sizes, lanes, start, data):
    lane = data.draw(st.integers(0, lanes - 1))
    choice = make(sizes, lane, lanes)
    children = choice.choose(start, 200)
    grown = choice.counts_before(start + 200) - choice.counts_before(start)
    assert np.array_equal(np.bincount(children, minlength=len(sizes)), grown)
    assert choice.counts_before(start).sum() == start


def test_counts_agree_with_the_shares_of_the_children():
    samples, lanes = [1000, 17, 3], 8
    keys = mix(key("leaves"), np.arange(3))
    for lane in range(lanes):
        shares = Shares(samples, keys, sequence_length=0, window=0, lane=lane, lanes=lanes)
        choice = EpochizedChoice(
            samples,
            key=1,
            lane=lane,
            lanes=lanes,
            grains=shares.grains,
        )
        for epoch in (0, 1, 5, 1000):
            counts = choice.counts_before(choice.begin(epoch)).tolist()
            assert counts == [shares.begin(leaf, epoch) for leaf in range(3)]


def test_children_are_interleaved_within_a_pass():
    children = make([600, 300, 100]).choose(0, 1000)
    drawn = np.eye(3)[children].cumsum(axis=0)
    shares = np.arange(1, 1001)[:, np.newaxis] * np.array([0.6, 0.3, 0.1])
    assert np.abs(drawn - shares).max() < 2


@pytest.mark.parametrize("sizes", [[0], [0, Fraction(0)], []])
def test_sizes_that_are_all_zero_are_refused(sizes):
    with pytest.raises(ValueError, match="must be > 0"):
        make(sizes)


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="got -1 for child 1"):
        make([1, -1])


def test_sizes_that_would_not_be_exact_are_refused():
    with pytest.raises(ValueError, match="at most 2\\*\\*40 draws in a pass"):
        make([2**41])
    with pytest.raises(ValueError, match="denominator of at most"):
        make([Fraction(1, 2**41)])


def test_a_draw_beyond_2_to_the_50_is_refused():
    with pytest.raises(OverflowError, match="out of reach"):
        make([5]).choose(2**50, 1)
    with pytest.raises(OverflowError, match="one of 65536 lanes"):
        make([5], 0, 2**16).counts_before(2**46)


def test_the_order_is_the_same_for_ever():
    for (name, lane, start), children in GOLDEN.items():
        assert make(SIZES[name], lane, 3).choose(start, 16).tolist() == children
