"""The kinds of nodes in YAML, and where their keys stand.

`KINDS` is the one table: a new kind is its class, and a line there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import frozen

from energy_data.config.keys import DatasetsSpec, JoinSpec, LeafKeys, NodeKeys, PathSpec
from energy_data.config.staged import DocsPerStepSpec, StagedRecipe
from energy_data.core.recipe import (
    Child,
    Children,
    Group,
    Key,
    Yaml,
    key,
    keys_of,
)
from energy_data.core.rules import one_of
from energy_data.core.spec import Spec
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec, MixSpec
from energy_data.nodes.passes import ConcatSpec, EpochizeSpec, RepeatSpec

KINDS: Mapping[str, type[Spec]] = {
    cls.kind: cls
    for cls in (
        PathSpec,
        JoinSpec,
        BlendSpec,
        BlendEpochizedSpec,
        ConcatSpec,
        EpochizeSpec,
        RepeatSpec,
        MixSpec,
        StagedRecipe,
        DatasetsSpec,
        DocsPerStepSpec,
    )
}
"""The key that makes a node of a kind -> the class of its recipes."""

SPLITS = ("train", "val", "test")
MODULES = ("megatron.energon", "energy_data")
CLASSES = ("MetadatasetV2", "Metadataset")


@frozen
class InSplit:
    """The part of a split. It has no keys of its own."""


@frozen
class InNode:
    """The part of a child that has no keys of its own at its parent."""


@frozen
class FileKeys:
    """The keys of the top of a file."""

    module: str = key(
        one_of(*MODULES),
        "Energon's header; may be left out.",
        "__module__: megatron.energon",
        default="energy_data",
        name="__module__",
    )
    class_: str | None = key(
        one_of(*CLASSES),
        "Energon's header; may be left out. `Metadataset` is the older one, with `datasets`.",
        "__class__: MetadatasetV2",
        default=None,
        name="__class__",
    )
    splits: Mapping[str, Spec] = key(
        Child(),
        "What each split draws from.",
        "splits: {train: {path: ./coco}}",
        default=None,
        required=True,
    )


Keys: TypeAlias = Mapping[str, Key]


def node_keys(kind: type[Spec]) -> type[NodeKeys]:
    """Return the keys that every node of such a kind has."""
    return LeafKeys if kind in (PathSpec, JoinSpec) else NodeKeys


def is_below(kind: type[Spec]) -> bool:
    """Return whether the keys of a kind stand in a mapping below it, and not next to it."""
    return kind.kind not in keys_of(kind)


def keys_next_to(kind: type[Spec]) -> Keys:
    """Return the keys of a kind that stand in the mapping of the node, the kind's own included."""
    if not is_below(kind):
        return keys_of(kind)
    yaml = yaml_of(kind)
    name = kind.kind
    return {name: Key(name, name, Group(kind), yaml.about, yaml.example, None, True, False)}


def yaml_of(kind: type[Spec]) -> Yaml:
    """Return how a kind is written."""
    assert kind.yaml is not None
    return kind.yaml


def _held(cls: type[Any]) -> Iterable[Any]:
    """Yield what the keys of a class hold, including those of groups and parts."""
    for one in keys_of(cls).values():
        yield one.holds
        if isinstance(one.holds, Group):
            yield from _held(one.holds.of)
        if isinstance(one.holds, Children) and one.holds.part is not None:
            yield from _held(one.holds.part)


PARTS: Mapping[type[Any], str] = {
    holds.part: kind
    for kind, cls in KINDS.items()
    for holds in _held(cls)
    if isinstance(holds, Children) and holds.part is not None
}
"""The classes of children that have keys of their own -> the kind that they are children of."""

GROUPS: Mapping[type[Any], str] = {
    **{cls: kind for kind, cls in KINDS.items() if is_below(cls)},
    **{
        holds.of: kind
        for kind, cls in KINDS.items()
        for holds in _held(cls)
        if isinstance(holds, Group)
    },
}
"""The classes whose keys stand in a mapping of their own -> the kind that they are part of."""


def kinds_in(part: type[Any]) -> Mapping[str, type[Spec]]:
    """Return the kinds that a node in such a part may be of."""
    named: Sequence[str] | None = getattr(part, "kinds", None)
    if named is not None:
        return {name: KINDS[name] for name in named}
    return {
        name: kind
        for name, kind in KINDS.items()
        if part is InSplit or not yaml_of(kind).under_split_only
    }


def refused_in(part: type[Any], kind: type[Spec] | None) -> Mapping[str, str]:
    """Return the keys that a node of a kind cannot have in such a part, with advice."""
    of_kind = {} if kind is None else yaml_of(kind).refuses
    return {**of_kind, **getattr(part, "refuses", {})}
