"""The dataclass of samples and batches: fields are given by name, and live in slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """Return `cls` as `dataclass(kw_only=True, slots=True)`, which lets subclasses add fields."""
    return dataclass(kw_only=True, slots=True)(cls)
