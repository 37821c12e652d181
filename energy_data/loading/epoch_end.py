"""The end of a finite pass on several ranks: after the same number of batches on each.

The last round of a pass may have micro-batches for some ranks only. A rank without one would leave
the others waiting in a collective. It therefore gets micro-batch 0 of the pass, which any rank can
read, emptied ("short") or as it is ("pad"); or no rank gets a batch in that round ("drop").
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from attrs import evolve, has

from energy_data.loading.run import Run


def last_whole_round(run: Run[Any], epoch: int, num_lanes: int) -> tuple[int, int] | None:
    """Return the number of micro-batches in a pass, and of those in rounds that all ranks have.

    None if the pass does not end, or if its last round is a whole one.
    """
    ranks = run.worker_config.world_size
    if ranks == 1 or run.even_batches is None:
        return None
    total = run.num_batches(epoch, num_lanes)
    if total is None or total % ranks == 0:
        return None
    return total, total // ranks * ranks


def batches_of_rank(run: Run[Any], epoch: int, num_lanes: int) -> int | None:
    """Return how many batches an iteration gives this rank at most; None if it has no end."""
    if run.virtual_epoch_length:
        return run.virtual_epoch_length
    total = run.num_batches(epoch, num_lanes)
    if total is None:
        return None
    rank, ranks = run.worker_config.rank, run.worker_config.world_size
    if total % ranks and run.even_batches is not None:
        return total // ranks + (run.even_batches != "drop")
    return len(range(rank, total, ranks))


def padding_batch(run: Run[Any], epoch: int, num_lanes: int) -> Any:
    """Return the batch for a rank that has none in the last round of a pass."""
    (node,) = run.build([0], num_lanes).values()
    for _ in range(epoch):
        node.rewind()
    (batch,) = node.take(1)
    return emptied(batch) if run.even_batches == "short" else batch


def emptied(batch: Any) -> Any:
    """Return the batch without its samples: tensors and arrays [0, ...], lists of values []."""
    return with_values(batch, _empty)


def _empty(value: Any) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray):
        return value[:0] if value.ndim else value
    return [] if isinstance(value, list) else value


def with_values(batch: Any, change: Callable[[Any], Any], *, into_lists: bool = False) -> Any:
    """Return the batch with `change` applied to each value in it, at any depth; types are kept.

    Enters mappings, tuples, named tuples, dataclasses and attrs classes, and, if asked, lists.
    """

    def inner(value: Any) -> Any:
        return with_values(value, change, into_lists=into_lists)

    if isinstance(batch, Mapping):
        return _with_items(batch, {name: inner(value) for name, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(inner(value) for value in batch))
    if isinstance(batch, tuple) or (into_lists and isinstance(batch, list)):
        return type(batch)(inner(value) for value in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        facts = {f.name: inner(getattr(batch, f.name)) for f in fields(batch) if f.init}
        return replace(batch, **facts)
    if has(type(batch)):
        settable = [a for a in type(batch).__attrs_attrs__ if a.init]
        return evolve(batch, **{a.alias: inner(getattr(batch, a.name)) for a in settable})
    return change(batch)


def _with_items(batch: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    """Return a copy of a mapping, of its type and with its attributes, with other values."""
    if type(batch) is dict:
        return items
    if not isinstance(batch, MutableMapping):
        return type(batch)(items)  # type: ignore[call-arg]  # as read-only mappings are made
    made: Any = copy.copy(batch)
    if not isinstance(batch, dict):
        # A copy may share the dict that it wraps, and the batch itself must stay as it is.
        for name, value in list(getattr(made, "__dict__", {}).items()):
            if type(value) is dict:
                made.__dict__[name] = value.copy()
    elif getattr(batch, "__dict__", None) is batch:  # its items are its attributes
        made.__dict__ = made
    for name, value in items.items():
        made[name] = value
    return made
