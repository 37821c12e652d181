"""Functions that combine values: stacked, padded, concatenated, or as a list; by type.

`batch_*` and `generic_batch` combine samples along a new first axis. `concat_pad` and
`generic_concat` join batches along their first axis. The names are Energon's. Also: the fields of
samples and batches, of dicts, dataclasses and named tuples alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Batcher = Callable[[list[Any]], Any]


def batch_stack(batch: list[torch.Tensor]) -> torch.Tensor:
    """Return tensors of one shape as one tensor [n, ...]."""
    return torch.stack(batch, dim=0)


def batch_pad_stack(batch: list[torch.Tensor]) -> torch.Tensor:
    """Return tensors of n shapes with equally many axes as one tensor [n, ...], padded with zeros.

    Each axis is as long as the longest there; the padding is at the end. dtype and device are those
    of the first tensor. ValueError if the numbers of axes differ.
    """
    _same_axes(batch)
    padded = batch[0].new_zeros((len(batch), *_largest(batch, first=0)))
    for row, tensor in zip(padded, batch, strict=True):
        row[tuple(slice(0, size) for size in tensor.shape)] = tensor
    return padded


def batch_list(batch: list[Any]) -> list[Any]:
    """Return the values as they are: a list."""
    return batch


def concat_pad(batch: list[torch.Tensor]) -> torch.Tensor:
    """Return batches of tensors joined along their first axis, the other axes padded with zeros.

    ValueError if the numbers of axes differ.
    """
    _same_axes(batch)
    joined = batch[0].new_zeros((sum(map(len, batch)), *_largest(batch, first=1)))
    begin = 0
    for tensor in batch:
        place = tuple(slice(0, size) for size in tensor.shape[1:])
        joined[(slice(begin, begin + len(tensor)), *place)] = tensor
        begin += len(tensor)
    return joined


def generic_batch(batch: list[Any]) -> Any:
    """Return samples as one, by the type of the first.

    Tensors: `batch_pad_stack`. Dicts, dataclasses, named tuples: field by field, as the same type
    (a type with `from_samples` is called instead). Everything else: the list.
    """
    first = batch[0]
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
    rows = [fields_of(sample) for sample in samples]
    return {name: batchers.get(name, default)([row[name] for row in rows]) for name in rows[0]}


def _by_field(batch: list[Any], join: Batcher) -> Any:
    first = batch[0]
    if not has_fields(first):
        return batch
    return as_type(batch_fields(batch, {}, join), type(first))


def _same_axes(batch: list[torch.Tensor]) -> None:
    if len({tensor.ndim for tensor in batch}) > 1:
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in batch[:8])
        raise ValueError(
            f"tensors with different numbers of axes cannot be padded to one shape, found {shapes}."
        )


def _largest(batch: list[torch.Tensor], first: int) -> list[int]:
    return [max(tensor.shape[axis] for tensor in batch) for axis in range(first, batch[0].ndim)]


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
        f"a {type(value).__name__} has no fields to convert. Return a dict, a dataclass "
        f"or a NamedTuple, or override the method of the task encoder."
    )


def as_type(fields: Mapping[str, Any], kind: type[T]) -> T:
    """Return an instance of `kind` (a dict, dataclass or NamedTuple class) with these fields.

    Fields that describe the sample (`__key__` and so on) are dropped if `kind` lacks them.
    TypeError if `kind` lacks another field, or requires one that is not given.
    """
    if issubclass(kind, dict):
        return kind(fields)
    if dataclasses.is_dataclass(kind):
        names = {field.name for field in dataclasses.fields(kind) if field.init}
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = set(getattr(kind, "_fields"))  # noqa: B009 - mypy knows no fields of a tuple
    else:
        raise TypeError(
            f"{kind.__name__} cannot be created from fields. Use dict, a dataclass or a NamedTuple."
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
