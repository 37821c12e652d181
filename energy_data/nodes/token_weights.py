"""Weights by tokens: how long the samples of a mixture are, and what follows for its weights."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from attrs import evolve

from energy_data.errors import SpecError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.blend_epochized import BlendEpochizedSpec
from energy_data.nodes.leaf import LeafSpec
from energy_data.nodes.leaves import leaf_entries
from energy_data.nodes.mix import MixSpec
from energy_data.nodes.references import OrderSpec
from energy_data.order.schedule import Schedule


def blend_by_tokens(parts: Sequence[Part]) -> BlendSpec:
    """Return a blend whose weights are of tokens: each is divided by the mean length of its child.

    With lengths that are right, each child has its part of all tokens, as exactly as a blend keeps
    its parts of samples. A leaf's length is what declared, or known by its source.

    Raises:
        SpecError: If a length is not known, or changes over the run.
    """
    drawn = [part for part in parts if part.weight and isinstance(part.of, OrderSpec)]
    lengths = {id(part): mean_tokens(part.of) for part in drawn if isinstance(part.of, OrderSpec)}
    return BlendSpec(tuple(_per(part, lengths.get(id(part), Fraction(1))) for part in parts))


def mean_tokens(spec: OrderSpec) -> Fraction:
    """Return the mean tokens of the samples that a mixture draws in the long run.

    Raises:
        SpecError: As `blend_by_tokens` does.
    """
    unknown = sorted({leaf.id for _, leaf in leaf_entries(spec) if leaf.mean_tokens is None})
    if unknown:
        raise SpecError(
            f"how many tokens samples of {', '.join(map(repr, unknown))} have is not known, and "
            f"weights are of tokens. Give their mean, `tokens_per_sample`, where they are listed."
        )
    return _mean(spec)


def _mean(spec: OrderSpec) -> Fraction:
    if isinstance(spec, LeafSpec):
        mean = spec.leaf.mean_tokens
        assert mean is not None
        return mean
    children = [child for child in spec.children.values() if isinstance(child, OrderSpec)]
    means = [_mean(child) for child in children]
    if isinstance(spec, BlendSpec) and not spec.weights:
        if len(set(means)) == 1:
            return means[0]
        raise SpecError(
            "weights are of tokens, and how long the samples of a blend are changes with its own "
            "weights. Give its children lengths that are equal, or weights that stay."
        )
    shares = _shares(spec, children)
    return sum((share * mean for share, mean in zip(shares, means, strict=True)), Fraction(0)) / (
        sum(shares, Fraction(0))
    )


def _shares(spec: OrderSpec, children: Sequence[OrderSpec]) -> list[Fraction]:
    """Return how many draws each child has, on any scale."""
    if isinstance(spec, BlendSpec | MixSpec):
        return [Fraction(weight) for weight in spec.weights]
    if isinstance(spec, BlendEpochizedSpec):
        return [part.of.size * part.repetitions for part in spec.parts]
    return [child.size for child in children]


def _per(part: Part, length: Fraction) -> Part:
    """Return a part whose weight is divided by a length."""
    if isinstance(part.weight, Schedule):
        return evolve(part, weight=evolve(part.weight, per=part.weight.per * length))
    return evolve(part, weight=_exact(part.weight) / length)


def _exact(weight: float | Fraction) -> Fraction:
    return weight if isinstance(weight, Fraction) else Fraction(str(weight))
