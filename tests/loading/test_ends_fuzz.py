"""Random finite streams, saved and restored on any ranks: nothing is lost, ranks end together."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_trees import packed, shuffles
from trees import groups, leaf, not_fifth, not_third, numbers, parts, renamed, twice

from energy_data import merge_states
from energy_data.core.context import Context
from energy_data.errors import DataError, SkipSample
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec, Part, Repeated
from energy_data.nodes.encode import EncodeSpec, FlatMapSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.passes import ConcatSpec, EpochizeSpec, LimitSpec, RepeatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from loading.runs import flat, loaders_of, run

pytestmark = pytest.mark.slow

EXAMPLES = 100 if settings.default.derandomize else 150
LANES = {1: [1, 2, 4, 6, 12], 2: [2, 4, 6, 12], 3: [3, 6, 12], 4: [4, 12]}
WHOLE = 2000  # more batches than a pass has


def some_batches(batch):
    keys = list(flat(batch))
    if sum(map(len, keys)) % 4 == 0 or keys[0].endswith("7"):
        raise SkipSample
    return batch


def some_numbers(samples):
    return some_batches(numbers(samples))


@cache
def orders(depth=2):
    leaves = st.sampled_from(
        [
            leaf("a", 10),
            leaf("c", 1),
            leaf("d", 41),
            leaf("bad", 23, frozenset({0, 4, *range(9, 16)})),
            leaf("worse", 30, frozenset({n for n in range(30) if n % 7 not in (2, 5)})),
        ]
    )
    if not depth:
        return leaves
    below = orders(depth - 1)
    times = st.sampled_from([Fraction(1, 3), Fraction(1), Fraction(5, 2)])
    return st.one_of(
        leaves,
        st.lists(st.builds(Part, below, st.sampled_from([0.3, 1, 5])), min_size=1, max_size=3)
        .map(tuple)
        .map(BlendSpec),
        st.lists(st.builds(Repeated, below, times), min_size=1, max_size=3)
        .filter(lambda all_: sum(part.of.size * part.repetitions for part in all_) >= 1)
        .map(tuple)
        .map(BlendEpochizedSpec),
        st.lists(below, min_size=1, max_size=3).map(tuple).map(ConcatSpec),
        st.builds(EpochizeSpec, of=below, length=st.integers(1, 50)),
        st.builds(RepeatSpec, of=below, times=st.integers(1, 2)),
    )


@cache
def dealt(deal, *, drops=True):
    """Finite streams of samples, some of which are bad or skipped."""
    read = st.builds(
        ReadSpec,
        of=st.builds(
            ReferencesSpec,
            of=orders(),
            shuffle=shuffles(),
            deal=st.just(deal),
            drop_last=st.booleans() if drops else st.just(False),
        ),
    )
    return st.one_of(
        read,
        st.builds(EncodeSpec, of=read, encode=st.sampled_from([renamed, not_fifth])),
        st.builds(FilterSpec, of=read, predicate=st.just(not_third)),
    )


@cache
def counted():
    """Streams whose batches are numbered by one order, whatever the lanes."""
    return st.integers(1, 5).flatmap(
        lambda size: st.builds(
            BatchSpec,
            of=dealt(size),
            batch_size=st.just(size),
            collate=st.sampled_from([numbers, some_numbers]),
            aligned=st.just(True),
        )
    )


@cache
def uncounted():
    """Packs, groups and several samples of one: every sample comes, in batches of any size."""
    samples = st.sampled_from([1, 2, 8]).flatmap(lambda deal: dealt(deal, drops=False))
    several = st.builds(EncodeSpec, of=samples, encode=st.just(parts))
    items = st.one_of(packed(samples), packed(several), several)
    return st.one_of(
        st.builds(BatchSpec, of=items, batch_size=st.integers(1, 3), collate=st.just(numbers)),
        st.builds(groups, items, st.integers(1, 3)),
        st.builds(FlatMapSpec, of=counted(), function=st.just(twice)),
    )


@cache
def wrapped():
    """Streams with nodes above the batches."""
    of = st.one_of(counted(), uncounted())
    return st.one_of(
        st.builds(EncodeSpec, of=of, encode=st.just(some_batches)),
        st.builds(LimitSpec, of=of, length=st.integers(1, 12)),
        st.builds(RepeatSpec, of=of, times=st.integers(1, 3)),
        st.lists(of, min_size=1, max_size=3).map(tuple).map(ConcatSpec),
        st.lists(st.builds(Part, of, st.sampled_from([0.4, 1])), min_size=1, max_size=3)
        .map(tuple)
        .map(BlendSpec),
    )


class Player:
    """A rank, batch by batch, over the ends of its passes."""

    def __init__(self, loader):
        self.loader, self.batches = loader, iter(loader)

    def play(self, count):
        """Return the next events: number, batch and whether it is padding; None for an end."""
        events = []
        for _ in range(count):
            try:
                batch = next(self.batches, None)
            except DataError as error:  # of a later pass, all samples of which are bad
                events.append(str(error))
                continue
            if batch is None:
                self.batches = iter(self.loader)
                events.append(None)
            else:
                events.append((self.loader.last_batch, batch, self.loader.last_is_padding))
        return events

    def finish(self):
        """Return the batches up to the end of the pass."""
        events = []
        while (event := self.play(1)[0]) is not None:
            events.append(event)
        return events


def players(spec, ranks, lanes, states=None, **facts):
    loaders = loaders_of(spec, ranks, lanes, **facts)
    for loader in loaders if states else ():
        loader.restore_state_global(states)
    return [Player(loader) for loader in loaders]


def saved(of):
    return json.loads(json.dumps([player.loader.state_dict() for player in of]))


@settings(max_examples=EXAMPLES)
@given(
    spec=counted(),
    lanes=st.sampled_from([2, 3, 8]),
    epoch=st.integers(0, 1),
    limit=st.sampled_from([None, 1, 5, 11]),
)
def test_batches_of_one_order_do_not_depend_on_the_number_of_lanes(spec, lanes, epoch, limit):
    spec = spec if limit is None else LimitSpec(of=spec, length=limit)
    one, several = (loaders_of(spec, 1, number) for number in (1, lanes))
    for _ in range(epoch):
        run(one), run(several)
    assert run(one) == run(several)


@settings(max_examples=EXAMPLES)
@given(spec=uncounted(), lanes=st.sampled_from([2, 3, 8]))
def test_no_sample_is_lost_or_repeated_on_any_number_of_lanes(spec, lanes):
    assume("select_pack" not in repr(spec.to_dict()))  # it leaves out what the buffer decides
    one, several = (run(loaders_of(spec, 1, number)).values() for number in (1, lanes))
    assert Counter(flat(one)) == Counter(flat(several))


@settings(max_examples=EXAMPLES)
@given(data=st.data(), spec=st.one_of(counted(), uncounted(), wrapped()))
def test_restored_on_any_ranks_nothing_is_lost_and_ranks_end_together(data, spec):
    ranks = data.draw(st.integers(1, 4), label="ranks")
    lanes = data.draw(st.sampled_from(LANES[ranks]), label="lanes")
    is_counted = spec.num_items(Context(), 0) is not None
    ways = [None, "drop", "short", "pad"] if is_counted else [None]
    facts = {"even_batches": data.draw(st.sampled_from(ways), label="even_batches")}
    whole = run(loaders_of(spec, 1, lanes), WHOLE)
    assume(whole)
    given_out, states = {}, None
    for _ in range(data.draw(st.integers(0, 3), label="saves")):
        rounds = data.draw(st.integers(0, 6), label="rounds")
        playing = players(spec, ranks, lanes, states, **facts)
        drawn = [player.play(rounds) for player in playing]
        if None in [event for of_rank in drawn for event in of_rank]:
            break
        states = saved(playing)
        given_out |= batches_in(drawn)
        ranks = data.draw(st.sampled_from([n for n in LANES if lanes % n == 0]), label="later")
        if data.draw(st.booleans(), label="merged"):
            states = [merge_states(states)]
    drawn = [player.finish() for player in players(spec, ranks, lanes, states, **facts)]
    rest = batches_in(drawn)
    assert not rest.keys() & given_out.keys()
    given_out |= rest
    assert given_out == {g: whole[g] for g in given_out}
    for rank, of_rank in enumerate(drawn):
        order = [number for number, _, _ in of_rank]
        assert order == sorted(order)
        assert all(number % ranks == rank for number in order)
    left_out = [g for g in whole if g not in given_out]
    if facts["even_batches"] is None or ranks == 1:
        assert not left_out
        assert not any(padding for of_rank in drawn for _, _, padding in of_rank)
    else:
        assert len({len(of_rank) for of_rank in drawn}) == 1
        most = ranks - 1 if facts["even_batches"] == "drop" else 0
        assert not left_out or left_out[-1] - left_out[0] < most


def batches_in(drawn):
    """The batches of all ranks by their number, without padding; none comes twice."""
    real = [(g, batch) for of_rank in drawn for g, batch, padding in of_rank if not padding]
    assert len(dict(real)) == len(real)
    return dict(real)


@settings(max_examples=EXAMPLES)
@given(data=st.data(), spec=st.one_of(counted(), uncounted(), wrapped()))
def test_restored_on_as_many_ranks_each_plays_on_as_if_it_had_not_stopped(data, spec):
    ranks = data.draw(st.integers(1, 4), label="ranks")
    lanes = data.draw(st.sampled_from(LANES[ranks]), label="lanes")
    is_counted = spec.num_items(Context(), 0) is not None
    ways = [None, "drop", "short", "pad"] if is_counted else [None]
    facts = {
        "even_batches": data.draw(st.sampled_from(ways), label="even_batches"),
        "virtual_epoch_length": data.draw(st.sampled_from([0, 0, 1, 3]), label="virtual"),
        "from_start": data.draw(st.booleans(), label="from_start"),
    }
    assume(run(loaders_of(spec, 1, lanes), 1))
    playing, past = players(spec, ranks, lanes, **facts), [[] for _ in range(ranks)]
    for _ in range(data.draw(st.integers(1, 3), label="saves")):
        rounds = data.draw(st.integers(0, 9), label="rounds")
        for player, events in zip(playing, past, strict=True):
            events += player.play(rounds)
        states = saved(playing)
        if ended_together(past):
            again = players(spec, ranks, lanes, states, **facts)
        else:
            assert facts["even_batches"] is None
            again = players(spec, ranks, lanes, **facts)
            for player, state in zip(again, states, strict=True):
                player.loader.restore_state_rank(state)
        following = [player.play(12) for player in playing]
        assert [player.play(12) for player in again] == following
        playing, past = again, [[*a, *b] for a, b in zip(past, following, strict=True)]


def ended_together(events):
    """Whether all ranks ended their passes after the same numbers of batches."""
    return len({tuple(event is None for event in of_rank) for of_rank in events}) == 1
