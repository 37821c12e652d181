"""The end of a finite pass on several ranks: after the same number of batches on each.

In the last round of a pass, some ranks may have no micro-batch, and the others would wait for them
in a collective. Such a rank gets micro-batch 0 of the pass, which any rank can read: without its
samples ("short") or unchanged ("pad"). With "drop", no rank gets a batch in that round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import evolve, has

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset


def last_full_round(
    dataset: SavableDataset[Any], epoch: int, num_lanes: int
) -> tuple[int, int] | None:
    """Return the number of micro-batches in a pass, and of those in its full rounds.

    None if the pass is endless, or if its last round is full.
    """
    ranks = dataset.worker_config.world_size
    if ranks == 1 or dataset.even_batches is None:
        return None
    total = dataset.num_batches(epoch, num_lanes)
    if total is None or total % ranks == 0:
        return None
    return total, total // ranks * ranks


def batches_of_rank(dataset: SavableDataset[Any], epoch: int, num_lanes: int) -> int | None:
    """Return the maximal number of batches of this rank per iteration; None if endless."""
    if dataset.virtual_epoch_length:
        return dataset.virtual_epoch_length
    total = dataset.num_batches(epoch, num_lanes)
    if total is None:
        return None
    rank, ranks = dataset.worker_config.rank, dataset.worker_config.world_size
    if total % ranks and dataset.even_batches is not None:
        return total // ranks + (dataset.even_batches != "drop")
    return len(range(rank, total, ranks))


def padding_batch(dataset: SavableDataset[Any], epoch: int, num_lanes: int) -> Any:
    """Return the batch for a rank that has none in the last round of a pass."""
    (node,) = dataset.build([0], num_lanes).values()
    for _ in range(epoch):
        node.rewind()
    (batch,) = node.take(1)
    return emptied(batch) if dataset.even_batches == "short" else batch


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
        return type(batch)(items)  # type: ignore[call-arg]  # a read-only mapping, made from its items
    made: Any = copy.copy(batch)
    if isinstance(batch, dict) and getattr(batch, "__dict__", None) is batch:
        made.__dict__ = made  # its items are its attributes
    for name, value in items.items():
        made[name] = value
    return made
