"""Collation: a list of samples as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from energy_data.core.batch_memory import TensorRow, as_tensors, detach, empty, stack_rows
from energy_data.tasks.batching import batch_pad_stack


def collate(samples: Sequence[Any], *, pad: bool = False) -> Any:
    """Return samples as one batch: dicts field by field, other values as one tensor or list.

    A field becomes a tensor [n, ...] if all its values are tensors or arrays of one shape and
    dtype, or numbers. Otherwise it is the list of its values, with None where a sample lacks the
    field. Costs one copy of the tensors, or none if they were read as rows of one tensor.

    pad: tensors of several shapes with equally many axes become one tensor too, padded with zeros.
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
    if TensorRow in set(map(type, values)):
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
    if type(first) in (int, float, bool) and all(type(value) is type(first) for value in values):
        return _numbers(values)
    return values


def _joined(values: list[Any], *, pad: bool) -> torch.Tensor | list[Any]:
    if _same_form(values):
        return _stacked(values)
    return batch_pad_stack(values) if pad and _can_pad(values) else values


def _stacked(values: list[torch.Tensor]) -> torch.Tensor:
    first = values[0]
    if (
        type(first) is not torch.Tensor  # kinds of it know best
        or first.layout is not torch.strided
        or first.device.type != "cpu"
        or first.is_quantized
        or any([value.requires_grad for value in values])  # noqa: C419 - as in `_same_form`
    ):
        return torch.stack(values)
    return torch.stack(values, out=empty((len(values), *first.shape), first.dtype))


def _stacked_arrays(values: list[npt.NDArray[Any]]) -> torch.Tensor:
    first = values[0]
    dtype = getattr(torch, first.dtype.name, None) if first.dtype.isnative else None
    if dtype is None:
        return torch.from_numpy(np.stack(values))
    batch = empty((len(values), *first.shape), dtype)
    np.stack(values, out=batch.numpy())
    return batch


def _field(name: str, values: list[Any], pad: bool) -> Any:
    return values if name.startswith("__") else stack_or_list(values, pad=pad)


def _can_pad(values: list[Any]) -> bool:
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    return len({value.ndim for value in values}) == 1


def _same_form(values: list[Any]) -> bool:
    kind, shape, dtype = type(values[0]), values[0].shape, values[0].dtype
    return all(
        [type(v) is kind and v.shape == shape and v.dtype == dtype for v in values]  # noqa: C419 - a generator takes twice the time
    )


def _numbers(values: list[Any]) -> torch.Tensor | list[Any]:
    try:
        return torch.tensor(values, dtype=torch.float64 if type(values[0]) is float else None)
    except (OverflowError, RuntimeError, ValueError):  # integers beyond 64 bits have no tensor
        return values
