"""A lane deals its draws by weight, exactly, from any place on."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from energy_data.order.splits import Splits, integer_weights
from energy_data.order.weighted import WeightedChoice

GOLDEN = {
    ("5:2:1", 0, 0): [1, 0, 0, 2, 0, 1, 0, 0, 1, 0, 0, 2, 0, 1, 0, 0],
    ("5:2:1", 1, 0): [0, 0, 1, 0, 2, 0, 0, 1, 0, 0, 1, 0, 2, 0, 0, 1],
    ("primes", 3, 0): [14, 6, 9, 11, 7, 10, 14, 13, 12, 9, 2, 8, 11, 14, 13, 12],
    ("primes", 3, 1000000000000): [14, 12, 8, 11, 9, 10, 13, 12, 14, 8, 6, 5, 12, 13, 10, 14],
    ("zipf 100", 7, 5000): [0, 16, 87, 55, 4, 0, 1, 89, 3, 32, 0, 2, 77, 13, 95, 0],
    ("equal 7", 2, 0): [2, 6, 4, 3, 0, 5, 1, 2, 6, 4, 3, 0, 5, 1, 2, 6],
}


def fibonacci(num):
    numbers = [1, 1]
    while len(numbers) < num:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:num]


def zipf(num, power=1.0):
    return integer_weights([(i + 1) ** -power for i in range(num)])


PRIMES = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47]
NAMED = {
    "one": [3],
    "two equal": [1, 1],
    "half and quarters": [2, 1, 1],
    "5:2:1": [5, 2, 1],
    "with zeros": [0, 3, 0, 0, 1, 2, 0],
    "fibonacci": fibonacci(40),
    "geometric": [2**i for i in range(32)],
    "steep": [10**i for i in range(9)],
    "one dominant": [10**6] + [1] * 50,
    "one small": [1] + [10**6] * 50,
    "equal 7": [1] * 7,
    "equal 1000": [1] * 1000,
    "zipf 10": zipf(10),
    "zipf 100": zipf(100),
    "zipf 1000": zipf(1000),
    "flat zipf 1000": zipf(1000, 0.3),
    "primes": PRIMES,
    "large primes": [2_147_483_647, 998_244_353, 104_729, 1_000_003],
    "fractions": integer_weights([0.3, 0.25, 0.15, 0.1, 0.08, 0.06, 0.04, 0.02]),
}


def random_weights(num_vectors, seed):
    rng = np.random.default_rng(seed)
    for _ in range(num_vectors):
        k = int(2 ** rng.uniform(1, 9.9))
        size = rng.choice([2, 10, 1000, 10**6])
        yield rng.integers(1, size, k, endpoint=True).tolist()


def make(weights, lane=0, lanes=1):
    return WeightedChoice(weights, key=7, lane=lane, lanes=lanes)


def deviation(weights, lane, lanes, num=2000):
    """Draws of each child less its share, after every prefix: [num + 1, children]."""
    children = make(weights, lane, lanes).choose(0, num)
    drawn = np.zeros((num + 1, len(weights)))
    drawn[np.arange(num) + 1, children] = 1
    shares = np.array(weights) / sum(weights)
    return drawn.cumsum(axis=0) - np.arange(num + 1)[:, np.newaxis] * shares


def check_blocks(weights, lane, lanes, cuts):
    """Every child's numbers are gap-free and unique: its draws in a block are its count's growth.

    As (child, number in the child) of draw n is (choose, growth of before), this is the bijection.
    """
    choice, fresh = make(weights, lane, lanes), make(weights, lane, lanes)
    for begin, end in pairwise(cuts):
        children = choice.choose(begin, end - begin)
        grown = fresh.counts_before(end) - fresh.counts_before(begin)
        assert np.array_equal(np.bincount(children, minlength=len(weights)), grown)
        assert fresh.counts_before(end).sum() == end


@pytest.mark.parametrize("name", NAMED)
def test_named_weights_deal_a_million_draws_without_gap_or_repeat(name):
    rng = np.random.default_rng(len(name))
    cuts = [0, *np.sort(rng.integers(0, 10**6, 7)).tolist(), 10**6]
    check_blocks(NAMED[name], 3, 8, cuts)


@pytest.mark.parametrize("seed", range(20))
def test_random_weights_deal_a_million_draws_without_gap_or_repeat(seed):
    rng = np.random.default_rng(seed)
    for weights in random_weights(10, seed):
        lanes = int(rng.integers(1, 64))
        cuts = [0, *np.sort(rng.integers(0, 10**6, 4)).tolist(), 10**6]
        check_blocks(weights, int(rng.integers(lanes)), lanes, cuts)


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("start", [10**9 + 7, 10**12, 10**15, 2**50 - 20_000])
def test_late_draws_are_as_exact_as_early_ones(name, start):
    weights = NAMED[name]
    check_blocks(weights, 1, 3, [start, start + 1, start + 4099, start + 20_000])
    shares = np.array([Fraction(weight, sum(weights)) for weight in weights])
    assert (
        np.abs((make(weights, 1, 3).counts_before(start) - shares * start).astype(float)).max()
        < 2.5
    )


@pytest.mark.parametrize("name", NAMED)
def test_counts_are_those_of_unbounded_integers(name):
    weights = [weight for weight in NAMED[name] if weight]
    splits = Splits(weights, 5)
    slots = splits.weigh(np.array(weights))
    phases = splits.phases(slots, 2, 9)
    for start in (0, 1, 17, 10**6 + 3, 10**12 + 39, 2**50):
        drawn, remainders = splits.advance(slots, phases, start)
        for split, slot in enumerate(splits._slot.tolist()):
            total, left = int(slots[slot]), int(slots[2 * split])
            moved = int(drawn[slot]) * left + int(phases[split])
            assert (drawn[2 * split], remainders[split]) == divmod(moved, total)


@pytest.mark.parametrize("name", NAMED)
def test_dealing_a_block_and_finding_single_draws_agree(name):
    weights = [weight for weight in NAMED[name] if weight]
    splits = Splits(weights, 5)
    slots = splits.weigh(np.array(weights))
    phases = splits.phases(slots, 2, 9)
    for start in (0, 12_345, 10**12):
        _, remainders = splits.advance(slots, phases, start)
        dealt = splits.deal(slots, remainders, 3000)
        draws = np.arange(start, start + 3000)
        rows = np.zeros(3000, np.int64)
        found = splits.descend(slots[np.newaxis], phases[np.newaxis], rows, draws)
        assert np.array_equal(dealt, found)
        child, first = np.unique(dealt, return_index=True)
        numbers = np.zeros(len(weights), np.int64)
        assert np.array_equal(splits.when(slots, remainders, numbers)[child], first)


def test_blocks_of_any_size_join_to_the_same_draws():
    rng = np.random.default_rng(3)
    weights = NAMED["zipf 100"]
    whole = make(weights, 1, 4).choose(0, 30_000)
    assert whole.dtype == np.int32
    choice, parts, start = make(weights, 1, 4), [], 0
    while start < 30_000:
        count = min(int(rng.integers(0, 3000)), 30_000 - start)
        parts.append(choice.choose(start, count))
        start += count
    assert np.array_equal(np.concatenate(parts), whole)
    for start in rng.integers(0, 29_000, 20).tolist():
        assert np.array_equal(choice.choose(start, 1000), whole[start : start + 1000])


def test_each_lane_by_itself_keeps_the_mixture_at_every_prefix():
    # The worst measured is 2.22; that it stays below 4 can be proved.
    worst = 0.0
    for weights in [*NAMED.values(), *random_weights(60, 99), *random_weights(40, 100)]:
        for lane in (0, 5, 17):
            worst = max(worst, np.abs(deviation(weights, lane, 64)).max())
    assert 1 < worst < 2.5


def test_a_single_lane_keeps_the_mixture_closer_still():
    for weights in [*NAMED.values(), *random_weights(60, 98)]:
        assert np.abs(deviation(weights, 0, 1)).max() < 1.5


@pytest.mark.parametrize("name", ["5:2:1", "fibonacci", "one dominant", "zipf 100", "primes"])
@pytest.mark.parametrize("lanes", [2, 16, 128])
def test_all_lanes_together_keep_the_mixture(name, lanes):
    # Measured for 128 lanes: 15 at most, in 30 vectors of 2 to 1,000 weights.
    weights = NAMED[name]
    together = sum(deviation(weights, lane, lanes) for lane in range(lanes))
    assert np.abs(together).max() < min(len(weights), 4) + 0.1 * lanes


@pytest.mark.parametrize("weights", [[1, 1], [2, 1, 1], [1, 1, 1, 1], [4, 2, 1, 1], [5, 2, 1]])
@pytest.mark.parametrize("lanes", [1, 2, 4, 8])
def test_weights_with_small_periods_do_not_alias_with_lanes(weights, lanes):
    shares = np.array(weights) / sum(weights)
    for lane in range(lanes):
        children = make(weights, lane, lanes).choose(0, 800)
        for part in (children[:80], children[-80:], children):
            counts = np.bincount(part, minlength=len(weights))
            assert np.abs(counts - len(part) * shares).max() < 2.5


def test_the_first_draws_of_the_lanes_are_spread_like_the_weights():
    first = [int(make([5, 2, 1], lane, 64).choose(0, 1)[0]) for lane in range(64)]
    assert np.abs(np.bincount(first, minlength=3) - [40, 16, 8]).max() <= 4


def test_only_the_proportion_of_weights_counts():
    one, other = make([5, 2, 1], 2, 4), make([5000, 2000, 1000], 2, 4)
    assert np.array_equal(one.choose(0, 500), other.choose(0, 500))


def test_the_order_of_the_children_does_not_matter():
    weights = np.array(PRIMES)
    order = np.random.default_rng(5).permutation(len(weights))
    plain = make(weights.tolist(), 2, 4).choose(0, 2000)
    moved = make(weights[order].tolist(), 2, 4).choose(0, 2000)
    assert np.array_equal(order[moved], plain)


def test_children_of_weight_zero_are_never_drawn():
    choice = make([0, 1, 0, 3])
    assert set(choice.choose(0, 1000).tolist()) == {1, 3}
    assert choice.counts_before(1000).tolist() == [0, 250, 0, 750]


@pytest.mark.parametrize("weights", [[], [0], [0, 0]])
def test_no_positive_weight_is_refused(weights):
    with pytest.raises(ValueError, match="some weight must be > 0"):
        make(weights)


def test_weights_with_too_large_a_sum_are_refused():
    with pytest.raises(ValueError, match=r"at most 2\*\*40"):
        make([2**40, 1])


def test_a_draw_beyond_2_to_the_50_is_refused():
    with pytest.raises(OverflowError, match="out of reach"):
        make([1, 2]).choose(2**50, 1)


@pytest.mark.parametrize(
    ("weights", "integers"),
    [
        ([0.7, 0.2, 0.1], [7, 2, 1]),
        ([5, 2, 1], [5, 2, 1]),
        ([500, 200, 100], [5, 2, 1]),
        ([1 / 3, 1 / 3, 1 / 3], [1, 1, 1]),
        ([1 / 3, 2 / 3, 0], [1, 2, 0]),
        ([0.123456, 1], [1929, 15625]),
        ([Fraction(1, 7), Fraction(2, 7)], [1, 2]),
        ([0.5, 1, np.float32(0.25), np.int64(3)], [2, 4, 1, 12]),
        ([0.0, 2.5], [0, 1]),
        ([1e-300, 1.0], [1, 2**32]),
    ],
)
def test_weights_become_the_integers_that_they_mean(weights, integers):
    assert integer_weights(weights) == integers


def test_weights_without_small_integers_keep_ten_digits():
    weights = [np.pi, np.e, 1e-3, 2**0.5]
    integers = integer_weights(weights)
    assert all(isinstance(number, int) for number in integers)
    shares = np.array(weights) / sum(weights)
    assert np.abs(np.array(integers) / sum(integers) - shares).max() < 1e-9


@pytest.mark.parametrize("weight", [-1, -0.1, float("nan"), float("inf")])
def test_a_weight_that_is_no_weight_is_refused(weight):
    with pytest.raises(ValueError, match=r"finite and >= 0, got .* for child 1"):
        integer_weights([1, weight])


@pytest.mark.parametrize("weights", [[], [0], [0.0, 0]])
def test_weights_that_are_all_zero_are_refused(weights):
    with pytest.raises(ValueError, match="some weight must be > 0"):
        integer_weights(weights)


def test_the_order_is_the_same_for_ever():
    for (name, lane, start), children in GOLDEN.items():
        choice = make(NAMED[name], lane, 8)
        assert choice.choose(start, 16).tolist() == children
