"""The shares of the lanes are each epoch of a leaf, once."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energy_data.core.keys import key, mix
from energy_data.order.grains import LARGEST_DENOMINATOR
from energy_data.order.shares import Shares

GOLDEN = {
    (103, 0, 0, 0): [69, 70, 71, 72, 73, 74, 75, 76, 77, 78, 79, 80],
    (103, 0, 10, 0): [54, 55, 56, 57, 58, 59, 90, 91, 92, 93, 94, 95],
    (103, 0, 0, 20): [83, 69, 81, 75, 76, 74, 84, 86, 82, 88, 79, 78],
    (103, 0, 10, 20): [96, 90, 92, 91, 55, 59, 58, 56, 99, 57, 95, 94],
    (103, 0, 1, 1000): [12, 80, 82, 16, 91, 15, 84, 37, 55, 23, 57, 73],
    (5003, Fraction(7, 2), 10, 20): [1154, 1151, 1153, 1159, 2998, 1150, 1155, 1152, 2999, 1158],
    (103, Fraction(20, 1), 10, 20): [50, 75, 42, 86, 18, 76, 61, 47, 51, 40, 52, 32],
    (40, Fraction(20, 1), 10, 20, True): [3, 1, 8, 7, 6, 4, 2, 9, 5, 23, 25, 21],
    (40, Fraction(20, 1), 10, 20): [14, 7, 27, 39, 33, 36, 8, 32, 26, 11, 22, 25],
}


def make(num_samples, lane, lanes, *, sequence_length=0, window=0, keys=None, **options):
    keys = mix(key("leaves"), np.arange(len(num_samples))) if keys is None else keys
    return Shares(
        num_samples,
        keys,
        sequence_length=sequence_length,
        window=window,
        lane=lane,
        lanes=lanes,
        **options,
    )


def options(sequence_length, window, runs=False):
    return {"sequence_length": sequence_length, "window": window, "runs": runs}


def draws(shares, leaf, begin, end):
    return shares.locate(np.full(end - begin, leaf), np.arange(begin, end))


def epoch_of_all_lanes(num_samples, lanes, epoch, **lengths):
    """Samples in the order of one epoch: the shares one after another, by lane position."""
    parts = {}
    for lane in range(lanes):
        shares = make([num_samples], lane, lanes, **lengths)
        epochs, samples = draws(shares, 0, shares.begin(0, epoch), shares.begin(0, epoch + 1))
        assert (epochs == epoch).all()
        parts[lanes - 1 - int(shares.grains.positions[0])] = samples
    assert sorted(parts) == list(range(lanes))
    return np.concatenate([parts[position] for position in range(lanes)])


def consumed(num_samples, lanes, grain, count, **lengths):
    """The first draws of a leaf over all lanes, in their order: epochs and samples."""
    found = np.full((2, count), -1)
    for lane in range(lanes):
        shares = make([num_samples], lane, lanes, grains=[Fraction(grain)], **lengths)
        end = shares.grains.count(0, count)
        leaf = np.zeros(end, np.int64)
        numbers = shares.grains.numbers(leaf, np.arange(end))
        found[:, numbers] = shares.locate(leaf, np.arange(end))
    assert found.min() >= 0
    return found


@pytest.mark.parametrize(
    "lengths", [(0, 0), (1, 0), (3, 5), (7, 100), (0, 4), (7, 14, True), (1, 2, True)]
)
@pytest.mark.parametrize("lanes", [*range(1, 17), 31, 32, 33, 47, 63, 64])
def test_shares_of_every_size_are_disjoint_and_complete(lanes, lengths):
    sizes = np.arange(1, 201)
    found = []
    for lane in range(lanes):
        shares = make(sizes, lane, lanes, **options(*lengths))
        counts = np.array([shares.begin(leaf, 2) for leaf in range(len(sizes))])
        leaf = np.repeat(np.arange(len(sizes)), counts)
        draw = np.arange(len(leaf)) - np.repeat(counts.cumsum() - counts, counts)
        epoch, sample = shares.locate(leaf, draw)
        assert (sample < sizes[leaf]).all()
        found.append(leaf * 1000 + epoch * 500 + sample)
    wanted = [leaf * 1000 + e * 500 + np.arange(n) for leaf, n in enumerate(sizes) for e in (0, 1)]
    assert np.array_equal(np.sort(np.concatenate(found)), np.sort(np.concatenate(wanted)))


@settings(max_examples=60)
@given(
    num_samples=st.integers(1, 2**40),
    lanes=st.integers(1, 1024),
    sequence_length=st.integers(0, 300),
    window=st.integers(0, 2000),
    data=st.data(),
)
def test_late_draws_are_in_the_epoch_that_begins_before_them(
    num_samples, lanes, sequence_length, window, data
):
    lane = data.draw(st.integers(0, lanes - 1))
    late = data.draw(st.integers(0, 2**62 // lanes - 100))
    shares = make([num_samples], lane, lanes, sequence_length=sequence_length, window=window)
    epochs, samples = draws(shares, 0, late, late + 50)
    for draw, epoch in zip(range(late, late + 50), epochs.tolist(), strict=True):
        assert shares.begin(0, epoch) <= draw < shares.begin(0, epoch + 1)
    assert ((samples >= 0) & (samples < num_samples)).all()
    assert len(set(zip(epochs.tolist(), samples.tolist(), strict=True))) == 50


def test_a_late_epoch_of_few_samples_is_complete():
    for epoch in (10**12 // 7, 10**12):
        order = epoch_of_all_lanes(7, 5, epoch, sequence_length=2, window=3)
        assert sorted(order.tolist()) == list(range(7))


def test_without_shuffling_an_epoch_is_the_order_of_the_file():
    assert epoch_of_all_lanes(1000, 7, 1).tolist() == list(range(1000))


@pytest.mark.parametrize("grain", [0, 1, 4, Fraction(7, 3)])
def test_without_shuffling_the_consumer_receives_a_small_leaf_in_the_order_of_the_file(grain):
    epochs, samples = consumed(100, 7, grain, 300, sequence_length=0, window=0)
    assert epochs.tolist() == [n // 100 for n in range(300)]
    assert samples.tolist() == [n % 100 for n in range(300)]


def test_sequences_stay_together_and_move_as_a_whole():
    order = epoch_of_all_lanes(1003, 7, 1, sequence_length=10)
    starts = [0, *(np.flatnonzero(np.diff(order) != 1) + 1).tolist()]
    sequences = [order[a:b] for a, b in zip(starts, [*starts[1:], len(order)], strict=True)]
    assert all(sequence[0] % 10 == 0 for sequence in sequences)
    assert len(sequences) > 90
    assert order.tolist() != list(range(1003))


def most_runs(samples, length):
    """How many runs of samples have begun and not ended at a time, at most."""
    runs = samples // length
    first, last = (
        [order.tolist().index(run) for run in set(runs.tolist())] for order in (runs, runs[::-1])
    )
    change = np.zeros(len(runs) + 1, np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, len(runs) - np.array(last), -1)
    return change.cumsum().max()


@pytest.mark.parametrize("lanes", [3, 16])
@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_a_lane_is_within_two_runs_at_a_time(lanes, epoch):
    for lane in range(lanes):
        shares = make([4000], lane, lanes, **options(50, 100, runs=True))
        _, samples = draws(shares, 0, shares.begin(0, epoch), shares.begin(0, epoch + 1))
        assert most_runs(samples, 50) == 2


def test_all_lanes_are_within_two_runs_of_a_small_leaf():
    whole = slice(50, 950)  # an epoch may begin within a run, and ends within it then
    _, samples = consumed(1000, 16, 8, 1000, **options(50, 100, runs=True))
    assert most_runs(samples[whole], 50) == 2
    _, samples = consumed(1000, 16, 8, 1000, **options(50, 100))
    assert most_runs(samples[whole], 50) == 20


def test_the_short_sequence_is_not_always_last():
    lasts = {
        int(np.flatnonzero(epoch_of_all_lanes(1003, 1, epoch, sequence_length=10) == 1000)[0])
        for epoch in range(20)
    }
    assert len(lasts) > 10


@pytest.mark.parametrize("window", [2, 16, 100])
def test_a_window_moves_a_draw_by_less_than_its_size(window):
    plain = make([5000], 2, 3, sequence_length=10)
    mixed = make([5000], 2, 3, sequence_length=10, window=window)
    begin, end = plain.begin(0, 3), plain.begin(0, 4)
    _, before = draws(plain, 0, begin, end)
    _, after = draws(mixed, 0, begin, end)
    moved = np.argsort(before)[np.argsort(np.argsort(after))] - np.arange(end - begin)
    assert 0 < np.abs(moved).max() < window


@pytest.mark.parametrize("lane", range(4))
def test_a_lane_that_begins_needs_at_most_twice_the_sequences_that_it_has_used(lane):
    shares = make([8000], lane, 4, sequence_length=10, window=160)
    _, samples = draws(shares, 0, 0, 1920)
    needed = [len(set(samples[: used * 10 + 1] // 10)) for used in range(1, 190)]
    assert len(set(samples[:10] // 10)) <= 2  # the first sequence is shared with another lane
    grown = [min(2 * used, used + 16) + 2 for used in range(1, 190)]
    assert all(need <= most for need, most in zip(needed, grown, strict=True))
    assert max(need - used for used, need in enumerate(needed, 1)) > 10  # it mixes as many


def test_epochs_and_lanes_and_keys_have_orders_of_their_own():
    shares = make([1000, 1000], 0, 1, window=1000)
    orders = [draws(shares, leaf, e * 1000, e * 1000 + 1000)[1] for leaf in (0, 1) for e in (0, 1)]
    same = [int((a == b).sum()) for i, a in enumerate(orders) for b in orders[:i]]
    assert max(same) < 10


def test_the_order_of_a_leaf_does_not_depend_on_the_others():
    alone = make([777], 3, 8, sequence_length=5, window=20, keys=[key("leaf")])
    table = make(
        [5, 777, 10**6], 3, 8, sequence_length=5, window=20, keys=[key("a"), key("leaf"), key("b")]
    )
    rng = np.random.default_rng(0)
    leaf, draw = rng.integers(0, 3, 2000), rng.integers(0, 3000, 2000)
    epoch, sample = table.locate(leaf.astype(np.int32), draw)
    ours = leaf == 1
    again = alone.locate(np.zeros(int(ours.sum()), np.int64), draw[ours])
    assert np.array_equal(epoch[ours], again[0])
    assert np.array_equal(sample[ours], again[1])


def test_draws_located_together_or_one_by_one_are_the_same():
    rng = np.random.default_rng(1)
    leaf, draw = rng.integers(0, 3, 500), rng.integers(0, 300, 500)
    used = make([11, 23, 57], 1, 2, sequence_length=4)
    together = used.locate(leaf, draw)
    one_by_one = [used.locate(leaf[i : i + 1], draw[i : i + 1]) for i in range(500)]
    assert np.array_equal(together[1], np.concatenate([sample for _, sample in one_by_one]))


def test_nothing_to_locate_is_no_special_case():
    epoch, sample = make([5], 0, 1, sequence_length=2, window=2).locate([], [])
    assert epoch.shape == sample.shape == (0,)


@pytest.mark.parametrize("num_samples", [0, -1, 2**61 + 1])
def test_a_leaf_without_samples_or_with_too_many_is_refused(num_samples):
    with pytest.raises(ValueError, match=f"1 to 2\\*\\*61 samples, got {num_samples} for leaf 1"):
        make([5, num_samples], 0, 1)


def test_a_lane_with_few_samples_is_at_another_place_of_a_sequence_in_every_epoch():
    shares = make([9], 5, 24, sequence_length=3)
    _, samples = draws(shares, 0, 0, 60)
    assert set(samples % 3) == {0, 1, 2}


def test_a_draw_beyond_2_to_the_62_is_refused():
    shares = make([5], 0, 64)
    shares.locate([0], [2**56 - 2])
    with pytest.raises(OverflowError, match="must stay below 2"):
        shares.locate([0], [2**56 - 1])


def test_the_order_is_the_same_for_ever():
    for (size, grain, *lengths), samples in GOLDEN.items():
        shares = make([size], 1, 3, grains=[Fraction(grain)], **options(*lengths))
        begin = shares.begin(0, 2)
        assert draws(shares, 0, begin, begin + len(samples))[1].tolist() == samples


GRAINS = st.one_of(
    st.just(Fraction(0)),
    st.integers(1, 40).map(Fraction),
    st.fractions(1, 40, max_denominator=LARGEST_DENOMINATOR),
)
LENGTHS = st.sampled_from(
    [(0, 0), (1, 0), (3, 5), (7, 100), (0, 4), (100, 1600), (7, 14, True), (50, 100, True)]
)


@settings(max_examples=150)
@given(size=st.integers(1, 400), lanes=st.integers(1, 20), grain=GRAINS, lengths=LENGTHS)
def test_every_epoch_has_each_sample_once_in_the_order_of_the_consumer(size, lanes, grain, lengths):
    epochs, samples = consumed(size, lanes, grain, 5 * size, **options(*lengths))
    assert np.array_equal(epochs, np.arange(5 * size) // size)
    assert np.array_equal(np.sort(samples.reshape(5, size)), np.tile(np.arange(size), (5, 1)))


@settings(max_examples=150)
@given(
    grain=st.integers(2, 30),
    lanes=st.integers(1, 20),
    times=st.fractions(1, 20),
    lengths=LENGTHS,
    key_=st.integers(0, 10**6),
)
def test_a_grain_never_has_a_sample_twice_if_the_leaf_has_more(grain, lanes, times, lengths, key_):
    size = int(grain * times) + 1
    keys = mix(key("grains", key_), [0])
    for lane in range(lanes):
        shares = make([size], lane, lanes, grains=[Fraction(grain)], keys=keys, **options(*lengths))
        end = 12 * size // (lanes * grain) * grain
        _, samples = draws(shares, 0, 0, end)
        assert (np.diff(np.sort(samples.reshape(-1, grain))) > 0).all()


@given(grain=GRAINS, lanes=st.integers(1, 4), more=st.integers(0, 100), lengths=LENGTHS)
def test_a_lane_of_a_large_leaf_never_has_a_sample_twice_in_neighbouring_draws(
    grain, lanes, more, lengths
):
    draw = max(ceil(grain), 1)
    size = 16 * lanes * draw + more
    for lane in range(lanes):
        _, samples = draws(
            make([size], lane, lanes, grains=[grain], **options(*lengths)), 0, 0, 5 * size // lanes
        )
        near = np.lib.stride_tricks.sliding_window_view(samples, draw + 4)
        assert (np.diff(np.sort(near)) > 0).all()


def test_samples_of_a_small_leaf_are_neighbours_by_chance_only():
    _, samples = consumed(200, 16, 20, 200 * 50, sequence_length=100, window=1600)
    assert (np.abs(np.diff(samples)) == 1).mean() < 0.02


def test_each_place_of_an_epoch_has_every_sample_as_often():
    size, epochs = 30, 6000
    _, samples = consumed(size, 4, 5, size * epochs, sequence_length=100, window=0)
    table = np.zeros((size, size))
    np.add.at(table, (np.arange(len(samples)) % size, samples), 1)
    expected = epochs / size
    chi = ((table - expected) ** 2 / expected).sum()
    assert chi < size**2 + 6 * np.sqrt(2 * size**2)


@given(st.integers(1, 50), GRAINS, st.integers(0, 10**12))
def test_the_lanes_share_all_draws(lanes, grain, total):
    of_lanes = [make([9], lane, lanes, grains=[grain]).grains for lane in range(lanes)]
    assert sum(one.count(0, total) for one in of_lanes) == total
    leaf, totals = np.zeros(1, np.int64), np.array([total])
    assert [one.count(0, total) for one in of_lanes] == [
        int(one.counts(leaf, totals)[0]) for one in of_lanes
    ]
    (next_,) = [one for one in of_lanes if one.count(0, total + 1) > one.count(0, total)]
    assert next_.numbers(leaf, np.array([next_.count(0, total)])).tolist() == [total]


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([0, 1, 7, 30]), min_size=1, max_size=4),
    windows=st.lists(st.sampled_from([0, 1, 12, 60]), min_size=4, max_size=4),
    lanes=st.sampled_from([1, 3]),
    small=st.booleans(),
)
def test_each_leaf_may_have_lengths_of_its_own(lengths, windows, lanes, small):
    count = len(lengths)
    sizes, keys = np.arange(count) * 31 + 90, mix(key("leaves"), np.arange(count))
    grains = [Fraction(4)] * count if small else ()
    together = make(
        sizes, 0, lanes, sequence_length=lengths, window=windows[:count], keys=keys, grains=grains
    )
    for leaf, (length, window) in enumerate(zip(lengths, windows, strict=False)):
        alone = make(
            sizes[leaf : leaf + 1], 0, lanes, sequence_length=length, window=window,
            keys=keys[leaf : leaf + 1], grains=grains[:1],
        )  # fmt: skip
        for mine, its in zip(draws(alone, 0, 0, 400), draws(together, leaf, 0, 400), strict=True):
            assert mine.tolist() == its.tolist()
