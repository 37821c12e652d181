"""The dataclass of samples and batches: fields are given by name, and live in slots."""

from __future__ import annotations

import dataclasses
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast, dataclass_transform

from energy_data.errors import SpecError

T = TypeVar("T")


@dataclass_transform(kw_only_default=True)
def edataclass(cls: type[T]) -> type[T]:
    """Return `cls` as `dataclass(kw_only=True, slots=True)`, which lets subclasses add fields."""
    return dataclass(kw_only=True, slots=True)(cls)


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
    import torch

    kind: Any = type(value)
    found: Any = value
    if isinstance(value, torch.Tensor):
        found = value.pin_memory()
    elif isinstance(value, Mapping):
        found = kind({key: pinned(one) for key, one in value.items()})
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {name: pinned(one) for name, one in _init_fields(value).items()}
        found = dataclasses.replace(value, **fields)
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        found = kind(*map(pinned, value))
    elif isinstance(value, (tuple, list)):
        found = kind(map(pinned, value))
    return cast("T", found)


def _init_fields(value: Any) -> dict[str, Any]:
    return {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init
    }


class SourceInfo(NamedTuple):
    """Where a sample, or a file that was added to it, was read.

    The names of `energy_data.core.sample.SampleSource` lead to the same facts.
    """

    dataset_path: str  # as opened
    # Of the sample in its split part, before any subset; of a file: its key.
    index: int | str  # type: ignore[assignment]  # it hides tuple.index
    shard_name: str  # path relative to the dataset
    file_names: tuple[str, ...] = ()  # in the shard, of the parts that were used

    @property
    def dataset(self) -> str:
        """The path of the dataset."""
        return self.dataset_path

    @property
    def shard(self) -> str:
        """The path of the shard, relative to the dataset."""
        return self.shard_name


make_source_info = partial(tuple.__new__, SourceInfo)  # of a tuple of its fields; faster


class CrudeSample(dict[str, Any]):
    """Part extension -> value, with the `__` fields of `Sample`, and `__shard__`, its path."""

    def __missing__(self, name: str) -> Any:
        if name == "__tags__":
            return self["__subflavors__"]
        raise KeyError(name)


class TagsAlias:
    """Energon 8's name of a field."""

    __subflavors__: Any

    @property
    def __tags__(self) -> Any:
        return self.__subflavors__

    @__tags__.setter
    def __tags__(self, tags: Any) -> None:
        self.__subflavors__ = tags


RestoreKey = tuple[Any, ...]
"""Nested strings and integers that identify a sample: ("Webdataset", 123)."""


@edataclass
class Sample(ABC, TagsAlias, PinMemoryMixin, ExtendableDataclassMixin):
    """One sample of a declared type. Derive from it, as an `edataclass`, and add fields."""

    __key__: str  # name of the sample in its shard
    __restore_key__: RestoreKey  # ("Webdataset", index in the split part), nested if joined
    __subflavors__: dict[str, Any] | None = None  # given by dataset.yaml and the metadataset
    __sources__: tuple[Any, ...] | None = None  # `SourceInfo` of each dataset that contributed
    __leaf__: int | None = None  # place of its leaf in `loader.leaves`

    @classmethod
    def derive_from(cls, base_sample: Any, **kwargs: Any) -> Self:
        """Return a sample of this type with the `__` fields of another one, and `kwargs`."""
        base = {  # written out, which takes half the time: it is called for every sample
            "__key__": base_sample.__key__,
            "__restore_key__": base_sample.__restore_key__,
            "__subflavors__": base_sample.__subflavors__,
            "__sources__": base_sample.__sources__,
            "__leaf__": base_sample.__leaf__,
        }
        return cls(**{**base, **kwargs})

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


class TypedDataset:
    """The base of classes that a dataset.yaml may name for the type of its samples."""

    __sample_type__: ClassVar[type[Any] | None] = None
