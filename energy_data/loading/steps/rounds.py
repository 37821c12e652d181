"""Rounds of micro-batches: drawn on this rank, and known over all ranks."""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from energy_data.loading.epoch_end import emptied, with_values
from energy_data.loading.loader import Loader
from energy_data.loading.steps.counts import (
    COUNT_FIELDS,
    EMPTY,
    FIELD,
    Counts,
    counts_of,
    known_counts,
    sum_counts,
)
from energy_data.loading.steps.exact import known_shares
from energy_data.loading.steps.exchange import Exchange
from energy_data.loading.steps.planner import Round, StepPlan, StepPosition
from energy_data.loading.transport.arena import ArenaFullError
from energy_data.nodes.run_plan import RunPlan
from energy_data.order.step_rules import DocsPerStep

# Rules that are the same on all ranks.
_SHARED = ("mode", "measure", "shares", "target", "lookahead", "last", "on_rank_end")


class StepSlot(NamedTuple):
    """A micro-batch of a step."""

    base: int  # number of the first micro-batch of its round
    batch: Any = None  # None: an empty one
    counts: Counts = EMPTY
    is_owned: bool = True  # it is not in the arena


class DrawnRound(NamedTuple):
    """One round, as this rank has drawn it: one micro-batch, or its shares of a step."""

    base: int  # number of the round's first micro-batch in the run
    slots: tuple[StepSlot, ...]  # none: it was left out, or the rank has ended
    round: Round  # its contents


