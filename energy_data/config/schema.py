"""The grammar as JSON Schema, for editors."""

from __future__ import annotations

from typing import Any

from energy_data.config.keys import NodeKeys
from energy_data.config.kinds import (
    KINDS,
    PARTS,
    SPLITS,
    FileKeys,
    InNode,
    InSplit,
    Keys,
    keys_next_to,
    kinds_in,
    node_keys,
    refused_in,
)
from energy_data.core.recipe import Child, Children, Group, Key, keys_of

SCHEMA = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def metadataset_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a metadataset file.

    It accepts what the loader accepts of one file, except for what a schema cannot express: the
    order of a range's two ends and of places in a schedule, schedules that are all 0 somewhere,
    slips in the names of splits, `nonmatch` of the first dataset of a join, kinds that do not match
    the class in the header, NaN, duplicate keys, and everything about other files.
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
    for kind, cls in kinds_in(part).items():
        refused = refused_in(part, cls)
        keys = {**keys_of(node_keys(cls)), **keys_next_to(cls)}
        schemas = _mapping(keys)["properties"]
        owners[kind] = {name: schema for name, schema in schemas.items() if name not in refused}
    shared = {name for name in keys_of(NodeKeys) if _alike(name, owners)}
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
        "properties": {name: _held(one) for name, one in keys.items()},
        "additionalProperties": False,
    }
    return {**schema, "required": required} if required else schema


def _held(one: Key) -> Schema:
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
    if not isinstance(holds, Child):
        return dict(holds.schema)
    if one.name != "splits":
        return {"$ref": f"#/$defs/{_name(InNode)}"}
    split = {"$ref": f"#/$defs/{_name(InSplit)}"}
    return {
        "type": "object",
        "properties": dict.fromkeys(SPLITS, split),
        "additionalProperties": split,
        "minProperties": 1,
    }


def _children(holds: Children) -> Schema:
    node = {"$ref": f"#/$defs/{_name(holds.part or InNode)}"}
    if holds.named:
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
