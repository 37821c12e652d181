"""Collation: a list of samples as one batch; and functions that combine values, by type.

`batch_*` and `generic_batch` combine samples along a new first axis. `concat_pad` and
`generic_concat` join batches along their first axis. The names are Energon's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, itemgetter
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from energy_data.core.batch_memory import (
    TensorRow,
    as_tensors,
    detach,
    new_batch_tensor,
    stack_rows,
)
from energy_data.core.sample import LEAF
from energy_data.data.typed.dataset_yaml import has_default
from energy_data.data.typed.samples import (
    BASIC_FIELDS,
    ExtendableDataclassMixin,
    PinMemoryMixin,
    TagsAlias,
    edataclass,
)
from energy_data.errors import SpecError

T = TypeVar("T")
Batcher = Callable[[list[Any]], Any]

_DTYPES = {int: np.int64, float: np.float64, bool: np.bool_}  # of numbers of Python


def collate(samples: Sequence[Any], *, pad: bool = False) -> Any:
    """Return samples as one batch: dicts field by field, other values as one tensor or list.

    A field becomes a tensor [n, ...] if all its values are tensors or arrays of one shape and
    dtype, or numbers. Otherwise it is the list of its values, with None where a sample lacks the
    field. Costs one copy of the tensors, or none if they were read as rows of one tensor.

    `cu_seqlens` of packs becomes int32 [n, most documents + 1]: each row is filled with its last
    value, which adds empty sequences.

    pad: tensors of several shapes with equally many axes and one dtype become one tensor too,
        padded with zeros.
    """
    kinds = set(map(type, samples))
    if kinds != {dict} and not all(issubclass(kind, dict) for kind in kinds):
        return stack_or_list(list(samples), pad=pad)
    names = samples[0].keys()
    if len(set(map(len, samples))) == 1:
        try:
            columns = [list(map(itemgetter(name), samples)) for name in names]
        except KeyError:  # the fields differ
            pass
        else:
            return dict(zip(names, map(_field, names, columns, repeat(pad)), strict=True))
    union = dict.fromkeys(name for sample in samples for name in sample)
    return {name: _field(name, [sample.get(name) for sample in samples], pad) for name in union}


def stack_or_list(values: list[Any], *, pad: bool = False) -> torch.Tensor | list[Any]:
    """Return the values stacked along a new first axis if they are of one form, else as is."""
    kinds = set(map(type, values))
    if TensorRow in kinds:
        block = stack_rows(values)
        if block is not None:
            return block
        stacked = stack_or_list(as_tensors(values), pad=pad)
        return stacked if isinstance(stacked, torch.Tensor) else detach(values)
    first = values[0]
    if isinstance(first, torch.Tensor):
        return _joined(values, pad=pad)
    if isinstance(first, np.ndarray):
        form = _same_form(values) and first.dtype.kind in "biufc"
        return _stacked_arrays(values) if form else values
    dtype = _DTYPES.get(type(first)) if len(kinds) == 1 else None
    return values if dtype is None else _numbers(values, dtype)


def _joined(values: list[Any], *, pad: bool) -> torch.Tensor | list[Any]:
    if _same_form(values):
        return _stacked(values)
    return batch_pad_stack(values) if pad and _can_pad(values) else values


def _stacked(values: list[torch.Tensor]) -> torch.Tensor:
    if not _are_plain(values):
        return torch.stack(values)
    first = values[0]
    return torch.stack(values, out=new_batch_tensor((len(values), *first.shape), first.dtype))


def _are_plain(values: list[torch.Tensor]) -> bool:
    first = values[0]
    return (
        type(first) is torch.Tensor  # kinds of it know best
        and first.layout is torch.strided
        and first.device.type == "cpu"
        and not first.is_quantized
        and not any([value.requires_grad for value in values])  # noqa: C419 - as in `_same_form`
    )


def _stacked_arrays(values: list[npt.NDArray[Any]]) -> torch.Tensor:
    first = values[0]
    dtype = getattr(torch, first.dtype.name, None) if first.dtype.isnative else None
    if dtype is None:
        return torch.from_numpy(np.stack(values))
    batch = new_batch_tensor((len(values), *first.shape), dtype)
    np.stack(values, out=batch.numpy())
    return batch


def _field(name: str, values: list[Any], pad: bool) -> Any:
    if name == "cu_seqlens" and all(
        isinstance(row, torch.Tensor) and row.ndim == 1 and row.numel() for row in values
    ):
        rows = [row.tolist() for row in values]
        longest = max(map(len, rows))
        filled = [row + row[-1:] * (longest - len(row)) for row in rows]
        return torch.from_numpy(np.array(filled, np.int32))
    if name == LEAF:
        return batch_leaves(values)
    return detach(values) if name.startswith("__") else stack_or_list(values, pad=pad)


def batch_leaves(values: list[Any]) -> torch.Tensor | None:
    """Return `__leaf__` of samples as int64 [n], of packs as [n, most documents].

    -1: not known, or filled up. None if none is known.
    """
    values = [-1 if value is None else value for value in values]
    if set(map(type, values)) == {int}:
        return None if max(values) < 0 else torch.from_numpy(np.array(values, np.int64))
    rows = [[value] if isinstance(value, int) else np.asarray(value).tolist() for value in values]
    leaves = np.full((len(rows), max(map(len, rows))), -1)
    for row, value in zip(leaves, rows, strict=True):
        row[: len(value)] = [-1 if one is None else one for one in value]
    return torch.from_numpy(leaves)


def _can_pad(values: list[Any]) -> bool:
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    return len({(value.ndim, value.dtype) for value in values}) == 1


def _same_form(values: list[Any]) -> bool:
    kind, shape, dtype = type(values[0]), values[0].shape, values[0].dtype
    return all(
        [type(v) is kind and v.shape == shape and v.dtype == dtype for v in values]  # noqa: C419 - a generator takes twice the time
    )


def _numbers(values: list[Any], dtype: npt.DTypeLike) -> torch.Tensor | list[Any]:
    try:
        return torch.from_numpy(np.array(values, dtype))  # in a third of the time of torch.tensor
    except OverflowError:  # integers beyond 64 bits have no tensor
        return values


def batch_stack(batch: list[torch.Tensor]) -> torch.Tensor:
    """Return tensors of one shape as one tensor [n, ...]."""
    return _stacked(batch) if _same_form(batch) else torch.stack(batch)


def batch_pad_stack(batch: list[torch.Tensor]) -> torch.Tensor:
    """Return tensors of n shapes with equally many axes as one tensor [n, ...], padded with zeros.

    Each axis is as long as the longest there; the padding is at the end. dtype and device are those
    of the first tensor. ValueError if the numbers of axes differ, or a value does not fit.
    """
    if _same_form(batch):
        return _stacked(batch)
    _same_axes(batch)
    return concat_pad([tensor[None] for tensor in batch])


def batch_list(batch: list[Any]) -> list[Any]:
    """Return the values as they are: a list."""
    return batch


def concat_pad(batch: list[torch.Tensor]) -> torch.Tensor:
    """Return batches of tensors joined along their first axis, the other axes padded with zeros.

    ValueError if the numbers of axes differ, or a value does not fit the dtype of the first tensor.
    """
    _same_axes(batch)
    longest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in batch), strict=True)]
    shape, first = (sum(map(len, batch)), *longest), batch[0]
    plain = _are_plain(batch)
    joined = new_batch_tensor(shape, first.dtype).zero_() if plain else first.new_zeros(shape)
    begin = 0
    for tensor in batch:
        place = tuple(slice(0, size) for size in tensor.shape[1:])
        part = joined[(slice(begin, begin + len(tensor)), *place)]
        part.copy_(tensor)
        if tensor.dtype != part.dtype and not part.is_floating_point() and (part != tensor).any():
            raise ValueError(
                f"values of {tensor.dtype} cannot become {part.dtype}, that of the first tensor, "
                f"without loss. Convert them in `encode_sample`."
            )
        begin += len(tensor)
    return joined


def _same_axes(batch: list[torch.Tensor]) -> None:
    if len({tensor.ndim for tensor in batch}) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in batch[:8])
        raise ValueError(
            f"tensors with different numbers of axes cannot be padded to one shape, found {shapes}."
        )


def generic_batch(batch: list[Any]) -> Any:
    """Return samples as one, by the type of the first.

    Tensors: `batch_pad_stack`. Dicts, dataclasses, named tuples: field by field, as the same type
    (a type with `from_samples` is called instead). Everything else, and values of which some are
    None: the list.
    """
    first = batch[0]
    if type(None) in set(map(type, batch)):
        return batch
    if isinstance(first, torch.Tensor):
        return batch_pad_stack(batch)
    if hasattr(type(first), "from_samples"):
        return type(first).from_samples(batch)
    return _by_field(batch, generic_batch)


def generic_concat(batch: list[Any]) -> Any:
    """Return batches as one, by the type of the first.

    Tensors: `concat_pad`. Dicts, dataclasses, named tuples: field by field, as the same type.
    Everything else: a list with one entry per batch.
    """
    if isinstance(batch[0], torch.Tensor):
        return concat_pad(batch)
    return _by_field(batch, generic_concat)


def homogeneous_concat_mix(samples: list[Any]) -> Any:
    """Return batches of one type as one, by `generic_concat`. TypeError if types differ."""
    if len(kinds := {type(sample) for sample in samples}) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(
            f"batches of different types cannot be joined, found {names}. Write a `batch_mix_fn` "
            f"that makes one type of them."
        )
    return generic_concat(samples)


def batch_fields(
    samples: Sequence[Any], batchers: Mapping[str, Batcher], default: Batcher = generic_batch
) -> dict[str, Any]:
    """Return the fields of the samples, each batched by its own batcher, or by `default`."""
    batchers = {LEAF: batch_leaves, **batchers}
    columns = _columns(samples)
    return {name: batchers.get(name, default)(values) for name, values in columns.items()}


def _columns(samples: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the values of the samples, field by field; the fields are those of the first one."""
    kinds = set(map(type, samples))
    names = _field_names(kinds.pop()) if len(kinds) == 1 else None
    if names is not None:
        return {name: list(map(attrgetter(name), samples)) for name in names}
    rows = [fields_of(sample) for sample in samples]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _by_field(batch: list[Any], join: Batcher) -> Any:
    first = batch[0]
    if not has_fields(first):
        return batch
    return as_type(batch_fields(batch, {}, join), type(first))


