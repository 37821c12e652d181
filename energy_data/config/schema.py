"""The kinds of nodes in YAML, where their keys stand, and the same as JSON Schema for editors.

`KINDS` is the one table: a new kind is its class, and a line there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from attrs import frozen

from energy_data.config.keys import DatasetsSpec, JoinSpec, LeafKeys, NodeKeys, PathSpec
from energy_data.config.staged import DocsPerStepSpec, StagedRecipe
from energy_data.config.storage import STORAGE
from energy_data.core.recipe import Child, Children, Group, Key, key, keys_of, one_of
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

SCHEMA = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]
Keys: TypeAlias = Mapping[str, Key]


@frozen
class InSplit:
    """The part of a split. It has no keys of its own."""

    kinds = tuple(KINDS)


@frozen
class InNode:
    """The part of a child that has no keys of its own at its parent."""

    kinds = tuple(name for name, cls in KINDS.items() if not cls.yaml.under_split_only)


@frozen
class FileKeys:
    """The keys of the top of a file."""

    module: str = key(
        one_of("megatron.energon", "energy_data"),
        "Energon's header; may be left out.",
        "__module__: megatron.energon",
        default="energy_data",
        name="__module__",
    )
    class_: str | None = key(
        one_of("Recipe", "MetadatasetV2", "Metadataset"),
        "Energon's header; may be left out. `Metadataset` is the oldest one, with `datasets`.",
        "__class__: MetadatasetV2",
        default=None,
        name="__class__",
    )
    splits: Mapping[str, Spec] = key(
        Children(InSplit, "splits"),
        "What each split draws from.",
        "splits: {train: {path: ./coco}}",
        default=None,
        required=True,
    )
    storage: Mapping[str, Any] = key(
        STORAGE,
        "Options of object stores, by prefixes of URLs.",
        "storage: {s3://bucket: {endpoint: http://minio:9000, profile: inside}}",
        factory=dict,
    )


def is_below(kind: type[Spec]) -> bool:
    """Return whether the keys of a kind stand in a mapping below it, and not next to it."""
    return kind.kind not in keys_of(kind)


def keys_next_to(kind: type[Spec]) -> Keys:
    """Return the keys of a kind that stand in the mapping of the node, the kind's own included."""
    if not is_below(kind):
        return keys_of(kind)
    name, yaml = kind.kind, kind.yaml
    key = Key(Group(kind), yaml.about, yaml.example, name, required=True, attribute=name)
    return {name: key}


def keys_in(part: type[Any], kind: type[Spec] | None) -> dict[type[Any], Keys]:
    """Return the keys of a node of a kind in such a part, by the class that declares them.

    These are the part, `NodeKeys` or `LeafKeys`, and the kind. A node without a kind may have any
    key of a leaf but `path`.
    """
    cls = kind or PathSpec
    shared = LeafKeys if cls in (PathSpec, JoinSpec) else NodeKeys
    excluded = {*getattr(part, "refuses", ()), *(() if kind else ("path",))}
    owners = {part: keys_of(part), shared: keys_of(shared), cls: keys_next_to(cls)}
    return {
        owner: {name: one for name, one in keys.items() if name not in excluded}
        for owner, keys in owners.items()
    }


def _holds(cls: type[Any]) -> Iterable[Any]:
    """Yield what the keys of a class hold, including those of groups and parts."""
    for one in keys_of(cls).values():
        yield one.holds
        if isinstance(one.holds, Group):
            yield from _holds(one.holds.of)
        if isinstance(one.holds, Children) and one.holds.part is not None:
            yield from _holds(one.holds.part)


PARTS: Mapping[type[Any], str] = {
    holds.part: kind
    for kind, cls in reversed(list(KINDS.items()))  # of two kinds, the first counts
    for holds in _holds(cls)
    if isinstance(holds, Children) and holds.part is not None
}
"""The classes of children that have keys of their own -> the kind that they are children of."""

GROUPS: Mapping[type[Any], str] = {
    **{cls: kind for kind, cls in KINDS.items() if is_below(cls)},
    **{
        holds.of: kind
        for kind, cls in KINDS.items()
        for holds in _holds(cls)
        if isinstance(holds, Group)
    },
}
"""The classes whose keys stand in a mapping of their own -> the kind that they are part of."""


