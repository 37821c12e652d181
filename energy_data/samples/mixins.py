"""What samples and batches have in common: extending a dataclass, and pinning its tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self, TypeVar

import torch

from energy_data.errors import SpecError

T = TypeVar("T")


class ExtendableDataclassMixin:
    """A dataclass that can be made of one with fewer fields."""

    @classmethod
    def extend(cls, src: Any, **kwargs: Any) -> Self:
        """Return an instance with the fields of `src`, an instance of a base class, and `kwargs`.

        Raises SpecError if `src` is of no base class of this one.
        """
        if not (dataclasses.is_dataclass(cls) and issubclass(cls, type(src))):
            raise SpecError(
                f"{cls.__name__}.extend: it extends its base classes only, got a "
                f"{type(src).__name__}. Derive {cls.__name__} from it as a dataclass."
            )
        return cls(**{**_init_fields(src), **kwargs})


class PinMemoryMixin:
    """A dataclass whose tensors can be pinned, wherever in it they are."""

    def pin_memory(self) -> Self:
        """Return a copy with all tensors in pinned memory."""
        return pinned(self)


def pinned(value: T) -> T:
    """Return `value` with its tensors pinned, in dicts, dataclasses, (named) tuples and lists."""
    kind: Any = type(value)
    if isinstance(value, torch.Tensor):
        return value.pin_memory()  # type: ignore[return-value]  # a T that is a Tensor
    if isinstance(value, Mapping):
        return kind({key: pinned(one) for key, one in value.items()})  # type: ignore[no-any-return]  # of the kind it was
    if dataclasses.is_dataclass(value):
        fields = {name: pinned(one) for name, one in _init_fields(value).items()}
        return dataclasses.replace(value, **fields)  # type: ignore[type-var]  # an instance, no class
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*map(pinned, value))  # type: ignore[no-any-return]  # of the kind it was
    if isinstance(value, (tuple, list)):
        return kind(map(pinned, value))  # type: ignore[no-any-return]  # of the kind it was
    return value


def _init_fields(value: Any) -> dict[str, Any]:
    return {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init
    }
