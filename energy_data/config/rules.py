"""What a key may hold: the check of the loader and the schema for editors, side by side."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from attrs import frozen

from energy_data.config.diagnostics import Place, did_you_mean, listed
from energy_data.config.subset import Subset
from energy_data.config.yaml_nodes import Value

MAX_COUNT = 2**62
MAX_EPOCHS = 2**20  # mixed with each other

TEXT_PATTERN = re.compile(r"^[^\u0000-\u001f\u007f\ud800-\udfff]+$")
NAME_PATTERN = re.compile(
    r"^[^\s\u0000-\u001f\u007f\ud800-\udfff./]([^\u0000-\u001f\u007f\ud800-\udfff./]*[^\s\u0000-\u001f\u007f\ud800-\udfff./])?$"
)
_AMOUNT = re.compile(r"^([0-9]{1,18}(?:\.[0-9]{1,9})?)([KMBT])$")
SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_META_FILE = re.compile(r"^(?!/)(?!(.*/)?\.\.(/|$))[^\u0000-\u001f\u007f\ud800-\udfff]+$")
_PERCENT = re.compile(r"^(100(\.0{1,200})?|[0-9]{1,2}(\.[0-9]{1,200})?)%$")


class WrongInsideError(ValueError):
    """What breaks a rule is inside a value, at places of its own."""

    def __init__(self, faults: list[tuple[Place, str, str]]) -> None:
        super().__init__()
        self.faults = faults  # place, what to add to the path of the key, problem


@frozen(eq=False)
class Rule:
    """What one key may hold."""

    says: str  # completes "must be ..."
    schema: dict[str, Any]  # the same as JSON Schema
    accept: Callable[[Value], Any]
    """Returns the value as the definitions hold it.

    Raises ValueError if it breaks the rule, with what to do where an example is not enough;
    `WrongInsideError` where that is told best of values inside it.
    """


def number(maximum: float) -> Rule:
    """Return the rule of a finite number >= 0."""

    def accept(value: Value) -> float:
        found = value.data
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ValueError  # noqa: TRY004 - the caller tells the fault
        if not 0 <= found <= maximum:  # NaN is not
            raise ValueError
        return found

    schema = {"type": "number", "minimum": 0, "maximum": maximum}
    return Rule(f"a number from 0 to {maximum:g}", schema, accept)


def _positive(value: Value) -> float:
    found: float = number(_MOST).accept(value)
    if not found:
        raise ValueError
    return found


def one_of(*words: str) -> Rule:
    """Return the rule of one of a few words."""

    def accept(value: Value) -> str:
        if value.data not in words:
            near = did_you_mean(str(value.data), words)
            raise ValueError(f"Did you mean '{near}'?" if near else "")
        return str(value.data)

    return Rule(listed(f"'{word}'" for word in words), {"enum": list(words)}, accept)


def _count(value: Value) -> int:
    return _whole(value.data, 1)


def _text(value: Value) -> str:
    if not isinstance(value.data, str) or not TEXT_PATTERN.fullmatch(value.data):
        raise ValueError
    return value.data


def _name(value: Value) -> str:
    if not isinstance(value.data, str) or not NAME_PATTERN.fullmatch(value.data):
        raise ValueError
    return value.data


def _flag(value: Value) -> bool:
    if not isinstance(value.data, bool):
        raise ValueError  # noqa: TRY004 - the caller tells the fault
    return value.data


def _epochs(value: Value) -> int | None:
    if value.data is None:
        return None
    epochs = _whole(value.data, -1)
    if not epochs or epochs > MAX_EPOCHS:
        raise ValueError
    return epochs


def _meta_file(value: Value) -> str:
    name = _text(value)
    if not _META_FILE.fullmatch(name):
        raise ValueError("It is the name of a file in `.nv-meta`, without folders above it.")
    return name


def _mapping(value: Value) -> dict[str, Any]:
    if not isinstance(value.data, dict):
        raise ValueError  # noqa: TRY004 - the caller tells the fault
    plain: dict[str, Any] = value.plain()
    return plain


def _amount(value: Value) -> Fraction:
    found = value.data
    if isinstance(found, str) and (match := _AMOUNT.fullmatch(found)):
        number, suffix = match.groups()
        return Fraction(number) * SUFFIXES[suffix]
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= MAX_COUNT:
        raise ValueError
    return Fraction(str(found))


AMOUNT = Rule(
    "a number from 0, or one with K, M, B or T, such as 20B",
    {
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": MAX_COUNT},
            {"type": "string", "pattern": _AMOUNT.pattern},
        ]
    },
    _amount,
)
_MOST = 1e15
POSITIVE = Rule(
    f"a number above 0, to {_MOST:g}",
    {"type": "number", "exclusiveMinimum": 0, "maximum": _MOST},
    _positive,
)


def _target(value: Value) -> int | tuple[tuple[int, int], ...]:
    if not isinstance(value.data, list):
        return _whole(value.data, 1)
    pairs = [each.data for each in value.data if isinstance(each.data, list)]
    if not pairs or [len(pair) for pair in pairs] != [2] * len(value.data):
        raise ValueError
    return tuple((_whole(step.data, 0), _whole(amount.data, 1)) for step, amount in pairs)


COUNT = Rule("a whole number >= 1", {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}, _count)
TEXT = Rule(
    "text, not empty, without control characters",
    {"type": "string", "pattern": TEXT_PATTERN.pattern},
    _text,
)
NAME = Rule(
    "a name without '/', '.' or blanks at its ends",
    {"type": "string", "pattern": NAME_PATTERN.pattern},
    _name,
)
TARGET = Rule(
    "a whole number >= 1, or pairs [step, number from then on]",
    {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "array",
                    "prefixItems": [
                        {"type": "integer", "minimum": 0, "maximum": MAX_COUNT},
                        {"type": "integer", "minimum": 1, "maximum": MAX_COUNT},
                    ],
                    "items": False,
                    "minItems": 2,
                },
            },
        ]
    },
    _target,
)
FLAG = Rule("true or false", {"type": "boolean"}, _flag)
EPOCHS = Rule(
    "a whole number >= 1, or -1, or null",
    {
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": MAX_EPOCHS},
            {"enum": [-1, None]},
        ]
    },
    _epochs,
)
META_FILE = Rule(
    "the name of a file",
    {"type": "string", "pattern": _META_FILE.pattern},
    _meta_file,
)
MAPPING = Rule("a mapping of names to plain data", {"type": "object"}, _mapping)


def subset_range(*, absolute: bool) -> Rule:
    """Return the rule of `range: [start, end]`.

    absolute: whether it may be in samples, as well as in percent.
    """
    percentage = {"type": "string", "pattern": _PERCENT.pattern}
    index = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
    ranges = [
        {
            "type": "array",
            "prefixItems": [start, {"anyOf": [start, {"const": "end"}]}],
            "items": False,
            "minItems": 2,
        }
        for start in ([percentage, index] if absolute else [percentage])
    ]
    schema = {
        "type": "object",
        "properties": {"range": {"anyOf": ranges}},
        "required": ["range"],
        "additionalProperties": False,
    }
    both = " or two numbers of samples" if absolute else ""
    says = f"`range: [start, end]` with two percentages{both}, start before end"
    return Rule(says, schema, lambda value: _subset(value, absolute=absolute))


def _subset(value: Value, *, absolute: bool) -> Subset:
    if not isinstance(value.data, dict) or list(value.data) != ["range"]:
        raise ValueError
    bounds = value.data["range"].data
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise ValueError
    start, end = bounds[0].data, bounds[1].data
    if isinstance(start, str):
        subset = Subset(low=_fraction(start), high=_fraction("100%" if end == "end" else end))
        empty = subset.low >= subset.high
    elif absolute:
        subset = Subset(first=_whole(start, 0), end=None if end == "end" else _whole(end, 0))
        empty = subset.end is not None and subset.first >= subset.end
    else:
        raise ValueError("Numbers of samples are for single datasets: use percentages here.")
    if empty:
        raise ValueError("The range is empty: let it end after its start.")
    return subset


def _fraction(percentage: Any) -> Fraction:
    if not isinstance(percentage, str) or not _PERCENT.fullmatch(percentage):
        raise ValueError
    return Fraction(percentage.removesuffix("%")) / 100


def _whole(found: Any, minimum: int) -> int:
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError  # noqa: TRY004 - the caller tells the fault
    if not minimum <= found <= MAX_COUNT or found != int(found):
        raise ValueError
    return int(found)