def metadataset_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a metadataset file.

    It accepts what the loader accepts of one file, except for what a schema cannot express: the
    order of a range's two ends and of places in a schedule, schedules that are all 0 somewhere,
    a key next to its alias, slips in the names of splits, `nonmatch` of the first dataset of a
    join, NaN, duplicate keys, and everything about other files.
    """
    parts: list[type[Any]] = [InNode, InSplit, *PARTS]
    return {
        "$schema": SCHEMA,
        "title": "metadataset",
        "description": "Which datasets a run draws from, and in which proportions.",
        **_mapping(keys_of(FileKeys)),
        "$defs": {_name(part): _node(part) for part in parts},
    }


def _name(part: type[Any]) -> str:
    """Return the name of the schema of a node in such a part."""
    if part is InSplit:
        return "node_of_split"
    return f"node_of_{PARTS[part]}" if part in PARTS else "node"


def _node(part: type[Any]) -> Schema:
    """Return the schema of a node: exactly one kind, and the keys that go with it."""
    owners: dict[str, Schema] = {}
    for kind in getattr(part, "kinds", InNode.kinds):
        _, shared_keys, own_keys = keys_in(part, KINDS[kind]).values()
        owners[kind] = _mapping({**shared_keys, **own_keys})["properties"]
    shared = {name for name in _mapping(keys_of(NodeKeys))["properties"] if _alike(name, owners)}
    own = _mapping(keys_of(part))
    properties: Schema = dict(own["properties"])
    for schemas in owners.values():
        for name, schema in schemas.items():
            # What differs from kind to kind is expressed below; here it is only known by name.
            same = name in shared or name in KINDS
            properties.setdefault(name, schema if same else {"description": schema["description"]})
    differing = [name for name in properties if name not in {*shared, *KINDS, *own["properties"]}]
    return {
        **own,
        "properties": properties,
        "oneOf": [
            {
                "required": [kind],
                "properties": {name: schemas.get(name, False) for name in differing},
            }
            for kind, schemas in owners.items()
        ],
    }


def _alike(name: str, owners: dict[str, Schema]) -> bool:
    first, *others = [keys.get(name) for keys in owners.values()]
    return all(each == first for each in others)


def _mapping(keys: Keys) -> Schema:
    """Return the schema of a mapping with some keys."""
    required = [name for name, one in keys.items() if one.required]
    schema: Schema = {
        "type": "object",
        "properties": {name: _schema(one) for one in keys.values() for name in one.names},
        "additionalProperties": False,
    }
    return {**schema, "required": required} if required else schema


def _schema(one: Key) -> Schema:
    """Return the schema of what a key holds."""
    schema = {"description": one.about, **_value(one)}
    if isinstance(one.default, str | int | float):
        schema["default"] = one.default
    if one.or_null:
        about = schema.pop("description")
        schema = {"description": about, "anyOf": [schema, {"type": "null"}]}
    return schema


def _value(one: Key) -> Schema:
    holds = one.holds
    if isinstance(holds, Children):
        return _children(holds)
    if isinstance(holds, Group):
        return _mapping(keys_of(holds.of))
    if isinstance(holds, Child):
        return {"$ref": f"#/$defs/{_name(InNode)}"}
    return dict(holds.schema)


def _children(holds: Children) -> Schema:
    node = {"$ref": f"#/$defs/{_name(holds.part or InNode)}"}
    if holds.form == "splits":
        return {
            "type": "object",
            "properties": dict.fromkeys(SPLITS, node),
            "additionalProperties": node,
            "minProperties": 1,
        }
    if holds.form == "list or mapping":
        return {
            "anyOf": [
                {"type": "array", "minItems": 2, "items": node},
                {"type": "object", "minProperties": 2, "additionalProperties": node},
            ]
        }
    share = getattr(holds.part, "share_key", None)
    zero = {"properties": {share: {"const": 0}}, "required": [share]}
    return {
        "type": "array",
        "minItems": 1,
        "items": node,
        **({} if share is None else {"contains": {"not": zero}}),
    }
