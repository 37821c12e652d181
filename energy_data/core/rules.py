"""Rules for the values of keys: the check of the loader and the schema for editors, together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

from energy_data.core.recipe import Rule

MAX_COUNT = 2**62
MAX_WEIGHT = 1e15

TEXT_PATTERN = re.compile(r"^[^\u0000-\u001f\u007f\ud800-\udfff]+$")
NAME_PATTERN = re.compile(
    r"^[^\s\u0000-\u001f\u007f\ud800-\udfff./]([^\u0000-\u001f\u007f\ud800-\udfff./]*[^\s\u0000-\u001f\u007f\ud800-\udfff./])?$"
)
_AMOUNT = re.compile(r"^([0-9]{1,18}(?:\.[0-9]{1,9})?)([KMBT])$")
SUFFIXES = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the known word nearest to `word`, if one is near."""
    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.6)), None)


def listed(words: Iterable[str]) -> str:
    """Return words joined for a sentence: `a, b or c`."""
    *most, last = list(words)
    return f"{', '.join(most)} or {last}" if most else last


def whole_number(found: Any, minimum: int) -> int:
    """Return a number as an int. Raises ValueError if it is not whole, or is out of range."""
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ValueError  # noqa: TRY004 - the caller reports the problem
    if not minimum <= found <= MAX_COUNT or found != int(found):
        raise ValueError
    return int(found)


def number(maximum: float) -> Rule:
    """Return the rule of a finite number >= 0."""

    def accept(found: Any) -> float:
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise ValueError  # noqa: TRY004 - the caller reports the problem
        if not 0 <= found <= maximum:  # NaN is not
            raise ValueError
        return found

    schema = {"type": "number", "minimum": 0, "maximum": maximum}
    return Rule(f"a number from 0 to {maximum:g}", schema, accept)


def one_of(*words: str) -> Rule:
    """Return the rule of one of a few words."""

    def accept(found: Any) -> str:
        if found not in words:
            near = did_you_mean(str(found), words)
            raise ValueError(f"Did you mean '{near}'?" if near else "")
        return str(found)

    return Rule(listed(f"'{word}'" for word in words), {"enum": list(words)}, accept)


def matching(pattern: re.Pattern[str], must_be: str, advice: str = "") -> Rule:
    """Return the rule of text that matches a pattern."""

    def accept(found: Any) -> str:
        if not isinstance(found, str) or not pattern.fullmatch(found):
            raise ValueError(advice if isinstance(found, str) else "")
        return found

    return Rule(must_be, {"type": "string", "pattern": pattern.pattern}, accept)


def of_type(data_type: type[Any], must_be: str, schema_type: str) -> Rule:
    """Return the rule of any value of one type."""

    def accept(found: Any) -> Any:
        if not isinstance(found, data_type):
            raise ValueError  # noqa: TRY004 - the caller reports the problem
        return found

    return Rule(must_be, {"type": schema_type}, accept)


def _positive(found: Any) -> float:
    value: float = NUMBER.accept(found)
    if not value:
        raise ValueError
    return value


def _amount(found: Any) -> Fraction:
    if isinstance(found, str) and (match := _AMOUNT.fullmatch(found)):
        digits, suffix = match.groups()
        return Fraction(digits) * SUFFIXES[suffix]
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= MAX_COUNT:
        raise ValueError
    return Fraction(str(found))


def _count(minimum: int) -> Callable[[Any], int]:
    return lambda found: whole_number(found, minimum)


def _target(found: Any) -> int | tuple[tuple[int, int], ...]:
    if not isinstance(found, list):
        return whole_number(found, 1)
    if not found or not all(isinstance(pair, list) and len(pair) == 2 for pair in found):
        raise ValueError
    return tuple((whole_number(step, 0), whole_number(amount, 1)) for step, amount in found)


_COUNT_SCHEMA = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}

NUMBER = number(MAX_WEIGHT)
POSITIVE = Rule(
    f"a number above 0, to {MAX_WEIGHT:g}",
    {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_WEIGHT},
    _positive,
)
COUNT = Rule("a whole number >= 1", _COUNT_SCHEMA, _count(1))
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
TARGET = Rule(
    "a whole number >= 1, or pairs [step, number from then on]",
    {
        "anyOf": [
            _COUNT_SCHEMA,
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "array",
                    "prefixItems": [{**_COUNT_SCHEMA, "minimum": 0}, _COUNT_SCHEMA],
                    "items": False,
                    "minItems": 2,
                },
            },
        ]
    },
    _target,
)
TEXT = matching(TEXT_PATTERN, "text, not empty, without control characters")
NAME = matching(NAME_PATTERN, "a name without '/', '.' or blanks at its ends")
MAPPING = of_type(dict, "a mapping of names to plain data", "object")
