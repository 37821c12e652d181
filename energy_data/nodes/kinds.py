"""The kinds of order specs by name: how a tree is made again from its description."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energy_data.errors import StateError
from energy_data.nodes.blend import BlendSpec
from energy_data.nodes.blend_epochized import BlendEpochizedSpec
from energy_data.nodes.concat import ConcatSpec
from energy_data.nodes.epochize import EpochizeSpec
from energy_data.nodes.leaf import LeafSpec
from energy_data.nodes.leaves import Leaf
from energy_data.nodes.mix import MixSpec
from energy_data.nodes.references import OrderSpec
from energy_data.nodes.repeat import RepeatSpec

ORDER_KINDS: dict[str, type[OrderSpec]] = {
    spec.kind: spec
    for spec in (
        LeafSpec,
        BlendSpec,
        BlendEpochizedSpec,
        ConcatSpec,
        EpochizeSpec,
        RepeatSpec,
        MixSpec,
    )
}


def order_from_description(said: list[Any], leaf: Callable[[Any], Leaf]) -> OrderSpec:
    """Return the order tree that was described; `leaf` makes a leaf from its described id.

    Raises StateError for a kind this version does not know.
    """
    kind = said[0]
    if kind == "leaf":
        return LeafSpec(leaf(said[1]))
    if kind not in ORDER_KINDS:
        raise StateError(
            f"state: its tree has a {kind!r}, known are {', '.join(ORDER_KINDS)}. It was saved by "
            f"another version of energy_data."
        )
    below = said[-1].values() if isinstance(said[-1], dict) else said[-1]
    return ORDER_KINDS[kind].from_description(
        said, [order_from_description(child, leaf) for child in below]
    )
