"""The grammar as JSON Schema, for editors."""

from __future__ import annotations

from typing import Any

from attrs import NOTHING, Attribute

from energy_data.config.definitions import (
    SPLITS,
    Definition,
    FileDefinition,
    Group,
    Keyed,
    Node,
    Nodes,
    Part,
    SplitPart,
    keys_of,
)
from energy_data.config.kinds import KINDS, PARTS, kinds_of
from energy_data.config.rules import Rule

SCHEMA = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def metadataset_schema() -> Schema:
    """Return the JSON Schema (draft 2020-12) of a metadataset file.

    It accepts what the loader accepts of one file, but for what a schema cannot say: the order of
    a range's two ends and of places in a schedule, schedules that are all 0 somewhere, slips in the
    names of splits, `nonmatch` of the first dataset of a join, kinds that are not of the class in
    the header, NaN, duplicate keys, and everything about other files.
    """
    parts: list[type[Part]] = [Part, SplitPart, *PARTS]
    nodes = {_name(part): _node(part) for part in parts}
    return {
        "$schema": SCHEMA,
        "title": "metadataset",
        "description": "Which datasets a run draws from, and in which proportions.",
        **_keys(FileDefinition),
        "$defs": nodes,
    }


def _name(part: type[Part]) -> str:
    """Return the name of the schema of a node in such a part."""
    if part is SplitPart:
        return "node_of_split"
    return f"node_of_{PARTS[part]}" if part in PARTS else "node"


def _node(part: type[Part]) -> Schema:
    """Return the schema of a node: exactly one kind, and the keys that go with it."""
    owners: dict[str, Schema] = {
        name: {
            key: schema
            for key, schema in _keys(cls)["properties"].items()
            if key not in part.refuses
        }
        for name, cls in kinds_of(part).items()
    }
    shared = {name for name in keys_of(Definition) if _alike(name, owners)} - {*part.refuses}
    properties: Schema = dict(_keys(part)["properties"])
    for keys in owners.values():
        for name, schema in keys.items():
            # What differs from kind to kind is said below; here it is only known by name.
            same = name in shared or name in KINDS
            properties.setdefault(name, schema if same else {"description": schema["description"]})
    differing = [name for name in properties if name not in {*shared, *KINDS, *keys_of(part)}]
    required = _keys(part).get("required", [])
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        **({"required": required} if required else {}),
        "oneOf": [
            {
                "required": [kind],
                "properties": {name: keys.get(name, False) for name in differing},
            }
            for kind, keys in owners.items()
        ],
    }


def _alike(name: str, owners: dict[str, Schema]) -> bool:
    first, *others = [keys.get(name) for keys in owners.values()]
    return all(each == first for each in others)


def _keys(cls: type[Any]) -> Schema:
    """Return the schema of a mapping with the keys of a class."""
    keys = keys_of(cls)
    required = [name for name, attribute in keys.items() if attribute.default is NOTHING]
    schema: Schema = {
        "type": "object",
        "properties": {name: _held(attribute) for name, attribute in keys.items()},
        "additionalProperties": False,
    }
    return {**schema, "required": required} if required else schema


def _held(attribute: Attribute[Any]) -> Schema:
    """Return the schema of what a key holds."""
    holds = attribute.metadata["holds"]
    schema: Schema = {"description": attribute.metadata["about"]}
    if isinstance(holds, Rule):
        schema |= holds.schema
    elif isinstance(holds, Node):
        schema |= {"$ref": "#/$defs/node"}
    elif isinstance(holds, Keyed):
        children = {"$ref": f"#/$defs/{_name(holds.part)}"}
        schema |= {
            "anyOf": [
                {"type": "array", "minItems": 2, "items": children},
                {"type": "object", "minProperties": 2, "additionalProperties": children},
            ]
        }
    elif isinstance(holds, Nodes):
        schema |= {
            "type": "array",
            "minItems": 1,
            "items": {"$ref": f"#/$defs/{_name(holds.part)}"},
            **_some_share(holds.part),
        }
    elif isinstance(holds, Group):
        schema |= _keys(holds.of)
    else:
        split = {"$ref": f"#/$defs/{_name(SplitPart)}"}
        schema |= {
            "type": "object",
            "properties": dict.fromkeys(SPLITS, split),
            "additionalProperties": split,
            "minProperties": 1,
        }
    if isinstance(attribute.default, str | int | float):
        schema["default"] = attribute.default
    if attribute.metadata["or_null"]:
        about = schema.pop("description")
        schema = {"description": about, "anyOf": [schema, {"type": "null"}]}
    return schema


def _some_share(part: type[Part]) -> Schema:
    """Return that at least one child has a share > 0."""
    share = part.share_key
    if share is None:
        return {}
    return {"contains": {"not": {"properties": {share: {"const": 0}}, "required": [share]}}}
