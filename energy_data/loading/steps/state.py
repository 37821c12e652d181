"""The position inside steps, and its saved form.

    step, index       the step, and the number of its micro-batches that were handed out
    docs_seen         documents in all earlier steps
    base              first micro-batch of the step's first round; the lanes are saved there
    given             micro-batches returned by each rank in this iteration, before the step
    settled           inside a step: its rounds, micro-batches and totals; else None
    ranks, rule       number of ranks, and the rules that must not change

Restored inside a step, a rank draws the step's rounds again and exchanges nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attrs import frozen

from energy_data.core.cursor import is_count, shorten
from energy_data.errors import StateError
from energy_data.loading.lanes import RunPosition
from energy_data.loading.steps.counts import EMPTY, Counts
from energy_data.loading.steps.planner import StepPlan
from energy_data.order.step_rules import DocsPerStep

MOST = 1 << 20  # micro-batches of a rank in a step; more are a damaged number
NUMBERS = ("step", "index", "docs_seen", "base", "given")


class SettledStep(NamedTuple):
    """A step whose contents all ranks know."""

    plan: StepPlan
    counts: Counts

    def to_list(self) -> list[Any]:
        """Return the step as plain data."""
        return [*self.plan[:-1], list(self.plan.blank), *self.counts]

    @classmethod
    def from_list(cls, saved: Any) -> SettledStep:
        """Return a saved step. Raises TypeError or ValueError for a damaged one."""
        step, rounds, amount, microbatches, short, blank, *counts = saved
        plan = StepPlan(step, rounds, amount, microbatches, short, tuple(blank))
        known = [each for each in counts[1:] if each is not None]  # documents are never None
        numbers = (*plan[:4], *plan.blank, *counts[:1], *known)
        if not all(map(is_count, numbers)) or not isinstance(short, bool) or len(counts) != 5:
            raise ValueError(f"a step of {shorten(saved)}")
        given = rounds - len(blank)
        if not sorted(set(blank)) == blank[:rounds] or not given <= microbatches <= MOST:
            raise ValueError(f"a step of {rounds} rounds and {microbatches} micro-batches")
        return cls(plan, Counts(*counts).plus(EMPTY))


@frozen(kw_only=True)
class StepPosition:
    """A position in the run: a step, and the number of its micro-batches that were handed out."""

    epoch: int = 0  # of the step's first round
    epoch_start: int = 0  # number of the epoch's first micro-batch
    base: int = 0  # number of the step's first round
    step: int = 0
    index: int = 0
    docs_seen: int = 0
    given: int = 0  # micro-batches of each rank in this iteration, before the step

    def in_run(self, ranks: int) -> RunPosition:
        """Return the position of the step's first micro-batch."""
        return RunPosition(self.epoch, self.epoch_start, self.base, self.base % ranks)

    def to_dict(
        self, settled: SettledStep | None, rules: DocsPerStep, ranks: int
    ) -> dict[str, Any]:
        """Return the position as plain data; epoch and epoch_start are saved by `RunState`."""
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            "settled": settled.to_list() if settled and self.index else None,
            "ranks": ranks,
            "rule": rules.fixed,
        }


@frozen(kw_only=True)
class StepState:
    """A position read back."""

    step: int
    index: int
    docs_seen: int
    base: int
    given: int
    ranks: int
    settled: SettledStep | None
    rule: list[Any]

    @classmethod
    def of(cls, saved: Any) -> StepState:
        """Return the position; StateError if it is damaged."""
        try:
            numbers = {name: saved[name] for name in (*NUMBERS, "ranks")}
            found = saved["settled"]
            settled = None if found is None else SettledStep.from_list(found)
            if wrong := [each for each in numbers.values() if not is_count(each)]:
                raise ValueError(f"a number from 0 to 2**48 is expected, got {shorten(wrong[0])}")
            step, index = numbers["step"], numbers["index"]
            if index and not settled:
                raise ValueError(f"micro-batch {index} of a step that is not known")
            if settled and not (
                settled.plan.step == step and 0 < index < settled.plan.microbatches
            ):
                raise ValueError(f"micro-batch {index} of step {step}, and a step {settled.plan}")
            return cls(**numbers, settled=settled, rule=list(saved["rule"]))
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"state: its position inside steps is damaged ({type(error).__name__}: {error}). "
                f"Use another checkpoint."
            ) from error

    def unfit(self, rules: DocsPerStep, ranks: int) -> str | None:
        """Return in a sentence why a run cannot go on from here, None if it can."""
        if self.rule != rules.fixed:
            return (
                f"state: it was saved with docs_per_step of mode, count and shares {self.rule}, "
                f"this run has {rules.fixed}. Only the target may change during a run "
                f"(without `shares`, there are as many as ranks). Pass the same, or restore with "
                f"on_mismatch='restart'."
            )
        if self.index and self.ranks != ranks:
            return (
                f"state: it was saved inside step {self.step}, after micro-batch {self.index} on "
                f"{self.ranks} ranks, this run has {ranks}. Inside a step the number of ranks is "
                f"fixed: go on with {self.ranks}, or restore a state saved after the last "
                f"micro-batch of a step (`__step__.is_last`)."
            )
        return None

    def position(self, epoch: int, epoch_start: int, ranks: int) -> StepPosition:
        """Return the position for a run on `ranks` ranks."""
        given = {"given": self.given * self.ranks // ranks}
        numbers = {name: getattr(self, name) for name in NUMBERS}
        return StepPosition(epoch=epoch, epoch_start=epoch_start, **{**numbers, **given})
