"""`Sample`: the base of all samples of a declared type."""

from __future__ import annotations

import dataclasses
from abc import ABC
from typing import Any, Self

from energy_data.errors import SpecError
from energy_data.samples.edataclass import edataclass
from energy_data.samples.mixins import ExtendableDataclassMixin, PinMemoryMixin

RestoreKey = tuple[Any, ...]
"""Nested strings and integers that say which sample it is: ("Webdataset", 123)."""


@edataclass
class Sample(ABC, PinMemoryMixin, ExtendableDataclassMixin):
    """One sample of a declared type. Derive from it, as an `edataclass`, and add fields."""

    __key__: str  # name of the sample in its shard
    __restore_key__: RestoreKey  # ("Webdataset", index in the split part), nested if joined
    __subflavors__: dict[str, Any] | None = None  # given by dataset.yaml and the metadataset
    __sources__: tuple[Any, ...] | None = None  # `SourceInfo` of each dataset that contributed

    @classmethod
    def derive_from(cls, base_sample: Any, **kwargs: Any) -> Self:
        """Return a sample of this type with the `__` fields of another one, and `kwargs`."""
        base = {name: getattr(base_sample, name) for name in BASIC_FIELDS if name not in kwargs}
        return cls(**base, **kwargs)

    @classmethod
    def from_joined(cls, *args: Sample | None, **kwargs: Sample | None) -> Self:
        """Return one sample of this type out of several, the joiner where a join names a type.

        The `__` fields are those of the first sample, sources are those of all. Of other fields
        that several have, the last one counts; None, a sample that was not there, is passed over.
        Override it to join in another way; only then it can take samples by name.

        Raises SpecError for samples by name, and if the first one is missing.
        """
        if kwargs or not args or args[0] is None:
            got = f"samples by the names {', '.join(kwargs)}" if kwargs else "none"
            raise SpecError(
                f"{cls.__name__}.from_joined: it needs samples in a row, the first one there, got "
                f"{got}. List the datasets of the join, or override `from_joined`."
            )
        present = [sample for sample in args if sample is not None]
        fields: dict[str, Any] = {name: getattr(args[0], name) for name in BASIC_FIELDS}
        fields["__sources__"] = tuple(
            source for sample in present for source in sample.__sources__ or ()
        )
        for sample in present:
            for field in dataclasses.fields(sample):
                if field.name not in BASIC_FIELDS:
                    fields[field.name] = getattr(sample, field.name)
        return cls(**fields)


BASIC_FIELDS = tuple(field.name for field in dataclasses.fields(Sample))
"""The names of the fields that every sample has."""
