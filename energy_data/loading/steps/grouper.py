"""`StepGrouper`: groups the micro-batches of a loader into steps, the same on all ranks.

It draws rounds (a *round* is one micro-batch of each rank), learns their contents on all ranks, and
hands a step out once all of it is there. The position of the run is that of the last micro-batch
handed out, whatever was drawn ahead: the position of the lanes at the step's first round, and the
number of micro-batches of the step that were handed out.
"""

from __future__ import annotations

import contextlib
from typing import Any

from attrs import evolve

from energy_data.errors import DataError, SpecError, StateError, StateMismatchError
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.epoch_end import padding_batch, with_values
from energy_data.loading.loader import Loader
from energy_data.loading.reports import Stats
from energy_data.loading.savable_loader import OnMismatch, SavableDataLoader
from energy_data.loading.steps.counts import EMPTY, Counts, Step
from energy_data.loading.steps.exchange import Exchange
from energy_data.loading.steps.gloo import GlooExchange
from energy_data.loading.steps.planner import OpenStep, StepPlan, add_round
from energy_data.loading.steps.rounds import RoundReader, StepSlot, empty_like
from energy_data.loading.steps.stages import resolve_rules
from energy_data.loading.steps.state import SettledStep, StepPosition, StepState
from energy_data.order.step_rules import DocsPerStep


