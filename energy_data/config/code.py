"""Code that a metadataset names: what it is called. Whether it may run is decided elsewhere."""

from __future__ import annotations

import re

from attrs import frozen

from energy_data.config.rules import Rule
from energy_data.config.yaml_nodes import Value

_MODULE = r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$"
_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
_WHAT = ("__class__", "__function__")


@frozen
class Code:
    """A class or a function in a module."""

    module: str
    name: str
    is_class: bool

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def plain(self) -> dict[str, str]:
        """Return it as it is written in YAML."""
        return {"__module__": self.module, _WHAT[0 if self.is_class else 1]: self.name}


def _code(value: Value) -> Code:
    if not isinstance(value.data, dict) or len(value.data) != 2 or "__module__" not in value.data:
        raise ValueError
    what = next((key for key in _WHAT if key in value.data), None)
    if what is None:
        raise ValueError
    module, name = value.data["__module__"].data, value.data[what].data
    if not (isinstance(module, str) and re.fullmatch(_MODULE, module)):
        raise ValueError("The name of a module is like `package.module`.")
    if not (isinstance(name, str) and re.fullmatch(_NAME, name)):
        raise ValueError("The name of a class or function is like `CaptioningSample`.")
    return Code(module, name, is_class=what == "__class__")


CODE = Rule(
    "a mapping with `__module__` and one of `__class__` and `__function__`",
    {
        "type": "object",
        "properties": {
            "__module__": {"type": "string", "pattern": _MODULE},
            **{key: {"type": "string", "pattern": _NAME} for key in _WHAT},
        },
        "required": ["__module__"],
        "additionalProperties": False,
        "oneOf": [{"required": [key]} for key in _WHAT],
    },
    _code,
)
