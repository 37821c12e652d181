"""Collation: a list of samples as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def collate(samples: Sequence[Any]) -> Any:
    """Return samples as one batch; dicts field by field, everything else as a list of values.

    A field becomes a tensor [n, ...] if all its values are tensors or arrays of one shape and
    dtype, or numbers; else the list of its values, with None where a sample lacks the field.
    Nothing is padded. Costs one copy of the tensors.
    """
    if not all(isinstance(sample, dict) for sample in samples):
        return stack_or_list(list(samples))
    names = samples[0].keys()
    if all(sample.keys() == names for sample in samples):
        return {name: _field(name, [sample[name] for sample in samples]) for name in names}
    union = dict.fromkeys(name for sample in samples for name in sample)
    return {name: _field(name, [sample.get(name) for sample in samples]) for name in union}


def stack_or_list(values: list[Any]) -> torch.Tensor | list[Any]:
    """Return the values stacked along a new first axis if they are of one form, else as is."""
    first = values[0]
    if isinstance(first, torch.Tensor):
        if all(_same_form(first, value) for value in values):
            return torch.stack(values)
    elif isinstance(first, np.ndarray):
        if all(_same_form(first, value) for value in values) and first.dtype.kind in "biufc":
            return torch.from_numpy(np.stack(values))
    elif type(first) in (int, float, bool) and all(type(value) is type(first) for value in values):
        return _numbers(values)
    return values


def _field(name: str, values: list[Any]) -> Any:
    return values if name.startswith("__") else stack_or_list(values)


def _same_form(first: Any, value: Any) -> bool:
    return type(value) is type(first) and value.shape == first.shape and value.dtype == first.dtype


def _numbers(values: list[Any]) -> torch.Tensor | list[Any]:
    try:
        return torch.tensor(values, dtype=torch.float64 if type(values[0]) is float else None)
    except (OverflowError, RuntimeError, ValueError):  # integers beyond 64 bits have no tensor
        return values