class StepGrouper(SavableDataLoader[Any]):
    """Gives the micro-batches of one rank step by step, each with a `Step` in `__step__`.

    `__step__` is a key of a batch that is a dict, else an attribute where the type allows it.
    `last_step` always has it. StepsError if the ranks can no longer agree.

    loader: of the run that `for_steps` returns, made with `in_steps=True`.
    """

    def __init__(
        self, loader: Loader[Any], rules: DocsPerStep, exchange: Exchange | None = None
    ) -> None:
        self.loader, self.dataset = loader, loader.dataset
        config = self.dataset.worker_config
        if self.dataset.from_start or self.dataset.even_batches is not None:
            found = "a validation stream" if self.dataset.from_start else "even_batches"
            raise SpecError(
                f"docs_per_step: it does not go with {found}. Passes of training end on all ranks "
                f"together as `on_rank_end` and `last` say."
            )
        self._ranks = config.world_size
        self.rules = resolve_rules(rules, self._ranks)
        exchange = exchange or GlooExchange(config, rules.timeout_s)
        self._reader = RoundReader(loader, self.rules, exchange)
        self.last_step: Step | None = None
        self._settled: SettledStep | None = None  # the step that is handed out
        self._begin(StepPosition())

    def next_batch(self) -> Any:
        """Return the next micro-batch.

        StopIteration at the end of a pass, once; with `virtual_epoch_length`, after the step that
        reaches it. StepsError if the ranks can no longer agree.
        """
        if self._settled is None:
            self._end_epoch_if_due()
            self._enter_stage_if_due()
            self._settled = self._next_step()
        elif not self._reader.buffer.slots:
            self._draw_again(self._settled)
        self._reader.draw_ahead(self._settled)
        return self._hand_out(self._settled)

    # ---- one step after another

    def _begin(self, at: StepPosition, settled: SettledStep | None = None) -> None:
        """Continue at a position; nothing is drawn yet."""
        self._at, self._settled = at, settled
        self._open = OpenStep(at.step), EMPTY  # the next step, as far as it is known
        self._last_base: int | None = None  # of the round of the last micro-batch handed out
        self._blank: Any = None  # an empty micro-batch
        self.loader.keep(at.in_run(self._ranks))
        self._reader.begin(at)

    def _hand_out(self, settled: SettledStep) -> Any:
        at, plan, total = self._at, settled.plan, settled.counts
        slots = self._reader.buffer.slots
        slot = slots[at.index]
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
        slots[at.index] = StepSlot(slot.base)  # the trainer owns its memory now
        self.last_step, self._last_base = step, slot.base
        if step.is_last:
            self._end_step(plan, total)
        else:
            self._at = evolve(at, index=at.index + 1)
        return batch

    def _end_step(self, plan: StepPlan, total: Counts) -> None:
        at = self._at
        self._at = StepPosition(
            epoch=at.epoch,
            epoch_start=at.epoch_start,
            base=at.base + plan.rounds * self._reader.stride,
            step=at.step + 1,
            docs_seen=at.docs_seen + total.documents,
            given=at.given + plan.microbatches,
        )
        self._settled, self._open = None, (OpenStep(self._at.step), EMPTY)
        self._reader.buffer.slots = []
        self.loader.keep(self._at.in_run(self._ranks))

    def _end_epoch_if_due(self) -> None:
        length, at = self.dataset.virtual_epoch_length, self._at
        if length and at.given >= length:
            self._at = evolve(at, epoch=at.epoch + 1, epoch_start=at.base, given=0)
            raise StopIteration

    def _enter_stage_if_due(self) -> None:
        """Continue in the stage of the next step. StopIteration, each time, after the last."""
        stages, at = self._reader.stages, self._at
        if not stages.counts_steps:
            return
        number = stages.number_at(at.step)
        if number == len(stages.specs):
            raise StopIteration
        if number != len(self.loader.entered):
            self.loader.enter_stage(at.in_run(self._ranks))
            self._begin(at)

    def _next_step(self) -> SettledStep:
        """Learn of rounds until a step is complete. StopIteration if the pass has ended."""
        buffer = self._reader.buffer
        while True:
            step, counts = self._open
            if step.rounds == len(buffer.known):
                self._reader.learn()
            known = buffer.known[step.rounds]
            after, outcome = add_round(step, known.round, self.rules, self._ranks)
            if outcome == "end" and not (step.microbatches and self.rules.last == "short"):
                self._end_pass()
                raise StopIteration
            if outcome in ("end", "before"):
                break
            step, counts = self._open = after, counts.plus(known.counts)
            if outcome == "full":
                break
        return self._settle(SettledStep(StepPlan.of(step, self.rules), counts))

    def _settle(self, step: SettledStep) -> SettledStep:
        at_least = self.rules.mode == "at_least"
        self._reader.buffer.settle(step, self._reader.stride // self._ranks if at_least else 0)
        return step

    def _end_pass(self) -> None:
        """Begin the next pass, unless the run is over."""
        if not self._reader.stages.counts_steps and self.loader.is_over:
            return
        at = self._at
        self.loader.begin_pass()
        self._begin(StepPosition(epoch=at.epoch + 1, step=at.step, docs_seen=at.docs_seen))

    def _empty(self) -> Any:
        """Return an empty micro-batch, made from one of this rank."""
        if self._blank is None:
            buffer = self._reader.buffer
            slots = [*buffer.slots, *(slot for drawn in buffer.pending for slot in drawn.slots)]
            like = [slot.batch for slot in slots if slot.batch is not None]
            if not like:
                spec = self._reader.stages.specs[len(self.loader.entered)]
                first = padding_batch(self.dataset.replace(spec=spec), 0, self.loader.num_lanes)
                like = list(first) if self.rules.mode == "exact" else [first]
            if not like:
                raise DataError(
                    "docs_per_step: an empty micro-batch is needed, and there is none to make it "
                    "from. Use fewer ranks, or a larger target."
                )
            self._blank = empty_like(like[0])
        return with_values(self._blank, lambda value: value)

    # ---- reports

    @property
    def last_batch(self) -> int | None:
        """The number in the run of the first micro-batch of the last round handed out."""
        return self._last_base

    @property
    def stage(self) -> tuple[int, str] | None:
        """Number and name of the stage of the last batch handed out; None before the first."""
        return self.loader.stage_of(self._last_base)

    def num_batches(self) -> int | None:
        """Return how many micro-batches an iteration gives this rank at most; None if unknown."""
        return self.loader.num_batches()

    def stats(self) -> Stats:
        """Return what this rank has done so far. Reads no data, changes nothing."""
        return self.loader.stats()

    def starvation(self) -> str:
        """Return in words what held up the trainer in the last seconds. Costs nothing."""
        return self.loader.starvation()

    def close(self) -> None:
        """Stop worker processes and exchanges."""
        self.loader.close()
        self._reader.exchange.close()

    # ---- state

    def run_state(self) -> RunState:
        """Return the position of this rank."""
        state = self.loader.state_at(self._at.in_run(self._ranks))
        return evolve(state, step=self._at.to_dict(self._settled, self.rules, self._ranks))

    def restore(self, saved: RunState, on_mismatch: OnMismatch) -> bool:
        """Move to a saved position; return False if the run starts from the beginning instead."""
        step = None if saved.step is None else StepState.of(saved.step)
        misfit = None if step is None else step.unfit(self.rules, self._ranks)
        if step is not None and not 0 <= saved.batch - step.base < saved.lanes:
            raise StateError(
                f"state: it is damaged: its step began at micro-batch {step.base}, and its lanes "
                f"are at {saved.batch}. Use another checkpoint."
            )
        if self.loader.is_changed(saved) and step and step.index and on_mismatch == "keep_matching":
            raise StateMismatchError(
                f"state: the tree was edited, and the state was saved inside step {step.step}, "
                f"whose contents it holds. Restore a state saved at the end of a step."
            )
        found = self.loader.restore(saved, on_mismatch, misfit=misfit)
        if not found:
            self._begin(StepPosition())
        elif step is None:
            given = (saved.clock - saved.begun) // self._ranks
            epoch, start, base = saved.epoch, saved.begun, saved.clock
            self._begin(StepPosition(epoch=epoch, epoch_start=start, base=base, given=given))
        else:
            self._begin(step.position(saved.epoch, saved.begun, self._ranks), step.settled)
        return found

    def _draw_again(self, step: SettledStep) -> None:
        """Draw the rounds of a step that was saved after some micro-batches; exchanges nothing."""
        buffer = self._reader.buffer
        while len(buffer.pending) < step.plan.rounds:
            self._reader.draw()
            if buffer.is_over:
                raise DataError(
                    f"docs_per_step: the pass ended inside step {step.plan.step}, which was "
                    f"complete when it was saved. The data have changed: restore a state saved at "
                    f"the end of a step."
                )
        self._settle(step)


def _with_step(batch: Any, step: Step) -> Any:
    """Return the batch with its `__step__`, if its type can have one."""
    if isinstance(batch, dict):
        batch["__step__"] = step
    else:
        with contextlib.suppress(AttributeError, TypeError):  # a tuple; `last_step` has it
            batch.__step__ = step
    return batch
