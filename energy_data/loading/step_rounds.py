"""Rounds of micro-batches: what a rank has drawn, and what all ranks together know of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from energy_data.loading.epoch_end import emptied, with_values
from energy_data.loading.exchange import Rows
from energy_data.loading.steps.counts import COUNT_FIELDS, EMPTY, FIELD, Counts
from energy_data.loading.steps.planner import Round
from energy_data.order.step_rules import DocsPerStep

NUM_COLUMNS = 12  # items, ended, new stage, micro-batches; five counts; three of them unknown


class Drawn(NamedTuple):
    """One round, as this rank has drawn it: one micro-batch, or its shares of a step."""

    base: int  # number of the round's first micro-batch in the run
    batches: tuple[Any, ...] = ()  # none: it was left out, or the rank has ended
    counts: tuple[Counts, ...] = ()
    ended: bool = False
    stage: int | None = None  # that makes its last micro-batch, on whatever rank; None: no stages
    new_stage: bool = False  # whether it is another one than before
    owned: bool = False  # the batches were copied out of the arena

    def row(self) -> Rows:
        """Return the round in numbers, for the others."""
        total = summed(self.counts)
        unknown = [value is None for value in total[2:]]
        flags = [bool(self.batches), self.ended, self.new_stage, len(self.batches)]
        return np.array([*flags, *(value or 0 for value in total), *unknown], np.int64)

    def copied(self) -> Drawn:
        """Return the same with batches of their own memory."""
        return self._replace(batches=tuple(map(own, self.batches)), owned=True)


class Known(NamedTuple):
    """One round, over all ranks."""

    round: Round
    counts: Counts

    @classmethod
    def of(cls, rows: Sequence[Rows], rules: DocsPerStep) -> Known:
        """Return what the rows of all ranks come to."""
        table = np.stack(rows)
        items, ended, staged, _, documents, samples, *rest = table.sum(axis=0).tolist()
        said = zip(rest[:3], rest[3:], strict=True)
        known = [None if unknown else value for value, unknown in said]
        counts, most = Counts(documents, samples, *known), int(table[:, 3].max())
        found = cls.of_all(counts, items, ended, most, rules, len(rows))
        return found._replace(round=found.round._replace(new_stage=staged > 0))

    @classmethod
    def of_all(
        cls, counts: Counts, items: int, ended: int, most: int, rules: DocsPerStep, ranks: int
    ) -> Known:
        """Return a round of these counts; `items` and `ended`: of so many ranks.

        most: micro-batches of the rank that has most of them.
        """
        size = rules.round_size(ranks)
        amount = size * (items > 0) if rules.measure == "microbatches" else None
        amount = getattr(counts, rules.measure) if amount is None else amount
        most = most if rules.mode == "exact" else size // ranks
        return cls(Round(amount, items, ended, microbatches=most), counts)


def summed(counts: Sequence[Counts]) -> Counts:
    """Return all counts together."""
    total = EMPTY
    for each in counts:
        total = total.plus(each)
    return total


def own(batch: Any) -> Any:
    """Return the batch in memory of its own."""

    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.clone()
        return value.copy() if isinstance(value, np.ndarray) else value

    return with_values(batch, copied, into_lists=True)


def blank(batch: Any) -> Any:
    """Return an empty micro-batch like this one; it holds none of its memory."""
    made = own(emptied(batch))
    names = [name for name in (FIELD, *COUNT_FIELDS.values()) if _has(made, name)]
    if not isinstance(made, Mapping) and names:
        made = copy.copy(made)  # it may be the batch itself
    for name in names:
        if isinstance(made, MutableMapping):
            made[name] = 0
        else:
            object.__setattr__(made, name, 0)  # of a frozen class too: nobody else has this one
    return made


def _has(batch: Any, name: str) -> bool:
    return name in batch if isinstance(batch, Mapping) else hasattr(batch, name)
