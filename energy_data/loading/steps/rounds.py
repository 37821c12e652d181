"""Rounds of micro-batches: drawn on this rank, and known over all ranks."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from energy_data.loading.epoch_end import emptied, with_values
from energy_data.loading.loader import Loader
from energy_data.loading.steps.counts import COUNT_FIELDS, EMPTY, FIELD, Counts, counts_of
from energy_data.loading.steps.exchange import Exchange, Rows
from energy_data.loading.steps.planner import Round
from energy_data.loading.steps.stages import StepStages, known_counts
from energy_data.loading.steps.state import SettledStep, StepPosition
from energy_data.loading.transport.arena import ArenaFullError
from energy_data.order.step_rules import DocsPerStep

NUM_COLUMNS = 12  # items, ended, new stage, micro-batches; five counts; three of them unknown


class StepSlot(NamedTuple):
    """A micro-batch of a step."""

    base: int  # number of the first micro-batch of its round
    batch: Any = None  # None: an empty one
    counts: Counts = EMPTY
    is_owned: bool = True  # it is not in the arena


class DrawnRound(NamedTuple):
    """One round, as this rank has drawn it: one micro-batch, or its shares of a step."""

    base: int  # number of the round's first micro-batch in the run
    slots: tuple[StepSlot, ...] = ()  # none: it was left out, or the rank has ended
    ended: bool = False
    stage: int | None = None  # of its last micro-batch, on any rank; None: no stages
    new_stage: bool = False  # whether it is another one than before

    def row(self) -> Rows:
        """Return the round in numbers, for the other ranks."""
        total = sum_counts([slot.counts for slot in self.slots])
        unknown = [value is None for value in total[2:]]
        flags = [bool(self.slots), self.ended, self.new_stage, len(self.slots)]
        return np.array([*flags, *(value or 0 for value in total), *unknown], np.int64)


class KnownRound(NamedTuple):
    """One round, over all ranks."""

    round: Round
    counts: Counts

    @classmethod
    def of(cls, rows: Sequence[Rows], rules: DocsPerStep) -> KnownRound:
        """Return the round from the rows of all ranks."""
        table = np.stack(rows)
        items, ended, staged, _, documents, samples, *rest = table.sum(axis=0).tolist()
        pairs = zip(rest[:3], rest[3:], strict=True)
        known = [None if unknown else value for value, unknown in pairs]
        counts, most = Counts(documents, samples, *known), int(table[:, 3].max())
        found = cls.of_all(counts, items, ended, most, rules, len(rows))
        return found._replace(round=found.round._replace(new_stage=staged > 0))

    @classmethod
    def of_all(
        cls, counts: Counts, items: int, ended: int, most: int, rules: DocsPerStep, ranks: int
    ) -> KnownRound:
        """Return a round of these counts; `items` and `ended` are numbers of ranks.

        most: micro-batches of the rank that has most of them.
        """
        size = rules.round_size(ranks)
        amount = size * (items > 0) if rules.measure == "microbatches" else None
        amount = getattr(counts, rules.measure) if amount is None else amount
        most = most if rules.mode == "exact" else size // ranks
        return cls(Round(amount, items, ended, microbatches=most), counts)


class RoundBuffer:
    """Micro-batches drawn and not handed out: those of the settled step, and rounds after it."""

    def __init__(self, start: int) -> None:
        self.next_base = start  # number of the first micro-batch of the next round to draw
        self.slots: list[StepSlot] = []  # of the settled step
        self.pending: list[DrawnRound] = []  # rounds after it
        self.known: list[KnownRound] = []  # the first of these, over all ranks
        self.stage: int | None = None  # of the last round

    @property
    def is_over(self) -> bool:
        """Whether this rank has met the end of the pass."""
        return bool(self.pending) and self.pending[-1].ended

    def append(self, drawn: DrawnRound, stride: int) -> None:
        """Add a round."""
        self.pending.append(drawn)
        self.next_base, self.stage = drawn.base + stride, drawn.stage

    def settle(self, step: SettledStep, per_round: int) -> None:
        """Make the first rounds a step. per_round: micro-batches of each rank in one, at least."""
        rounds, self.pending = (
            self.pending[: step.plan.rounds],
            self.pending[step.plan.rounds :],
        )
        del self.known[: step.plan.rounds]
        slots: list[StepSlot] = []
        for number, drawn in enumerate(rounds):
            if number not in step.plan.blank:
                missing = per_round - len(drawn.slots)
                slots += [*drawn.slots, *[StepSlot(drawn.base)] * missing]
        slots += [StepSlot(rounds[-1].base)] * (step.plan.microbatches - len(slots))
        self.slots = slots

    def copy_out(self) -> bool:
        """Copy all micro-batches out of the arena; return whether there were any."""
        drawn = [slot for each in self.pending for slot in each.slots]
        found = any(not slot.is_owned for slot in (*self.slots, *drawn))
        self.slots = [_copied(slot) for slot in self.slots]
        self.pending = [
            each._replace(slots=tuple(map(_copied, each.slots))) for each in self.pending
        ]
        return found


class RoundReader:
    """Draws the rounds of one rank into a buffer, and learns their contents on all ranks."""

    def __init__(self, loader: Loader[Any], rules: DocsPerStep, exchange: Exchange) -> None:
        config = loader.dataset.worker_config
        self.loader, self.rules, self.exchange = loader, rules, exchange
        self._rank, self._ranks = config.rank, config.world_size
        self.stages = StepStages.of(loader.dataset.spec)
        self.stride = rules.round_size(self._ranks)
        self._lookahead = 1 if rules.mode == "exact" else rules.lookahead
        self._generation = 0

    def begin(self, at: StepPosition) -> None:
        """Read on from a position. What was drawn and exchanged ahead is dropped."""
        rules, entered = self.rules, self.loader.entered
        self.buffer = RoundBuffer(at.base)
        self._stage_begin = entered[-1] if entered else 0
        self._known_counts = known_counts(self.stages.specs[len(entered)], rules)
        self._is_alone = self._ranks == 1 or self._known_counts is not None
        shared = [rules.fixed, rules.target, rules.lookahead, rules.last, rules.on_rank_end]
        self._digest = zlib.crc32(repr([*shared, at.step, at.docs_seen]).encode())
        self._is_sent = False
        self._full_at: int | None = None  # slots in use when a round drawn ahead found no room
        self._postponed: Exception | None = None
        self._generation += 1
        self.exchange.restart(self._generation)

    # ---- drawing

    def draw(self, *, ahead: bool = False) -> None:
        """Draw one more round into the buffer. The other ranks hear of an exception."""
        try:
            if self._postponed is not None:
                raise self._postponed
            self.buffer.append(self._drawn(ahead=ahead), self.stride)
        except Exception as error:
            if ahead:
                raise
            self._postponed = None
            self._report_failure(error)
            raise

    def _drawn(self, *, ahead: bool) -> DrawnRound:
        buffer, loader, base = self.buffer, self.loader, self.buffer.next_base
        if buffer.is_over:
            return DrawnRound(base, ended=True, stage=buffer.stage)
        first = base + (self._rank - base) % self._ranks
        numbers = range(first, base + self.stride, self._ranks)
        slots = tuple(
            StepSlot(base, batch, counts_of(batch, self.rules), is_owned=False)
            for number in numbers
            for batch in self._taken(number, ahead=ahead)
        )
        if self.rules.on_rank_end == "stop":
            ended = any(map(loader.has_ended, numbers))
        else:
            ended = not slots and loader.has_ended()
        assert self._known_counts is None or not ended, "an endless stream has ended"
        stage = self.stages.stage_of(base + self.stride - 1)
        return DrawnRound(base, slots, ended, stage, buffer.stage not in (None, stage))

    def _taken(self, number: int, *, ahead: bool) -> Sequence[Any]:
        """Return the micro-batches that item `number` of the run is; none if it is left out."""
        while True:
            try:
                items = self.loader.take(number)
            except ArenaFullError:
                # The step is larger than the shared memory.
                if ahead or not self.buffer.copy_out():
                    raise
            else:
                return items[0] if items and self.rules.mode == "exact" else items

    def draw_ahead(self, step: SettledStep) -> None:
        """Draw a round of the next step, and begin to exchange the counts of those drawn.

        An exception waits until its round is due.
        """
        buffer = self.buffer
        # The step after the last of a stage is drawn in the next stage.
        if self.rules.lookahead == 1 or self.stages.ends_with(step.plan.step):
            return
        enough = step.plan.rounds + (0 if self._is_alone else self._lookahead)
        is_full = self._full_at is not None and self.loader.slots_in_use >= self._full_at
        waits = is_full or self._postponed is not None or buffer.is_over
        if len(buffer.pending) < enough and not waits:
            try:
                self.draw(ahead=True)
                self._full_at = None
            except ArenaFullError:
                self._full_at = self.loader.slots_in_use
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                self._postponed = error
        self._send_if_due()

    # ---- learning

    def learn(self) -> None:
        """Learn the contents of one more round, at least, on all ranks."""
        buffer = self.buffer
        if self._is_alone:
            if len(buffer.pending) == len(buffer.known):
                self.draw()
            buffer.known.append(self._known_alone(buffer.pending[len(buffer.known)]))
            return
        while not self._is_sent:
            if not self._send_if_due():
                self.draw()
        tables = self.exchange.receive()
        self._is_sent = False
        rounds = zip(*tables, strict=True)
        buffer.known += [KnownRound.of(of_round, self.rules) for of_round in rounds]
        self._send_if_due()

    def _send_if_due(self) -> bool:
        """Send the next rounds to the others, if there are enough; return whether it was done."""
        begin = len(self.buffer.known)
        rounds = self.buffer.pending[begin : begin + self._lookahead]
        if self._is_alone or self._is_sent or len(rounds) < self._lookahead:
            return False
        rows = np.stack([drawn.row() for drawn in rounds])
        self.exchange.send(rows, place=rounds[0].base, digest=self._digest)
        self._is_sent = True
        return True

    def _report_failure(self, error: Exception) -> None:
        if not self._is_alone:
            problem = f"{type(error).__name__}: {error}"
            self.exchange.fail(problem, shape=(self._lookahead, NUM_COLUMNS))

    def _known_alone(self, drawn: DrawnRound) -> KnownRound:
        """Return what all ranks know of a round, without an exchange."""
        if self._known_counts is None:
            return KnownRound.of([drawn.row()], self.rules)
        first = drawn.base - self._stage_begin
        parts = [self._known_counts(first + n) for n in range(self.stride)]
        most = max(sum(count for count, _ in parts[r :: self._ranks]) for r in range(self._ranks))
        total = sum_counts([counts for _, counts in parts])
        found = KnownRound.of_all(total, self._ranks, 0, most, self.rules, self._ranks)
        return found._replace(round=found.round._replace(new_stage=drawn.new_stage))


def sum_counts(counts: Sequence[Counts]) -> Counts:
    """Return the sum of all counts."""
    total = EMPTY
    for each in counts:
        total = total.plus(each)
    return total


def _copied(slot: StepSlot) -> StepSlot:
    return slot if slot.is_owned else slot._replace(batch=_copy(slot.batch), is_owned=True)


def _copy(batch: Any) -> Any:
    """Return the batch in memory of its own."""

    def copied(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.clone()
        return value.copy() if isinstance(value, np.ndarray) else value

    return with_values(batch, copied, into_lists=True)


def empty_like(batch: Any) -> Any:
    """Return an empty micro-batch like this one; it holds none of its memory."""
    made = _copy(emptied(batch))
    names = [name for name in (FIELD, *COUNT_FIELDS.values()) if _has(made, name)]
    if not isinstance(made, Mapping) and names:
        made = copy.copy(made)  # it may be the batch itself
    for name in names:
        if isinstance(made, MutableMapping):
            made[name] = 0
        else:
            object.__setattr__(made, name, 0)  # works for frozen classes; this is our own copy
    return made


def _has(batch: Any, name: str) -> bool:
    return name in batch if isinstance(batch, Mapping) else hasattr(batch, name)
