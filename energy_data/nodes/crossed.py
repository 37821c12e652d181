"""Leaves that several order trees draw from at the same time."""

from __future__ import annotations

from collections import Counter

from energy_data.core.spec import Spec
from energy_data.nodes.leaves import leaf_entries
from energy_data.nodes.references import ReferencesSpec


def shared_leaf_ids(spec: Spec) -> frozenset[str]:
    """Return the ids of leaves that more than one order tree under `spec` draws from.

    Trees that draw one after another, as stages do, are one.
    """
    return frozenset(leaf_id for leaf_id, times in _reached(spec).items() if times > 1)


def _reached(spec: Spec) -> Counter[str]:
    """Return how many order trees that run at the same time draw from each leaf."""
    if isinstance(spec, ReferencesSpec):
        return Counter({leaf.id for _, leaf in leaf_entries(spec.of)})
    reached: Counter[str] = Counter()
    for child in spec.children.values():
        # Not `+=` and `|=` of counters, which go through all that was reached before.
        for leaf_id, times in _reached(child).items():
            before = reached[leaf_id]
            reached[leaf_id] = (
                max(before, times) if spec.children_are_sequential else before + times
            )
    return reached
