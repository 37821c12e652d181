"""Keys are 64-bit hashes of tuples, equal for ever."""

import numpy as np
import pytest

from energy_data.core.keys import key, mix

GOLDEN_KEYS = {
    (): 0x9E3779B97F4A7C15,
    (0,): 0xCD73FE3DE975AC26,
    (-1,): 0x552A5016ABBA0DF5,
    (18446744073709551615,): 0x9CE41992D31384F9,
    ("",): 0x092E363A6A9F0BFE,
    ("seed", 1): 0x5A6DDA9A9A400F0A,
    ("wiki", "train", 3): 0xFEC5C2AAF94A5476,
}
GOLDEN_MIXES = [
    4539270991153227303,
    10056752976161766734,
    11128421375914128827,
    13195013049213172728,
]


def test_a_key_is_the_same_for_ever():
    assert key() == GOLDEN_KEYS[()]
    for parts, value in GOLDEN_KEYS.items():
        assert key(*parts) == value


def test_tuples_that_print_alike_have_different_keys():
    tuples = [(), ("",), ("", ""), ("ab",), ("a", "b"), ("b", "a"), (1,), ("1",), (1, 1), (-1,)]
    tuples += [(2**64 - 1,), (-(2**63),), (2**63,), (0,), (0, 0), (1, "1"), ("1", 1), ("é",)]
    assert len({key(*parts) for parts in tuples}) == len(tuples)


@pytest.mark.parametrize("part", [2**64, -(2**63) - 1])
def test_an_integer_of_more_than_64_bits_is_refused(part):
    with pytest.raises(OverflowError, match="must fit in 64 bits"):
        key("seed", part)


def test_mixed_numbers_are_the_same_for_ever():
    assert mix(key("seed", 1), np.arange(4)).tolist() == GOLDEN_MIXES
    assert mix(0, 0) == 0xE220A8397B1DCDAF  # the first number of splitmix64 from seed 0


def test_mix_broadcasts_and_is_elementwise():
    keys, numbers = np.array([[5], [2**64 - 1]], np.uint64), np.array([0, -1, 2**62])
    mixed = mix(keys, numbers)
    assert mixed.dtype == np.uint64
    assert mixed.shape == (2, 3)
    assert all(mixed[i, j] == mix(keys[i, 0], numbers[j]) for i in range(2) for j in range(3))
    assert mix(1, 2).shape == ()


def test_mixed_numbers_spread_over_all_bits():
    numbers = mix(key("spread"), np.arange(100_000))
    assert len(np.unique(numbers)) == len(numbers)
    for bit in range(64):
        ones = int(((numbers >> np.uint64(bit)) & np.uint64(1)).sum())
        assert abs(ones - 50_000) < 5 * 158