class RoundReader:
    """Draws the rounds of one rank, and learns their contents on all ranks.

    It holds the micro-batches that were drawn and not handed out: `slots`, those of the step that
    is handed out, and `pending`, the rounds after it. `known` are the contents over all ranks of
    the first of these rounds.
    """

    def __init__(self, loader: Loader[Any], rules: DocsPerStep, exchange: Exchange) -> None:
        config = loader.dataset.worker_config
        self.loader, self.rules, self.exchange = loader, rules, exchange
        self._rank, self._ranks = config.rank, config.world_size
        self.plan = RunPlan(loader.dataset.spec)
        self.stride = rules.round_size(self._ranks)
        self._lookahead = 1 if rules.mode == "exact" else rules.lookahead
        self._generation = 0

    def begin(self, at: StepPosition) -> None:
        """Read on from a position. What was drawn and exchanged ahead is dropped."""
        rules, entered = self.rules, self.loader.entered
        self.slots: list[StepSlot] = []
        self.pending: list[DrawnRound] = []
        self.known: list[Round] = []
        self._next_base = at.base  # number of the first micro-batch of the next round to draw
        self._stage_begin = entered[-1] if entered else 0
        # Stages that count steps begin where the steps before have ended, which is known only once
        # the run is there. Then `Loader.enter_stage` moves the lanes to the next stage.
        plan = self.plan
        self.spec = plan.stages[len(entered)].of if plan.counts_steps else plan.spec
        is_exact = rules.mode == "exact"
        self._known_counts = known_shares(self.spec) if is_exact else known_counts(self.spec, rules)
        self._is_alone = self._ranks == 1 or self._known_counts is not None
        self._facts = {
            **{name: getattr(rules, name) for name in _SHARED},
            "the step": at.step,
            "the number of documents before the step": at.docs_seen,
            "the first micro-batch of the step": at.base,
        }
        self._is_sent = False
        self._full_at: int | None = None  # slots in use when a round drawn ahead found no room
        self._postponed: Exception | None = None
        self._generation += 1
        self.exchange.restart(self._generation)

    # ---- drawing

    @property
    def is_over(self) -> bool:
        """Whether this rank has met the end of the pass."""
        return bool(self.pending) and bool(self.pending[-1].round.ended)

    def draw(self, *, ahead: bool = False) -> None:
        """Draw one more round. The other ranks hear of an exception."""
        try:
            if self._postponed is not None:
                raise self._postponed
            drawn = self._drawn(ahead=ahead)
        except Exception as error:
            if ahead:
                raise
            self._postponed = None
            if not self._is_alone:
                self.exchange.fail(f"{type(error).__name__}: {error}")
            raise
        self.pending.append(drawn)
        self._next_base = drawn.base + self.stride

    def _drawn(self, *, ahead: bool) -> DrawnRound:
        loader, base = self.loader, self._next_base
        if self.is_over:
            return DrawnRound(base, (), Round(EMPTY, 0, 1, microbatches=0))
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
        contents = sum_counts(slot.counts for slot in slots)
        last = base + self.stride - 1
        new_stage = not self.plan.counts_steps and not self._is_one_stage(base - 1, last)
        return DrawnRound(
            base, slots, Round(contents, int(bool(slots)), int(ended), new_stage, len(slots))
        )

    def _is_one_stage(self, first: int, last: int) -> bool:
        """Return whether a stage makes both micro-batches of the run (or steps)."""
        return self.plan.number_of(max(first, 0)) == self.plan.number_of(last)

    def _taken(self, number: int, *, ahead: bool) -> Sequence[Any]:
        """Return the micro-batches that item `number` of the run is; none if it is left out."""
        while True:
            try:
                items = self.loader.take(number)
            except ArenaFullError:
                # The step is larger than the shared memory.
                if ahead or not self._copy_out():
                    raise
            else:
                return items[0] if items and self.rules.mode == "exact" else items

    def _copy_out(self) -> bool:
        """Copy all micro-batches out of the arena; return whether there were any."""
        drawn = [slot for each in self.pending for slot in each.slots]
        found = any(not slot.is_owned for slot in (*self.slots, *drawn))
        self.slots = [_copied(slot) for slot in self.slots]
        self.pending = [
            each._replace(slots=tuple(map(_copied, each.slots))) for each in self.pending
        ]
        return found

    def draw_ahead(self, step: StepPlan) -> None:
        """Draw a round of the step after this one, and send the contents of those drawn.

        An exception waits until its round is due.
        """
        if self.rules.lookahead == 1:
            return
        if self.plan.counts_steps and not self._is_one_stage(step.step, step.step + 1):
            return  # the step after the last of a stage is drawn in the next stage
        enough = step.rounds + (0 if self._is_alone else self._lookahead)
        is_full = self._full_at is not None and self.loader.slots_in_use >= self._full_at
        waits = is_full or self._postponed is not None or self.is_over
        if len(self.pending) < enough and not waits:
            try:
                self.draw(ahead=True)
                self._full_at = None
            except ArenaFullError:
                self._full_at = self.loader.slots_in_use
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                self._postponed = error
        self._send_if_due()

    def settle(self, step: StepPlan) -> None:
        """Make the first rounds the micro-batches of a step."""
        rounds, self.pending = self.pending[: step.rounds], self.pending[step.rounds :]
        del self.known[: step.rounds]
        per_round = 0 if self.rules.mode == "exact" else self.stride // self._ranks
        self.slots = []
        for number, drawn in enumerate(rounds):
            if number not in step.blank:
                missing = per_round - len(drawn.slots)
                self.slots += [*drawn.slots, *[StepSlot(drawn.base)] * missing]
        self.slots += [StepSlot(rounds[-1].base)] * (step.microbatches - len(self.slots))

    # ---- learning

    def learn(self) -> None:
        """Learn the contents of one more round, at least, on all ranks."""
        if self._is_alone:
            if len(self.pending) == len(self.known):
                self.draw()
            self.known.append(self._known_alone(self.pending[len(self.known)]))
            return
        while not self._is_sent:
            if not self._send_if_due():
                self.draw()
        self.known += self.exchange.receive()
        self._is_sent = False
        self._send_if_due()

    def _send_if_due(self) -> bool:
        """Send the next rounds to the others, if there are enough; return whether it was done."""
        begin = len(self.known)
        rounds = [drawn.round for drawn in self.pending[begin : begin + self._lookahead]]
        if self._is_alone or self._is_sent or len(rounds) < self._lookahead:
            return False
        self.exchange.send(rounds, self._facts)
        self._is_sent = True
        return True

    def _known_alone(self, drawn: DrawnRound) -> Round:
        """Return what all ranks know of a round without an exchange."""
        if self._known_counts is None:
            return drawn.round
        first = drawn.base - self._stage_begin
        parts = [self._known_counts(first + n) for n in range(self.stride)]
        most = max(sum(count for count, _ in parts[r :: self._ranks]) for r in range(self._ranks))
        total = sum_counts(part for _, part in parts)
        return drawn.round._replace(counts=total, items=self._ranks, ended=0, microbatches=most)


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
