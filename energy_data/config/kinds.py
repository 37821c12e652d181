"""The table of kinds: a new kind is its file and a line here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from energy_data.config.definitions import (
    Definition,
    Group,
    Keyed,
    Nodes,
    Part,
    SplitPart,
    keys_of,
)
from energy_data.config.kind_blend import BlendDefinition
from energy_data.config.kind_blend_epochized import BlendEpochizedDefinition
from energy_data.config.kind_concat import ConcatDefinition
from energy_data.config.kind_datasets import DatasetsDefinition
from energy_data.config.kind_docs_per_step import DocsPerStepDefinition
from energy_data.config.kind_epochize import EpochizeDefinition
from energy_data.config.kind_join import JoinDefinition
from energy_data.config.kind_mix import MixDefinition
from energy_data.config.kind_path import PathDefinition
from energy_data.config.kind_repeat import RepeatDefinition
from energy_data.config.kind_staged import StagedDefinition

KINDS: Mapping[str, type[Definition]] = {
    definition.kind: definition
    for definition in (
        PathDefinition,
        JoinDefinition,
        BlendDefinition,
        BlendEpochizedDefinition,
        ConcatDefinition,
        EpochizeDefinition,
        RepeatDefinition,
        MixDefinition,
        StagedDefinition,
        DatasetsDefinition,
        DocsPerStepDefinition,
    )
}
"""The key that makes a node of a kind -> what such a node is."""


def _held(cls: type[Any]) -> Iterator[Any]:
    """Yield what the keys of a class hold, groups with what is in them."""
    for attribute in keys_of(cls).values():
        holds = attribute.metadata["holds"]
        yield holds
        if isinstance(holds, Group):
            yield from _held(holds.of)
        if isinstance(holds, Nodes):
            yield from _held(holds.part)


PARTS: Mapping[type[Part], str] = {
    holds.part: kind
    for kind, definition in KINDS.items()
    for holds in _held(definition)
    if isinstance(holds, Nodes | Keyed) and holds.part is not Part
}
"""The parts that have keys of their own -> the kind whose children they are."""

GROUPS: Mapping[type[Any], str] = {
    holds.of: kind
    for kind, definition in KINDS.items()
    for holds in _held(definition)
    if isinstance(holds, Group)
}
"""The groups of keys -> the kind they are part of."""


def kinds_of(part: type[Part]) -> Mapping[str, type[Definition]]:
    """Return the kinds that a node in such a part may be of."""
    if part.kinds is not None:
        return {name: KINDS[name] for name in part.kinds}
    return {
        name: kind for name, kind in KINDS.items() if part is SplitPart or not kind.below_split_only
    }