def has_fields(value: Any) -> bool:
    """Return whether a value is a dict, a dataclass instance or a named tuple."""
    return isinstance(value, dict) or _field_names(type(value)) is not None


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields by name; a dict is returned as it is. TypeError if it has none."""
    if isinstance(value, dict):
        return value
    if (names := _field_names(type(value))) is None:
        raise TypeError(
            f"a {type(value).__name__} has no fields to convert. Return a dict, a dataclass "
            f"or a NamedTuple, or override the method of the task encoder."
        )
    return {name: getattr(value, name) for name in names}


def as_type(fields: Mapping[str, Any], kind: type[T]) -> T:
    """Return an instance of `kind` (a dict, dataclass or NamedTuple class) with these fields.

    Fields that describe the sample (`__key__` and so on) are dropped if `kind` lacks them.
    TypeError if `kind` lacks another field, or requires one that is not given.
    """
    if issubclass(kind, dict):
        return kind(fields)
    if (names := _field_names(kind)) is None:
        raise TypeError(
            f"{kind.__name__} cannot be created from fields. Use dict, a dataclass or a NamedTuple."
        )
    if extra := [name for name in fields if name not in names and not name.startswith("__")]:
        raise TypeError(
            f"{kind.__name__} has no field {', '.join(map(repr, extra))}, its fields are "
            f"{', '.join(sorted(names))}. Field names must match."
        )
    return kind(**{name: value for name, value in fields.items() if name in names})


def _field_names(kind: type[Any]) -> Sequence[str] | None:
    """Return the names of the fields of a dataclass or a named tuple; None for other types."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return getattr(kind, "_fields", None) if issubclass(kind, tuple) else None


