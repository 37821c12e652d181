"""What a loader says it has done is what it did."""

from __future__ import annotations

import json
from collections import Counter

import attrs
import pytest
from trees import A, B, batches, finite, leaf, not_third, numbers, samples

from energy_data.errors import DataError, ExcludedError, SkipSample
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.passes import ConcatSpec
from energy_data.nodes.references import LeafSpec
from energy_data.testing import NumberSource
from loading.runs import in_order, loader_of


def drawn(stats):
    return {name: leaf_stats.drawn for name, leaf_stats in stats.leaves.items() if leaf_stats.drawn}


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (1, 3)])
def test_leaves_are_counted_as_the_stream_has_them_also_after_a_resume(rank, ranks):
    spec = batches(samples(BlendSpec((Part(A, 3), Part(B, 1)))), 5)
    loader = loader_of(spec, rank, ranks, lanes=6)
    given = in_order([loader], 30)
    counted = Counter(key.split("/")[0] for batch in given for key in batch)
    assert drawn(loader.stats()) == counted
    assert loader.stats().leaves["b"].epochs == counted["b"] / 4
    assert loader.stats().batches == 30
    other = loader_of(spec, rank, ranks, lanes=6)
    other.load_state_dict(loader.state_dict())
    assert drawn(other.stats()) == counted


def test_the_scalars_are_the_numbers_by_field_and_leaf():
    loader = loader_of(batches(samples(BlendSpec((Part(A, 3), Part(B, 1)))), 4), lanes=1)
    assert "data/share/a" not in loader.stats().scalars()
    in_order([loader], 10)
    stats = loader.stats()
    scalars = stats.scalars()
    assert scalars["data/batches"] == 10
    assert scalars["data/drawn/a"] == stats.leaves["a"].drawn == 30
    assert (scalars["data/share/a"], scalars["data/epochs/b"]) == (0.75, stats.leaves["b"].epochs)
    assert "data/tokens/a" not in scalars


def test_a_pass_is_counted_too():
    loader = loader_of(finite(ConcatSpec((A, B)), 4), lanes=6)
    iterator = iter(loader)
    given = [next(iterator) for _ in range(3)]
    assert drawn(loader.stats()) == Counter(key.split("/")[0] for batch in given for key in batch)


@pytest.mark.parametrize("from_start", [False, True])
def test_a_pass_is_counted_until_the_next_one_begins(from_start):
    spec = finite(leaf("x", 11), 2)
    spec = attrs.evolve(spec, of=FilterSpec(of=spec.of, predicate=not_third))
    loader = loader_of(spec, lanes=4, from_start=from_start)
    for _ in range(2):
        given = in_order([loader])
        stats = loader.stats()
        assert drawn(stats) == {"x": 11}
        assert sum(stats.skipped.values()) == 11 - sum(map(len, given)) > 0
    next(iter(loader))
    assert 0 < drawn(loader.stats())["x"] < 11


def test_what_is_left_out_is_counted_where_it_was():
    spec = batches(FilterSpec(of=samples(leaf("x", 9, frozenset({1}))), predicate=not_third), 3)
    loader = loader_of(spec, lanes=1)
    given = in_order([loader], 10)
    stats = loader.stats()
    assert set(stats.skipped) == {"rejected by a filter", "bad samples"}
    skipped = sum(stats.skipped.values())
    assert sum(drawn(stats).values()) == sum(map(len, given)) + skipped
    assert stats.scalars()["data/skipped/bad samples"] == stats.skipped["bad samples"]


class Excluding(NumberSource):
    """Every fifth sample is left out by the dataset."""

    def _sample(self, index):
        return ExcludedError("left out") if index % 5 == 4 else super()._sample(index)


def test_what_a_dataset_excludes_is_counted_apart_from_bad_samples():
    source = Excluding(20, "x", frozenset({1, 2}))
    spec = batches(samples(LeafSpec(Leaf(id="x", source=source))), 3)
    loader = loader_of(spec, lanes=1)
    given = in_order([loader], 10)
    stats = loader.stats()
    assert sum(stats.skipped.values()) == sum(drawn(stats).values()) - sum(map(len, given))
    assert stats.skipped == {"bad samples": 4, "excluded by their dataset": 8}  # in two epochs
    again = loader_of(spec, lanes=1)
    again.load_state_dict(loader.state_dict())
    assert again.stats().skipped == stats.skipped


def skips_odd(sample):
    if sample["number"] % 2:
        raise SkipSample
    return sample["number"] % 4, None


def skips_fours(group):
    if group[0]["number"] % 4 == 0:
        raise SkipSample
    return numbers(group)


def test_samples_and_batches_that_groups_leave_out_are_counted_each():
    spec = GroupSpec(of=samples(A), batch_size=2, criterion=skips_odd, collate=skips_fours)
    loader = loader_of(spec, lanes=1)
    in_order([loader], 6)
    assert set(loader.stats().skipped) == {
        "SkipSample or error in batch_group_criterion",
        "SkipSample or error while making batches",
    }


def test_statistics_change_nothing():
    loader, other = (loader_of(batches(samples(A)), lanes=3) for _ in range(2))
    for _ in range(5):
        assert next(iter(loader)) == next(iter(other))
        loader.stats()
    assert loader.state_dict() == other.state_dict()


def test_a_leaf_of_bad_samples_is_an_error_also_beside_good_ones():
    bad = leaf("bad", 5, frozenset(range(5)))
    loader = loader_of(batches(samples(BlendSpec((Part(A), Part(bad)))), 4), lanes=2)
    with pytest.raises(DataError, match="101 bad samples of leaf 'bad' in a row"):
        in_order([loader], 1000)
    assert loader.stats().skipped["bad samples"] == pytest.approx(200, abs=4)
    again = loader_of(batches(samples(BlendSpec((Part(A), Part(bad)))), 4), lanes=2)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    with pytest.raises(DataError, match="101 bad samples of leaf 'bad' in a row"):
        in_order([again], 3)


def test_bad_samples_between_good_ones_of_their_leaf_are_left_out_for_ever():
    some = leaf("some", 5, frozenset({0, 1, 2, 3}))
    loader = loader_of(batches(samples(BlendSpec((Part(A), Part(some)))), 4), lanes=1)
    assert len(in_order([loader], 300)) == 300
