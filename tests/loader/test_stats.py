"""What a loader says it has done is what it did."""

from __future__ import annotations

from collections import Counter

import pytest
from trees import A, B, batches, finite, leaf, not_third, samples

from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.concat import ConcatSpec
from energy_data.nodes.filter import FilterSpec
from loader.runs import in_order, loader_of


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


def test_a_pass_is_counted_too():
    loader = loader_of(finite(ConcatSpec((A, B)), 4), lanes=6)
    iterator = iter(loader)
    given = [next(iterator) for _ in range(3)]
    assert drawn(loader.stats()) == Counter(key.split("/")[0] for batch in given for key in batch)


def test_what_is_left_out_is_counted_where_it_was():
    spec = batches(FilterSpec(of=samples(leaf("x", 9, frozenset({1}))), predicate=not_third), 3)
    loader = loader_of(spec, lanes=1)
    given = in_order([loader], 10)
    stats = loader.stats()
    assert set(stats.left_out) == {"root", "root/of", "root/of/of", "root/of/of/of"}
    left_out = stats.left_out["root/of"] + stats.left_out["root/of/of"]
    assert left_out > 0
    assert sum(drawn(stats).values()) == sum(map(len, given)) + left_out
    assert stats.skipped == {
        "rejected by a filter": stats.left_out["root/of"],
        "bad samples, and those a dataset excludes": stats.left_out["root/of/of"],
    }


def test_statistics_change_nothing():
    loader, other = (loader_of(batches(samples(A)), lanes=3) for _ in range(2))
    for _ in range(5):
        assert next(iter(loader)) == next(iter(other))
        loader.stats()
    assert loader.state_dict() == other.state_dict()
