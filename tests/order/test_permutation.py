"""A keyed permutation of any size, of which every element can be asked for on its own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from energy_data.core.keys import finalise
from energy_data.order.permutation import (
    _SMALL,
    _STEP,
    _TURNS,
    _below,
    _root,
    _rotated,
    permute,
)

GOLDEN = {
    (8, 0): [2, 6, 7, 5, 4, 1, 0, 3],
    (10, 1): [6, 5, 1, 8, 0, 9, 4, 7],
    (65, 2): [38, 13, 10, 24, 0, 6, 63, 58],
    (1000, 3): [458, 531, 939, 693, 623, 10, 567, 453],
    (1000000007, 18446744073709551615): [
        374718858,
        464258206,
        821067378,
        463781860,
        315724099,
        59685907,
        690297447,
        949723354,
    ],
    (4611686018427387904, 5): [
        3323930780395807210,
        2714978822309877538,
        1448444463754464090,
        1674225935542863853,
        1212767245159162362,
        4097886846429941356,
        857678978895441176,
        1792684630126296140,
    ],
}


def unpermute(places, n, key):
    """Return the numbers that `permute` moves to these places: its turns, undone one by one."""
    places, n, key = (
        np.atleast_1d(np.asarray(each).astype(np.uint64)) for each in (places, n, key)
    )
    rows = _root(n)
    columns = (n + rows - np.uint64(1)) // rows
    rest = n - (rows - np.uint64(1)) * columns
    row, column = np.divmod(places, columns)
    state = finalise(key + np.uint64(_STEP))
    for turn in reversed(range(2 * _TURNS)):
        mine = (turn < _TURNS) | (n < _SMALL)
        cells = rows - (column >= rest)
        shift = cells - _below(cells, column + state, 2 * turn + 1)
        row = np.where(mine, _rotated(row, shift, cells), row)
        cells = np.where(row == rows - np.uint64(1), rest, columns)
        shift = cells - _below(cells, row + state, 2 * turn)
        column = np.where(mine, _rotated(column, shift, cells), column)
    return (row * columns + column).view(np.int64)


SIZES = [*range(1, 130), 255, 256, 257, 1000, 4095, 4096, 4097, 65_535, 100_003]


def test_every_size_and_key_gives_a_permutation():
    for n in SIZES:
        for key in (0, 1, 2**64 - 1):
            places = permute(np.arange(n), n, key)
            assert places.dtype == np.int64
            assert np.array_equal(np.sort(places), np.arange(n)), (n, key)
            assert np.array_equal(unpermute(places, n, key), np.arange(n)), (n, key)


def test_each_element_may_have_its_own_size_and_key():
    rng = np.random.default_rng(0)
    n = rng.choice(SIZES, 3000)
    x, key = rng.integers(0, n), rng.integers(0, 2**64, 3000, np.uint64)
    together = permute(x, n, key)
    assert together.tolist() == [
        int(permute(*each)) for each in zip(x.tolist(), n.tolist(), key.tolist(), strict=True)
    ]
    assert np.array_equal(unpermute(together, n, key), x)


@given(
    n=st.integers(1, 2**62) | st.integers(0, 62).map(lambda bits: 2**bits),
    part=st.integers(0, 2**62),
    key=st.integers(0, 2**64 - 1),
)
def test_any_size_up_to_2_to_the_62_stays_inside_and_turns_back(n, part, key):
    x = np.array([part % n, 0, n - 1, n // 2], np.int64)
    places = permute(x, n, key)
    assert ((places >= 0) & (places < n)).all()
    assert len(np.unique(places)) == len(np.unique(x))
    assert np.array_equal(unpermute(places, n, key), x)


@pytest.mark.parametrize("root", [2**31, 2**31 - 1, 2**31 - 2**5, 3 * 2**29, 94_906_266])
def test_sizes_next_to_large_squares_are_exact(root):
    for n in (root * root - 1, root * root, min(root * root + 1, 2**62), root * (root - 1) + 1):
        x = np.concatenate([np.arange(2000), n - 1 - np.arange(2000)])
        places = permute(x, n, 5)
        assert ((places >= 0) & (places < n)).all()
        assert np.array_equal(unpermute(places, n, 5), x)


def test_shapes_broadcast():
    x, n, key = np.arange(5), np.array([[5], [9]]), np.array([[[1]], [[2]], [[3]]])
    places = permute(x, n, key)
    assert places.shape == (3, 2, 5)
    assert places[2, 1, 4] == permute(4, 9, 3)
    assert permute(4, 9, 3).shape == ()
    assert permute(np.arange(0), 7, 1).shape == (0,)


def test_unsigned_and_signed_arguments_are_the_same():
    x = np.arange(100)
    unsigned = permute(x.astype(np.uint64), np.uint64(100), np.uint64(2**64 - 3))
    assert np.array_equal(unsigned, permute(x, 100, np.int64(-3)))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 10, 13, 16, 21, 32, 37, 50, 63, 64, 100])
def test_positions_and_pairs_are_uniform_over_keys(n):
    keys = 20_000
    places = permute(np.arange(n), n, np.arange(keys)[:, np.newaxis])
    for x in (0, n // 2, n - 1):
        assert _excess(places[:, x], n) < 6
    for x, y in ((0, 1), (0, n - 1), (n - 2, n - 1)):
        if x < y:
            apart = (places[:, y] - places[:, x]) % n - 1
            assert _excess(places[:, x] * (n - 1) + apart, n * (n - 1)) < 6


def test_neighbours_of_a_large_permutation_are_far_apart():
    n = 10**6
    places = permute(np.arange(n), n, 11)
    steps = np.abs(np.diff(places)) / n
    assert abs(float(steps.mean()) - 1 / 3) < 0.002
    assert abs(float(np.corrcoef(places[:-1], places[1:])[0, 1])) < 0.005
    assert abs(float(np.corrcoef(np.arange(n), places)[0, 1])) < 0.005


def test_the_order_is_the_same_for_ever():
    for (n, key), places in GOLDEN.items():
        assert permute(np.arange(8), n, key).tolist() == places


def _excess(outcomes, num):
    """Pearson's chi-square of equal frequencies, in standard deviations above its mean."""
    if num < 2:
        return 0.0
    expected = len(outcomes) / num
    square = ((np.bincount(outcomes, minlength=num) - expected) ** 2).sum() / expected
    return float((square - (num - 1)) / np.sqrt(2 * (num - 1)))
