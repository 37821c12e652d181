"""Fields of samples and batches: of dicts, dataclasses and named tuples alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

T = TypeVar("T")


def has_fields(value: Any) -> bool:
    """Return whether a value is a dict, a dataclass instance or a named tuple."""
    return isinstance(value, dict) or _is_record(value) or _is_named_tuple(value)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields by name; a dict is returned as it is. TypeError if it has none."""
    if isinstance(value, dict):
        return value
    if _is_record(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if _is_named_tuple(value):
        return {name: getattr(value, name) for name in value._fields}
    raise TypeError(
        f"a {type(value).__name__} has no fields that could be converted. Give a dict, a dataclass "
        f"or a NamedTuple, or override the method of the task encoder."
    )


def as_type(fields: Mapping[str, Any], kind: type[T]) -> T:
    """Return an instance of `kind` (a dict, dataclass or NamedTuple class) with these fields.

    Fields that describe the sample (`__key__` and so on) may be missing in `kind`: they are left
    out. TypeError if another field has no place there, or if `kind` needs one that is not given.
    """
    if issubclass(kind, dict):
        return kind(fields)
    if dataclasses.is_dataclass(kind):
        names = {field.name for field in dataclasses.fields(kind) if field.init}
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = set(getattr(kind, "_fields"))  # noqa: B009 - mypy knows no fields of a tuple
    else:
        raise TypeError(
            f"{kind.__name__} is not a type that fields can be put in. Use dict, a dataclass or a "
            f"NamedTuple."
        )
    if extra := [name for name in fields if name not in names and not name.startswith("__")]:
        raise TypeError(
            f"{kind.__name__} has no field {', '.join(map(repr, extra))}, its fields are "
            f"{', '.join(sorted(names))}. Field names must match."
        )
    return kind(**{name: value for name, value in fields.items() if name in names})


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_named_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")
