"""Leaves that mix several epochs: each sample comes as often as there are epochs."""

from collections import Counter

import numpy as np
import pytest

from energy_data.core.keys import key
from energy_data.order.shares import Shares, epochs_mixed

LANES = 3


def shares(sizes, epochs, lane=0, **options):
    keys = np.array([key(0, n) for n in range(len(sizes))], np.uint64)
    given = {"sequence_length": 4, "window": 8, "lane": lane, "lanes": LANES, **options}
    return Shares(sizes, keys, epochs=epochs, **given)


def drawn(size, epochs, times):
    """Return (epoch, sample) of `times` times `epochs` epochs of a leaf, lane by lane."""
    found = []
    for lane in range(LANES):
        one = shares([9, size], [1, epochs], lane)
        draws = np.arange(one.begin(1, times * epochs))
        located = one.locate(np.ones_like(draws), draws)
        found += zip(*(column.tolist() for column in located), strict=True)
    return found


@pytest.mark.parametrize("size", [1, 2, 7, 50])
@pytest.mark.parametrize("epochs", [2, 3, 5])
def test_each_sample_comes_as_often_as_there_are_epochs_with_another_epoch_each_time(size, epochs):
    found = drawn(size, epochs, 2)
    assert set(Counter(sample for _, sample in found).values()) == {2 * epochs}
    assert sorted(found) == [(e, s) for e in range(2 * epochs) for s in range(size)]


def test_epochs_are_mixed_with_each_other():
    early = [sample for _, sample in drawn(200, 4, 1)[:200]]
    assert 20 < len(early) - len(set(early)) < 120  # some come again before others came at all


def test_all_epochs_mixed_are_as_if_drawn_with_replacement():
    one = shares([1000], [-1], sequence_length=1, window=0)
    _, sample = one.locate(np.zeros(20_000, np.int64), np.arange(20_000))
    counts = np.bincount(sample, minlength=1000)
    assert abs(counts.mean() - 20) < 1e-9
    assert 16 < counts.var() < 24  # Poisson; in epochs it would be below 1


def test_null_is_the_order_of_the_files_and_leaves_others_alone():
    mixed = shares([30, 30], [None, 1], window=0)
    plain = shares([30, 30], [1, 1], window=0)
    draws = np.arange(10)
    _, sample = mixed.locate(np.zeros(10, np.int64), draws)
    assert (np.diff(sample) == 1).all()
    ours, theirs = (each.locate(np.ones(10, np.int64), draws) for each in (mixed, plain))
    assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))


def test_leaves_of_one_epoch_have_the_same_shares_next_to_others():
    draws = np.arange(4)
    ours, theirs = (
        shares([5, 9], epochs).locate(np.zeros(4, np.int64), draws) for epochs in ([1, 1], [1, 2])
    )
    assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))
    assert shares([5, 9], [1, 2]).begin(1, 3) == shares([5, 9], [1, 1]).begin(1, 3)


@pytest.mark.parametrize("size", [1, 3, 10**9, 2**60])
def test_all_epochs_are_as_many_as_can_be_counted(size):
    assert 1 <= epochs_mixed(-1, size) * size <= 2**61
    with pytest.raises(ValueError, match="2\\*\\*61"):
        shares([size], [2**61 // size + 1])