@edataclass
class Batch(TagsAlias, PinMemoryMixin, ExtendableDataclassMixin):
    """One batch of a declared type. Derive from it, as an `edataclass`, and add fields."""

    __key__: list[str]  # of each sample
    __restore_key__: Any  # which samples they are
    __subflavors__: list[dict[str, Any] | None] | None = None  # of each sample that has some
    __sources__: tuple[Any, ...] | None = None  # of all samples, in one row
    __leaf__: torch.Tensor | None = None  # int64 [samples], places in `loader.leaves`

    @classmethod
    def derive_from(cls, base_batch: Any, **kwargs: Any) -> Self:
        """Return a batch of this type with the `__` fields of another one, and `kwargs`."""
        base = {name: getattr(base_batch, name) for name in BASIC_FIELDS if name not in kwargs}
        return cls(**base, **kwargs)

    @classmethod
    def from_samples(cls, samples: Sequence[Any], **kwargs: Any) -> Self:
        """Return samples as one batch of this type: each field the list of the samples' values.

        Fields in `kwargs` are taken from there. SpecError if a sample lacks a field.
        """
        values = dict(kwargs)
        for field in dataclasses.fields(cls):
            name = field.name
            if name in kwargs:
                continue
            try:
                column = list(map(attrgetter(name), samples))
            except AttributeError:
                if not has_default(field):
                    lacking = next(one for one in samples if not hasattr(one, name))
                    raise SpecError(
                        f"{cls.__name__}.from_samples: its field {name!r} is in no "
                        f"{type(lacking).__name__}. Pass {name}=..., or override from_samples."
                    ) from None
            else:
                values[name] = _gathered(name, column)
        return cls(**values)


def _gathered(name: str, values: list[Any]) -> Any:
    if name == "__sources__":
        return tuple(chain.from_iterable(filter(None, values))) or None
    if name == "__subflavors__":
        return [value for value in values if value] or None
    if name == LEAF:
        return batch_leaves(values)
    return values
