"""Streams blended by what their samples cost, as measured."""

from __future__ import annotations

import pytest
from trees import A, B, batches, leaf, numbers, samples

from energy_data.core.context import Context
from energy_data.core.keys import key
from energy_data.errors import DataError, SpecError
from energy_data.nodes.blend_by_cost import BlendByCostSpec, Costed
from loading.runs import loaders_of, run

SHORT, LONG = leaf("short", 70_000), leaf("long", 9000)


def tokens(sample):
    """Lengths nobody has declared: half to one and a half times 400, or 4,000."""
    mean = 400 if sample["__key__"].startswith("short") else 4000
    return mean // 2 + key(sample["__key__"]) % mean


def blend(*pairs, cost=tokens):
    return BlendByCostSpec(tuple(Costed(samples(of), weight) for of, weight in pairs), cost)


def costs(node, count):
    total = {"short": 0, "long": 0}
    for sample in node.take(count):
        total[sample["__key__"].split("/")[0]] += tokens(sample)
    return total


@pytest.mark.parametrize("lane", [0, 2])
def test_measured_tokens_keep_the_weights_in_every_lane(lane):
    node = blend((SHORT, 1), (LONG, 1)).build(Context(lane=lane, lanes=3))
    total = costs(node, 5000)
    assert abs(total["short"] - total["long"]) <= 6000  # what the longest sample costs


def test_other_weights_are_kept_as_well():
    total = costs(blend((SHORT, 3), (LONG, 1)).build(Context()), 5000)
    assert abs(total["short"] - 3 * total["long"]) <= 18_000


def test_it_keeps_the_law_and_restores():
    spec = batches(blend((SHORT, 2), (LONG, 1)), 4)
    one = run(loaders_of(spec, 1), 96)
    assert run(loaders_of(spec, 3), 32) == one


@pytest.mark.parametrize("cost", [0, -1, 2.5, True])
def test_a_cost_that_is_none_is_an_error(cost):
    node = blend((SHORT, 1), cost=lambda sample: cost).build(Context())
    with pytest.raises(DataError, match="an int >= 1"):
        node.take(1)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: blend((A, 0), (B, 1)), "weight 0. Take it out"),
        (lambda: blend((A, -1)), "finite and >= 0"),
        (lambda: BlendByCostSpec((Costed(A),), numbers), "streams of samples"),
    ],
)
def test_a_blend_that_cannot_be_is_refused(make, problem):
    with pytest.raises(SpecError, match=problem):
        make()
