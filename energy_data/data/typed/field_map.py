"""Field maps: where in its parts the fields of a sample are, in Energon's notation.

image: jpg,png             the part `jpg`, or if there is none, `png`
caption: json[captions][0] in the part `json`, under "captions", the first of the list
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attrs import frozen

_OPTION = re.compile(r"([^\[\]]+)((?:\[[^\[\]]+\])*)")
_KEY = re.compile(r"\[([^\[\]]+)\]")


@frozen
class Access:
    """Where a field is: paths that are tried in turn, each a part and the keys within it."""

    text: str
    options: tuple[tuple[str, ...], ...]

    def __call__(self, parts: Mapping[str, Any]) -> Any:
        """Return the value. Raises KeyError, with what was found instead, if there is none."""
        problems = []
        for option in self.options:
            try:
                return _walk(parts, option)
            except (KeyError, IndexError, ValueError, TypeError) as error:
                problems.append(str(error.args[0]) if error.args else type(error).__name__)
        raise KeyError("; ".join(problems))


def parse_access(text: str) -> Access:
    """Parse a value of a field map. Raises ValueError if it is invalid."""
    options = []
    for option in text.split(","):
        match = _OPTION.fullmatch(option.strip())
        if match is None:
            raise ValueError(text)
        options.append((match[1], *_KEY.findall(match[2])))
    return Access(text, tuple(options))


class FieldMap:
    """Makes the fields of a sample from its parts."""

    def __init__(self, accesses: Mapping[str, Access]) -> None:
        self.accesses = dict(accesses)
        simple = all(
            len(access.options) == len(access.options[0]) == 1 for access in accesses.values()
        )
        names = {name: access.options[0][0] for name, access in accesses.items()}
        self._pairs = tuple(names.items()) if simple else None

    def __call__(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields. Raises a KeyError that names the missing one, and those that exist."""
        if self._pairs:
            try:
                return {name: parts[part] for name, part in self._pairs}
            except KeyError:  # the loop below names the field
                pass
        return {name: self._field(name, parts) for name in self.accesses}

    @property
    def parts(self) -> frozenset[str]:
        """The parts that it looks at."""
        options = (option for access in self.accesses.values() for option in access.options)
        return frozenset(option[0] for option in options)

    def _field(self, name: str, parts: Mapping[str, Any]) -> Any:
        access = self.accesses[name]
        try:
            return access(parts)
        except KeyError as error:
            raise KeyError(f"field {name!r} ({access.text}): {error.args[0]}") from error


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
