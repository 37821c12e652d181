"""Collation: a list of samples as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from energy_data.core.memory import empty
from energy_data.core.rows import Row, as_tensors, gathered, owned


def collate(samples: Sequence[Any]) -> Any:
    """Return samples as one batch; dicts and dataclasses field by field, else a list of values.

    A field becomes a tensor [n, ...] if all its values are tensors or arrays of one shape and
    dtype, or numbers; else the list of its values, with None where a sample lacks the field.
    Nothing is padded. Costs one copy of the tensors, or none if they were read as rows of one.
    """
    kinds = set(map(type, samples))
    if kinds != {dict} and not all(issubclass(kind, dict) for kind in kinds):
        if not all(map(is_dataclass, kinds)):
            return stack_or_list(list(samples))
        samples = [
            {one.name: getattr(sample, one.name) for one in fields(sample)} for sample in samples
        ]
        kinds = {dict}
    names = samples[0].keys()
    if kinds == {dict} and len(set(map(len, samples))) == 1:
        try:
            columns = [list(map(itemgetter(name), samples)) for name in names]
        except KeyError:  # as many fields in each, but not the same ones
            pass
        else:
            return dict(zip(names, map(_field, names, columns), strict=True))
    union = dict.fromkeys(name for sample in samples for name in sample)
    return {name: _field(name, [sample.get(name) for sample in samples]) for name in union}


def stack_or_list(values: list[Any]) -> torch.Tensor | list[Any]:
    """Return the values stacked along a new first axis if they are of one form, else as is."""
    if Row in set(map(type, values)):
        whole = gathered(values)
        if whole is not None:
            return whole
        stacked = stack_or_list(as_tensors(values))
        return stacked if isinstance(stacked, torch.Tensor) else owned(values)
    first = values[0]
    if isinstance(first, torch.Tensor):
        if _same_form(values):
            return _stacked(values)
    elif isinstance(first, np.ndarray):
        if _same_form(values) and first.dtype.kind in "biufc":
            return _stacked_arrays(values)
    elif type(first) in (int, float, bool) and all(type(value) is type(first) for value in values):
        return _numbers(values)
    return values


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


def _field(name: str, values: list[Any]) -> Any:
    return values if name.startswith("__") else stack_or_list(values)


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
