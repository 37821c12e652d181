"""Checks of saved cursors: every value must have the type of its field."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeGuard

from energy_data.errors import StateError

# No node counts this far in a lane. Orders are exact up to here, and a damaged number cannot make a
# loop endless.
MAX_COUNT = 1 << 48

Signed = int
"""Annotates a field whose number may be negative. Other numbers are counts."""

Problem = tuple[str, str]
"""A field of a cursor, and what is wrong with its value."""

_SHOWN = 60  # characters of a wrong value


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value can be a count."""
    return type(value) is int and 0 <= value < MAX_COUNT


def _is_signed(value: Any) -> bool:
    return type(value) is int and -MAX_COUNT < value < MAX_COUNT


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_mark(value: Any) -> bool:
    return isinstance(value, tuple) and all(is_count(one) or _is_mark(one) for one in value)


_Kind = tuple[Callable[[Any], bool], str]  # the test of a value, and the name of the kind

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
"""The annotations that fields of cursors may have."""


@cache
def kinds_of(cursor: type) -> Mapping[str, str]:
    """Return the annotations of the fields of a cursor."""
    return {field.name: str(field.type) for field in fields(cursor)}


def wrong_kinds(cursor: type, found: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield the fields of a cursor whose saved values have the wrong type."""
    for name, value in found.items():
        annotation = kinds_of(cursor)[name]
        if annotation in _SINGLE:
            fits, kind = _SINGLE[annotation]
            if not fits(value):
                yield name, f"must be {kind}, got {shorten(value)}"
            continue
        fits, kind = _ITEMS[annotation]
        if not isinstance(value, tuple):
            yield name, f"must be a list of {kind}, got {shorten(value)}"
        elif not all(map(fits, value)):
            index, item = next((at, item) for at, item in enumerate(value) if not fits(item))
            yield name, f"must be a list of {kind}, got {shorten(item)} at index {index}"


def raise_if(path: str, problems: Callable[[], Iterable[Problem]]) -> None:
    """Raise StateError if the saved cursor of the node at `path` has problems.

    Also if a check itself fails, since a damaged value may have any form.
    """
    try:
        found = [f"{name!r} of {path} {wrong}" for name, wrong in problems()]
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        found = [f"values of {path} do not fit ({type(error).__name__}: {error})"]
    if found:
        raise StateError(f"state: it is damaged: {'; '.join(found)}. Use another checkpoint.")


def shorten(value: Any) -> str:
    """Return the repr of a value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
