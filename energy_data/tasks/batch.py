"""`Batch`: the base of batches of a declared type."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

from energy_data.data.typed.samples import ExtendableDataclassMixin, PinMemoryMixin, edataclass
from energy_data.errors import SpecError


@edataclass
class Batch(PinMemoryMixin, ExtendableDataclassMixin):
    """One batch of a declared type. Derive from it, as an `edataclass`, and add fields."""

    __key__: list[str]  # of each sample
    __restore_key__: Any  # which samples they are
    __subflavors__: list[dict[str, Any] | None] | None = None  # of each sample that has some
    __sources__: tuple[Any, ...] | None = None  # of all samples, in one row

    @classmethod
    def derive_from(cls, base_batch: Any, **kwargs: Any) -> Self:
        """Return a batch of this type with the `__` fields of another one, and `kwargs`."""
        base = {name: getattr(base_batch, name) for name in _BASIC if name not in kwargs}
        return cls(**base, **kwargs)

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **kwargs: Any) -> Self:
        """Return samples as one batch of this type: each field the list of the samples' values.

        Fields in `kwargs` are taken from there. SpecError if a sample lacks a field.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        values = {name: _gathered(name, samples) for name in fields if name not in kwargs}
        for name, value in values.items():
            if isinstance(value, _Missing) and _needed(fields[name]):
                raise SpecError(
                    f"{cls.__name__}.from_samples: its field {name!r} is in no {value.kind}. Pass "
                    f"{name}=..., or override from_samples."
                )
        found = {name: value for name, value in values.items() if not isinstance(value, _Missing)}
        return cls(**{**found, **kwargs})


@dataclasses.dataclass
class _Missing:
    """A field that a sample of some kind lacks."""

    kind: str


_BASIC = tuple(field.name for field in dataclasses.fields(Batch))


def _gathered(name: str, samples: Sequence[Any]) -> Any:
    for sample in samples:
        if not hasattr(sample, name):
            return _Missing(type(sample).__name__)
    values = [getattr(sample, name) for sample in samples]
    if name == "__sources__":
        return tuple(source for value in values for source in value or ()) or None
    if name == "__subflavors__":
        return [value for value in values if value] or None
    return values


def _needed(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing
