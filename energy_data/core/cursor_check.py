"""Whether the values of a saved cursor can be of the fields that they are said to be of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeGuard

from energy_data.errors import StateError

# What any node counts in a lane is less: 300 million million. Orders are exact up to there, and
# no damaged number makes a loop endless.
MAX_COUNT = 1 << 48

Signed = int
"""In the annotation of a field: a number that may be below 0. Others count, from 0."""

Fault = tuple[str, str]
"""A field of a cursor, and in words what is wrong with its value."""

_SHOWN = 60  # characters of a wrong value


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a number that something may have counted up to."""
    return type(value) is int and 0 <= value < MAX_COUNT


def _is_signed(value: Any) -> bool:
    return type(value) is int and -MAX_COUNT < value < MAX_COUNT


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_mark(value: Any) -> bool:
    return isinstance(value, tuple) and all(map(is_count, value))


_Kind = tuple[Callable[[Any], bool], str]  # whether a value is of it, and its name

_SINGLE: dict[str, _Kind] = {
    "int": (is_count, "a number from 0 to 2**48"),
    "bool": (_is_flag, "true or false"),
}
_ITEMS: dict[str, _Kind] = {
    "tuple[int, ...]": (is_count, "numbers from 0 to 2**48"),
    "tuple[Signed, ...]": (_is_signed, "numbers up to 2**48"),
    "tuple[str, ...]": (_is_text, "names"),
    "tuple[ItemRef, ...]": (_is_mark, "lists of numbers from 0 to 2**48"),
}
ANNOTATIONS = frozenset({*_SINGLE, *_ITEMS})
"""What fields of cursors may be annotated with."""


@cache
def kinds_of(cursor: type) -> Mapping[str, str]:
    """Return the annotations of the fields of a cursor."""
    return {field.name: str(field.type) for field in fields(cursor)}


def wrong_kinds(cursor: type, found: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the fields of a cursor whose saved values are not of their kind."""
    for name, value in found.items():
        annotation = kinds_of(cursor)[name]
        if annotation in _SINGLE:
            fits, said = _SINGLE[annotation]
            if not fits(value):
                yield name, f"must be {said}, got {shown(value)}"
            continue
        fits, said = _ITEMS[annotation]
        if not isinstance(value, tuple):
            yield name, f"must be a list of {said}, got {shown(value)}"
        elif not all(map(fits, value)):
            place, item = next((at, item) for at, item in enumerate(value) if not fits(item))
            yield name, f"must be a list of {said}, got {shown(item)} as number {place}"


def refuse(path: str, faults: Callable[[], Iterable[Fault]]) -> None:
    """Raise StateError if there are faults in the saved cursor of the node at `path`.

    So does a fault that shows in the looking: what is damaged may have any form.
    """
    try:
        found = [f"{name!r} of {path} {wrong}" for name, wrong in faults()]
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        found = [f"values of {path} do not fit ({type(error).__name__}: {error})"]
    if found:
        raise StateError(f"state: it is damaged: {'; '.join(found)}. Use another checkpoint.")


def shown(value: Any) -> str:
    """Return a value as a message says it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
