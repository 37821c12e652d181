"""`StepGrouper`: groups the micro-batches of a loader into steps, the same on all ranks.

It draws rounds (a *round* is one micro-batch of each rank), learns their contents on all ranks, and
hands a step out once all of it is there. The position of the run is that of the last micro-batch
handed out, whatever was drawn ahead: the position of the lanes at the step's first round, and the
number of micro-batches of the step that were handed out.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import evolve

from energy_data.errors import DataError, SpecError, StateMismatchError
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.epoch_end import padding_batch, with_values
from energy_data.loading.loader import Loader
from energy_data.loading.reports import Stats
from energy_data.loading.savable_loader import OnMismatch, SavableDataLoader
from energy_data.loading.steps.counts import Step
from energy_data.loading.steps.exact import cut_into_shares
from energy_data.loading.steps.exchange import Exchange
from energy_data.loading.steps.planner import StepPlan, StepPosition, add_round, misfit
from energy_data.loading.steps.rounds import RoundReader, StepSlot, empty_like
from energy_data.order.step_rules import DocsPerStep

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

T = TypeVar("T")


def for_steps(dataset: SavableDataset[T], rules: DocsPerStep) -> SavableDataset[T]:
    """Return the dataset that a loader groups into steps: mode "exact" cuts its batches."""
    if rules.mode != "exact":
        return dataset
    shares = _resolved(rules, dataset.worker_config.world_size).round_size(0)
    return dataset.replace(spec=cut_into_shares(dataset.spec, rules, shares))


def _resolved(rules: DocsPerStep, ranks: int) -> DocsPerStep:
    """Return the rules with the shares of mode "exact". SpecError if ranks do not fit them."""
    size = rules.round_size(ranks)
    if size % ranks:
        raise SpecError(
            f"docs_per_step: {ranks} ranks cannot divide {size} shares of a step evenly. Use a "
            f"number of ranks that divides shares."
        )
    if rules.count == "microbatches" and any(target % size for _, target in rules.target):
        raise SpecError(
            f"docs_per_step: steps of {[target for _, target in rules.target]} micro-batches of "
            f"all ranks are not whole rounds of {size}. Make them multiples of it."
        )
    return evolve(rules, shares=size) if rules.mode == "exact" else rules


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
        self.rules = _resolved(rules, self._ranks)
        exchange = exchange or Exchange(config, rules.timeout_s)
        self._reader = RoundReader(loader, self.rules, exchange)
        self.last_step: Step | None = None
        self._at = StepPosition()
        self._begin(self._at)

    def next_batch(self) -> Any:
        """Return the next micro-batch.

        StopIteration at the end of a pass, once; with `virtual_epoch_length`, after the step that
        reaches it. StepsError if the ranks can no longer agree.
        """
        if self._at.plan is None:
            self._end_epoch_if_due()
            self._enter_stage_if_due()
            plan = self._next_step()
            self._reader.settle(plan)
            self._at = evolve(self._at, plan=plan)
        else:
            plan = self._at.plan
            if not self._reader.slots:
                self._draw_again(plan)
        self._reader.draw_ahead(plan)
        return self._hand_out(plan)

    # ---- one step after another

    def _begin(self, at: StepPosition) -> None:
        """Continue at a position; nothing is drawn yet."""
        self._reader.begin(at)
        self._last_base: int | None = None  # of the round of the last micro-batch handed out
        self._blank: Any = None  # an empty micro-batch
        self._move(at)

    def _move(self, at: StepPosition) -> None:
        """Continue at the beginning of a step."""
        self._at = at
        self._open = StepPlan(at.step)  # the step, as far as it is known
        self.loader.keep(at.in_run())

    def _hand_out(self, plan: StepPlan) -> Any:
        at, total = self._at, plan.counts
        slot = self._reader.slots[at.index]
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
        self._reader.slots[at.index] = StepSlot(slot.base)  # the trainer owns its memory now
        self.last_step, self._last_base = step, slot.base
        if not step.is_last:
            self._at = evolve(at, index=at.index + 1)
            return batch
        self._reader.slots = []
        self._move(
            StepPosition(
                epoch=at.epoch,
                epoch_start=at.epoch_start,
                base=at.base + plan.rounds * self._reader.stride,
                step=at.step + 1,
                docs_seen=at.docs_seen + total.documents,
                given=at.given + plan.microbatches,
            )
        )
        return batch

    def _end_epoch_if_due(self) -> None:
        length, at = self.dataset.virtual_epoch_length, self._at
        if length and at.given >= length:
            self._at = evolve(at, epoch=at.epoch + 1, epoch_start=at.base, given=0)
            raise StopIteration

    def _enter_stage_if_due(self) -> None:
        """Continue in the stage of the next step. StopIteration, each time, after the last."""
        plan, at = self._reader.plan, self._at
        if not plan.counts_steps:
            return
        number = plan.number_of(at.step)
        if number == len(plan.stages):
            raise StopIteration
        if number != len(self.loader.entered):
            self.loader.enter_stage(at.in_run())
            self._begin(at)

    def _next_step(self) -> StepPlan:
        """Learn of rounds until a step is complete. StopIteration if the pass has ended."""
        reader = self._reader
        while True:
            if self._open.rounds == len(reader.known):
                reader.learn()
            a_round = reader.known[self._open.rounds]
            self._open, outcome = add_round(self._open, a_round, self.rules, self._ranks)
            if outcome == "end" and not (self._open.microbatches and self.rules.last == "short"):
                self._end_pass()
                raise StopIteration
            if outcome != "open":
                return self._open

    def _end_pass(self) -> None:
        """Begin the next pass, unless the run is over."""
        if not self._reader.plan.counts_steps and self.loader.is_over:
            return
        at = self._at
        self.loader.begin_pass()
        self._begin(StepPosition(epoch=at.epoch + 1, step=at.step, docs_seen=at.docs_seen))

    def _draw_again(self, plan: StepPlan) -> None:
        """Draw the rounds of a step that was saved after some micro-batches; exchanges nothing."""
        reader = self._reader
        while len(reader.pending) < plan.rounds:
            reader.draw()
            if reader.is_over:
                raise DataError(
                    f"docs_per_step: the pass ended inside step {plan.step}, which was complete "
                    f"when it was saved. The data have changed: restore a state saved at the end "
                    f"of a step."
                )
        reader.settle(plan)

    def _empty(self) -> Any:
        """Return an empty micro-batch, made from one of this rank."""
        if self._blank is None:
            reader = self._reader
            slots = [*reader.slots, *(slot for drawn in reader.pending for slot in drawn.slots)]
            like = [slot.batch for slot in slots if slot.batch is not None]
            if not like:
                dataset = self.dataset.replace(spec=reader.spec)
                first = padding_batch(dataset, 0, self.loader.num_lanes)
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
        state = self.loader.run_state(self._at.in_run())
        return evolve(state, step=self._at.to_dict(self.rules, self._ranks))

    def restore(self, saved: RunState, on_mismatch: OnMismatch) -> bool:
        """Move to a saved position; return False if the run starts from the beginning instead."""
        at = StepPosition.of(saved, self._ranks)
        if at.index and on_mismatch == "keep_matching" and self.loader.is_changed(saved):
            raise StateMismatchError(
                f"state: the tree was edited, and the state was saved inside step {at.step}, "
                f"whose contents it holds. Restore a state saved at the end of a step."
            )
        wrong = None if saved.step is None else misfit(saved.step, self.rules, self._ranks)
        found = self.loader.restore(saved, on_mismatch, misfit=wrong)
        self._begin(at if found else StepPosition())
        return found


def _with_step(batch: Any, step: Step) -> Any:
    """Return the batch with its `__step__`, if its type can have one."""
    if isinstance(batch, dict):
        batch["__step__"] = step
    else:
        with contextlib.suppress(AttributeError, TypeError):  # a tuple; `last_step` has it
            batch.__step__ = step
    return batch
