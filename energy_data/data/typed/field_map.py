"""Field maps: where in its parts the fields of a sample are, in Energon's notation.

image: jpg,png             the part `jpg`, or if there is none, `png`
caption: json[captions][0] in the part `json`, under "captions", the first of the list
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_OPTION = re.compile(r"([^\[\]]+)((?:\[[^\[\]]+\])*)")
_KEY = re.compile(r"\[([^\[\]]+)\]")


Options = list[tuple[str, ...]]
"""Paths that are tried in turn, each a part and the keys within it."""


def parse_access(text: Any) -> Options:
    """Parse a value of a field map. Raises ValueError if it is invalid."""
    options: Options = []
    for option in text.split(",") if isinstance(text, str) else [""]:
        match = _OPTION.fullmatch(option.strip())
        if match is None:
            raise ValueError(f"it must be like `jpg`, `jpg,png` or `json[caption]`, got {text!r}.")
        options.append((match[1], *_KEY.findall(match[2])))
    return options


class FieldMap:
    """Makes the fields of a sample from its parts.

    fields: field -> where it is. Raises ValueError for a value that is invalid.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields: dict[str, tuple[str, Options]] = {}
        for name, text in fields.items():
            try:
                self._fields[str(name)] = text, parse_access(text)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        simple = all(len(options) == len(options[0]) == 1 for _, options in self._fields.values())
        names = {name: options[0][0] for name, (_, options) in self._fields.items()}
        self._pairs = tuple(names.items()) if simple else None

    def __call__(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields. Raises a KeyError that names the missing one, and those that exist."""
        if self._pairs:
            try:
                return {name: parts[part] for name, part in self._pairs}
            except KeyError:  # the loop below names the field
                pass
        return {name: self._field(name, parts) for name in self._fields}

    @property
    def parts(self) -> frozenset[str]:
        """The parts that it looks at."""
        return frozenset(option[0] for _, options in self._fields.values() for option in options)

    def _field(self, name: str, parts: Mapping[str, Any]) -> Any:
        text, options = self._fields[name]
        problems = []
        for option in options:
            try:
                return _walk(parts, option)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                problems.append(str(error.args[0]) if error.args else type(error).__name__)
        raise KeyError(f"field {name!r} ({text}): {'; '.join(problems)}")


def _walk(value: Any, path: tuple[str, ...]) -> Any:
    walked = ""
    for key in path:
        found = value
        walked += f"[{key}]" if walked else key
        if isinstance(found, Mapping):
            if key not in found:
                known = ", ".join(name for name in found if not str(name).startswith("__"))
                raise KeyError(f"there is no {walked}, only: {known or 'nothing'}")
            value = found[key]
        elif isinstance(found, list):
            if not key.removeprefix("-").isdigit() or not -len(found) <= int(key) < len(found):
                raise KeyError(f"there is no {walked} in a list of {len(found)}")
            value = found[int(key)]
        else:
            raise KeyError(f"{walked} would be within a {type(found).__name__}")
    return value
