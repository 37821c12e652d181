"""Weights by tokens: shares of what is trained on, whatever the lengths."""

from fractions import Fraction

import pytest
from yaml_text import parse_metadataset

from energy_data.config.compile import compile_split
from energy_data.core.context import Context
from energy_data.core.keys import mix
from energy_data.errors import SpecError
from energy_data.nodes.blend import (
    BlendEpochizedSpec,
    BlendSpec,
    Mixed,
    MixSpec,
    Part,
    Repeated,
    blend_by_tokens,
)
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.passes import ConcatSpec, RepeatSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.order.schedule import Clock, Schedule
from energy_data.testing import NumberSource


def leaf(name, tokens, num_samples=100):
    return LeafSpec(Leaf(id=name, source=NumberSource(num_samples, name), tokens_per_sample=tokens))


SHORT, LONG = leaf("short", Fraction(400), 70_000), leaf("long", Fraction(4000), 9000)
TEN, FIFTY = leaf("a", Fraction(10)), leaf("b", Fraction(50))


def drawn(spec, draws, lane=0, lanes=1, clock=None):
    """Return how often each leaf is drawn, by id."""
    node = ReferencesSpec(of=spec, clock=clock).build(Context(lane=lane, lanes=lanes))
    node.cursor.draws = draws
    return node.ledger()


def spec_of(node, datasets):
    parsed = parse_metadataset(f"splits:\n  train: {node}", name="m.yaml")
    return compile_split(parsed, "train", open_source=datasets)


def test_documents_of_400_and_4000_tokens_give_equal_tokens():
    node = ReferencesSpec(of=blend_by_tokens((Part(SHORT, 1), Part(LONG, 1)))).build(Context())
    tokens = [0, 0]
    for _ in range(100):
        block = node.take(1000)
        # Lengths are spread over half to one and a half times their mean.
        spread = (mix(7, block.indices) >> 11).astype(float) / 2**53 + 0.5
        for entry, mean in enumerate((400, 4000)):
            tokens[entry] += int((mean * spread)[block.entries == entry].sum())
    assert abs(tokens[0] / sum(tokens) - 0.5) < 0.01


@pytest.mark.parametrize("lanes", [1, 7])
def test_each_lane_by_itself_keeps_tokens_equal(lanes):
    spec = blend_by_tokens((Part(SHORT, 1), Part(LONG, 1)))
    for lane in range(lanes):
        counts = drawn(spec, 11_000, lane, lanes)
        assert abs(counts["short"] * 400 - counts["long"] * 4000) <= 2 * 4000


def test_weights_and_nested_mixtures_count():
    inner = BlendSpec((Part(SHORT, 3), Part(LONG, 1)))
    assert inner.mean_tokens == 1300
    other = leaf("x", Fraction(650))
    counts = drawn(blend_by_tokens((Part(inner, 2), Part(other, 1), Part(LONG, 0))), 20_000)
    tokens = counts["short"] * 400 + counts["long"] * 4000
    assert tokens / (tokens + counts["x"] * 650) == pytest.approx(2 / 3, abs=0.001)


@pytest.mark.parametrize(
    ("spec", "mean"),
    [
        (MixSpec((Mixed(SHORT, 1), Mixed(LONG, 1))), 2200),
        (ConcatSpec((leaf("a", Fraction(10), 30), leaf("b", Fraction(40), 10))), Fraction(35, 2)),
        (RepeatSpec(of=ConcatSpec((TEN,)), times=2), 10),
        (BlendEpochizedSpec((Repeated(TEN, 3), Repeated(FIFTY))), 20),
    ],
)
def test_the_mean_of_a_mixture_is_that_of_what_it_draws(spec, mean):
    assert spec.mean_tokens == mean


def test_weights_by_tokens_may_change_over_the_run():
    change = Schedule("step", ((0, 1), (11_000, 10)), "samples")
    spec = blend_by_tokens((Part(SHORT, change), Part(LONG, 1)))
    clock = Clock(samples_per_microbatch=10)
    first, both = (drawn(spec, draws, clock=clock) for draws in (11_000, 31_200))
    assert first == pytest.approx({"short": 10_000, "long": 1000}, abs=2)
    assert both["short"] - first["short"] == pytest.approx(20_200 * 100 / 101, abs=3)


def test_lengths_that_change_with_weights_of_their_own_are_refused():
    inner = BlendSpec((Part(SHORT, Schedule("linear", ((0, 1), (9, 2)))), Part(LONG)))
    with pytest.raises(SpecError, match="changes with its own weights"):
        blend_by_tokens((Part(inner), Part(SHORT)))


def test_a_source_may_know_its_lengths():
    class Measured(NumberSource):
        def costs(self, indices, unit):
            return 8 + indices if unit == "tokens" else None

    known = LeafSpec(Leaf(id="known", source=Measured(10)))
    assert known.mean_tokens == Fraction(25, 2)
    assert Leaf(id="declared", source=Measured(10), tokens_per_sample=Fraction(3)).mean_tokens == 3


def test_a_metadataset_says_lengths_and_the_unit(datasets):
    node = (
        "{weight_unit: tokens, blend: [{path: x, tokens_per_sample: 400}, "
        "{path: y, tokens_per_sample: 4000, weight: 2}]}"
    )
    assert spec_of(node, datasets).weights == (5, 1)


def test_unknown_lengths_are_told_with_the_place_of_the_blend(datasets):
    node = "{weight_unit: tokens, blend: [{path: x}, {path: y, tokens_per_sample: 4}]}"
    with pytest.raises(SpecError, match=r"m.yaml:2:\d+: splits.train.blend: .*'x:train'") as caught:
        spec_of(node, datasets)
    assert "Give their mean, `tokens_per_sample`" in str(caught.value)
