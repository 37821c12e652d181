"""The loader that groups micro-batches into steps, the same on all ranks.

It draws rounds from the lanes (a *round* is one micro-batch of each rank), learns what is in them
on all ranks, and hands a step out once all of it is there. The place of the run is that of the
micro-batch handed over last, whatever was drawn: it is the place of the lanes at the step's first
round, and how much of the step was handed over.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from attrs import evolve

from energy_data.errors import DataError, StateError, StateMismatchError
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.epoch_end import stand_in, with_values
from energy_data.loading.exchange import Exchange
from energy_data.loading.iteration import OnMismatch
from energy_data.loading.lanes import Host, Nodes
from energy_data.loading.run import Run
from energy_data.loading.step_draw import Buffer, RoundLoader, Slot
from energy_data.loading.step_rounds import blank
from energy_data.loading.step_state import SettledStep, StepPosition, StepState
from energy_data.loading.steps.counts import Counts, Step
from energy_data.loading.steps.planner import StepPlan, add_round
from energy_data.order.step_rules import DocsPerStep


class StepLoader(RoundLoader):
    """Gives the micro-batches of one rank, step by step; each says in `__step__` what it is in.

    `__step__` (see `Step`) is a key of a batch that is a dict, else an attribute where the type
    allows it; `last_step` has it always.
    """

    def __init__(
        self,
        dataset: Run[Any],
        rules: DocsPerStep,
        host: Host | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        self.last_step: Step | None = None
        super().__init__(dataset, rules, host, exchange)

    def next_batch(self) -> Any:
        """Return the next micro-batch.

        StopIteration at the end of a pass, once; with `virtual_epoch_length`, after the step that
        reaches it. StepsError if the ranks can no longer agree.
        """
        self._finish_move()
        self._tell_end()
        buffer = self._buffer
        if buffer.settled is not None and buffer.settled.plan.step != self._at.step:
            buffer = self._buffer = buffer.following()
        if buffer.settled is None:
            self._end_epoch_if_due()
            self._enter_stage_if_due()
            self._settle()
        elif not buffer.slots:
            self._draw_again()
        self._draw_ahead()
        return self._hand_over()

    @property
    def last_batch(self) -> int | None:
        """The number in the run of the round handed over last, of its first micro-batch."""
        return self._last

    def state_dict(self) -> dict[str, Any]:
        """Return the place of this rank. Pure: it reads no data and changes nothing."""
        self._finish_move()
        at, config, settled = self._at, self.dataset.worker_config, self._buffer.settled
        first = self._own(at.base)
        return RunState(
            seed=self.dataset.seed,
            lanes=self._num_lanes,
            tree=self._packed,
            epoch=at.epoch,
            begun=at.begun,
            batch=first,
            clock=at.base,
            hosted=(config.rank, config.world_size),
            start=self._start,
            places=self._host.states(first),
            step=at.to_dict(settled, self.rules, self._ranks),
            gone=self._gone,
        ).to_dict()

    def close(self) -> None:
        """Stop worker processes and exchanges."""
        super().close()
        self._exchange.close()

    # ---- one step after another

    def _hand_over(self) -> Any:
        at, buffer = self._at, self._buffer
        assert buffer.settled is not None
        plan, total = buffer.settled
        slot = buffer.slots[at.index]
        step = Step(
            step=at.step,
            index=at.index,
            num_microbatches=plan.microbatches,
            is_empty=slot.batch is None,
            is_short=plan.is_short,
            docs=slot.counts.documents,
            step_docs=total.documents,
            step_samples=total.samples,
            step_tokens=total.tokens,
            step_labels=total.labels,
            step_groups=total.groups,
            docs_seen=at.docs_seen,
            dp_size=self._ranks,
        )
        batch = _with_step(self._empty() if slot.batch is None else slot.batch, step)
        after = self._after(at, plan, total) if step.is_last else evolve(at, index=at.index + 1)
        # No call between them: a signal handler comes before all three, or after.
        self._at, self.last_step, self._last = after, step, slot.base
        if not step.is_last:
            buffer.slots[at.index] = Slot(slot.base)  # its memory is the trainer's now
            return batch
        self._host.keep(self._own(after.base))
        self._buffer = buffer.following()
        return batch

    def _after(self, at: StepPosition, plan: StepPlan, total: Counts) -> StepPosition:
        """Return the place after a step."""
        return StepPosition(
            epoch=at.epoch,
            begun=at.begun,
            base=at.base + plan.rounds * self._stride,
            step=at.step + 1,
            docs_seen=at.docs_seen + total.documents,
            given=at.given + plan.microbatches,
        )

    def _end_epoch_if_due(self) -> None:
        length, at = self.dataset.virtual_epoch_length, self._at
        if length and at.given >= length:
            self._at = evolve(at, epoch=at.epoch + 1, begun=at.base, given=0)
            raise StopIteration

    def _settle(self) -> None:
        """Learn of rounds until a step is whole. StopIteration if the pass has ended."""
        while True:
            buffer = self._buffer
            filled, counts = buffer.so_far
            if filled.rounds == len(buffer.known):
                self._learn()
            known = buffer.known[filled.rounds]
            after, outcome = add_round(filled, known.round, self.rules, self._ranks)
            if outcome == "end" and not (filled.microbatches and self.rules.last == "short"):
                self._end_pass()
                self._tell_end()
                continue
            if outcome in ("end", "before"):
                break
            filled, counts = after, counts.plus(known.counts)
            if outcome == "full":
                break
            buffer.so_far = filled, counts  # not of a full step: an interrupt now would add to it
        self._buffer = self._holding(SettledStep(StepPlan.of(filled, self.rules), counts))

    def _holding(self, settled: SettledStep) -> Buffer:
        """Return the buffer with its first rounds as a step."""
        buffer, rounds = self._buffer, settled.plan.rounds
        after = Buffer(settled.plan.step, buffer.next_base(self._stride), buffer.stage)
        after.settled = settled
        after.pending, after.known = buffer.pending[rounds:], buffer.known[rounds:]
        after.stage = buffer.pending[rounds - 1].stage
        for number, drawn in enumerate(buffer.pending[:rounds]):
            if number in settled.plan.blank:
                continue
            slots = [
                Slot(drawn.base, batch, counts, is_owned=drawn.owned)
                for batch, counts in zip(drawn.batches, drawn.counts, strict=True)
            ]
            if self.rules.mode == "at_least":
                slots += [Slot(drawn.base)] * (self._stride // self._ranks - len(slots))
            after.slots += slots
        last = buffer.pending[rounds - 1].base
        after.slots += [Slot(last)] * (settled.plan.microbatches - len(after.slots))
        return after

    def _empty(self) -> Any:
        """Return an empty micro-batch, made like one of this rank."""
        if self._blank is None:
            buffer = self._buffer
            like = [slot.batch for slot in buffer.slots if slot.batch is not None]
            like += [batch for drawn in buffer.pending for batch in drawn.batches]
            if not like:
                run = evolve(self.dataset, spec=self._stages.specs[self._stage])
                first = stand_in(run, 0, self._num_lanes)
                like = list(first) if self.rules.mode == "exact" else [first]
            if not like:
                raise DataError(
                    "docs_per_step: an empty micro-batch is needed, and there is none to make it "
                    "like. Use fewer ranks, or a larger target."
                )
            self._blank = blank(like[0])
        return with_values(self._blank, lambda value: value)

    # ---- the ends of passes

    def _end_pass(self) -> None:
        """Begin the next pass, on all ranks. StopIteration if there is none."""
        if self._is_over:
            raise StopIteration
        at = self._at
        after = StepPosition(epoch=at.epoch + 1, step=at.step, docs_seen=at.docs_seen)

        def begin() -> None:
            self._at, self._buffer, self._untold = after, Buffer(at.step, 0), True
            self._host.keep(0)
            self._begin_exchange()

        self._begin_epoch(begin)

    # ---- restoring

    def _draw_again(self) -> None:
        """Draw the rounds of a step that was saved when it had begun; asks nobody."""
        settled = self._buffer.settled
        assert settled is not None
        while len(self._buffer.pending) < settled.plan.rounds:
            self._draw()
            if self._buffer.is_over:
                raise DataError(
                    f"docs_per_step: the pass ended inside step {settled.plan.step}, which was "
                    f"whole when it was saved. The data have changed: restore a state saved at the "
                    f"end of a step."
                )
        self._buffer = self._holding(settled)

    def _wrong_step(self, said: dict[str, Any]) -> str | None:
        return StepState.of(said).unfit(self.rules, self._ranks)

    def _go_to(self, saved: RunState, on_mismatch: OnMismatch, *, changed: bool) -> None:
        said = None if saved.step is None else StepState.of(saved.step)
        if said is not None and not 0 <= saved.batch - said.base < saved.lanes:
            raise StateError(
                f"state: it is damaged: its step began at micro-batch {said.base}, and its lanes "
                f"are at {saved.batch}. Use another checkpoint."
            )
        if changed and said is not None and said.index and on_mismatch == "keep_matching":
            raise StateMismatchError(
                f"state: the tree was edited, and the state was saved inside step {said.step}, of "
                f"which it says what is in it. Restore a state saved at the end of a step."
            )
        super()._go_to(saved, on_mismatch, changed=changed)

    def _there(self, saved: RunState, nodes: Nodes) -> Callable[[], None]:
        entered = self._entered({lane: node.state_dict() for lane, node in nodes.items()})
        at, settled = self._place_of(saved)

        def begin() -> None:
            self._set_stage(entered)
            self._begin(at, settled)

        return begin

    def _place_of(self, saved: RunState) -> tuple[StepPosition, SettledStep | None]:
        """Return where in the steps a saved place is, and what its step is, if that is known."""
        if saved.step is None:
            given = (saved.clock - saved.begun) // self._ranks
            return StepPosition(
                epoch=saved.epoch, begun=saved.begun, base=saved.clock, given=given
            ), None
        said = StepState.of(saved.step)
        return said.position(saved.epoch, saved.begun, self._ranks), said.settled


def _with_step(batch: Any, step: Step) -> Any:
    """Return the batch with its `__step__`, if its type can have one."""
    if isinstance(batch, dict):
        batch["__step__"] = step
    else:
        with contextlib.suppress(AttributeError, TypeError):  # a tuple; `last_step` has it
            batch.__step__ = step
    return batch
