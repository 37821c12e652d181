"""The end of a finite pass on several ranks: after the same number of batches on each.

With `even_batches`, the rounds of a pass are known from its length: each rank returns one batch per
round. A rank has none where the last round is not full, and where all samples of a micro-batch
were skipped. It returns padding then, because the others would wait for it in a collective: the
first batch of the pass, which any rank can read, without its samples ("short", "drop") or unchanged
("pad"). With "drop", a last round that is not full is left out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from attrs import evolve, has

from energy_data.errors import DataError
from energy_data.loading.lanes import RunPosition

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset


def end_of_pass(dataset: SavableDataset[Any], position: RunPosition, num_lanes: int) -> int | None:
    """Return the micro-batch at which all ranks end the pass; None: each ends with its lanes."""
    config = dataset.worker_config
    if config.world_size == 1 or dataset.even_batches is None:
        return None
    total = dataset.num_batches(position.epoch, num_lanes)
    if total is None:
        return None
    first = position.clock
    return first + _even_rounds(dataset, max(total - first, 0)) * config.world_size


def batches_of_rank(dataset: SavableDataset[Any], total: int) -> int:
    """Return how many of the micro-batches of a pass this rank returns."""
    config = dataset.worker_config
    if dataset.even_batches is None:
        return len(range(config.rank, total, config.world_size))
    return _even_rounds(dataset, total)


def _even_rounds(dataset: SavableDataset[Any], total: int) -> int:
    """Return the rounds of all ranks that hold this many micro-batches."""
    ranks = dataset.worker_config.world_size
    return total // ranks if dataset.even_batches == "drop" else ceil(total / ranks)


def padding_batch(dataset: SavableDataset[Any], epoch: int, num_lanes: int) -> Any:
    """Return the batch for a rank that has none in a round: see above. Reads the first batch."""
    start = dataset.start()
    for lane in range(num_lanes):
        (node,) = dataset.build({lane: start}, num_lanes).values()
        for _ in range(epoch):
            node.rewind()
        with suppress(StopIteration):
            while True:
                if items := node.take(1):
                    return items[0] if dataset.even_batches == "pad" else emptied(items[0])
    raise DataError(
        "even_batches: every sample of the pass was skipped, so there is no batch to pad with. "
        "Check the data, or leave out even_batches."
    )


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
