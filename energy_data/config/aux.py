"""`aux`: files by key that cookers get beside the samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from attrs import frozen

from energy_data.config.rules import TEXT_PATTERN, Rule
from energy_data.config.yaml_nodes import Value

AuxKind: TypeAlias = Literal["dataset", "filesystem"]


@frozen
class Aux:
    """One store of files."""

    path: str  # as written, without a scheme; made whole where it is resolved
    kind: AuxKind  # a prepared dataset of tars, or a folder

    def plain(self) -> dict[str, str]:
        """Return it as it is written in YAML."""
        return {"path" if self.kind == "dataset" else "fs_path": self.path}


_SCHEME = "^[A-Za-z][A-Za-z0-9+.-]*://"
_FOLDER = "filesystem://"
_KINDS: Mapping[str, AuxKind] = {"path": "dataset", "fs_path": "filesystem"}


def _stores(value: Value) -> dict[str, Aux]:
    if not isinstance(value.data, dict):
        raise ValueError  # noqa: TRY004 - the caller tells the fault
    return {name: _store(name, each) for name, each in value.data.items()}


def _store(name: str, value: Value) -> Aux:
    if not isinstance(value.data, dict):
        path = _text(name, value)
        if path.startswith(_FOLDER) and path != _FOLDER:
            return Aux(path.removeprefix(_FOLDER), "filesystem")
        return Aux(_local(name, path), "dataset")
    if len(value.data) != 1 or not value.data.keys() <= _KINDS.keys():
        raise ValueError(f"'{name}' has one key: `path` of a dataset, or `fs_path` of a folder.")
    ((key, each),) = value.data.items()
    return Aux(_local(name, _text(name, each)), _KINDS[key])


def _text(name: str, value: Value) -> str:
    if not isinstance(value.data, str) or not TEXT_PATTERN.fullmatch(value.data):
        raise ValueError(f"'{name}' must be a path, found {value.describe()}.")
    return value.data


def _local(name: str, path: str) -> str:
    if re.match(_SCHEME, path):
        raise ValueError(
            f"'{name}' is remote, which is not supported yet. Give a local path: of a dataset, or "
            f"after `{_FOLDER}` of a folder."
        )
    return path


_TEXT: dict[str, Any] = {"type": "string", "pattern": TEXT_PATTERN.pattern}
_LOCAL: dict[str, Any] = {**_TEXT, "not": {"pattern": _SCHEME}}
_ONE_KEY = [
    {
        "type": "object",
        "properties": {key: _LOCAL},
        "required": [key],
        "additionalProperties": False,
    }
    for key in _KINDS
]

STORES = Rule(
    "a mapping of names to paths, of prepared datasets or after `filesystem://` of folders",
    {
        "type": "object",
        "additionalProperties": {
            "anyOf": [_LOCAL, {**_TEXT, "allOf": [{"pattern": f"^{_FOLDER}."}]}, *_ONE_KEY]
        },
    },
    _stores,
)
