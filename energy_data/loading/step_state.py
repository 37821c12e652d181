"""The place inside steps, and how it is saved.

    step, index       the step, and the micro-batches of it that were handed over
    docs_seen         documents of all steps before it
    base              number in the run of the step's first round; the state is of that place
    passes            rounds of the step after which a pass ended (`last: carry`)
    told              how many of these ends the trainer was told of
    given             micro-batches that each rank was given in this iteration, before the step
    settled           of a step that has begun: its rounds, micro-batches, totals; else None
    ranks, rule       of the run, inside a step; what must not change

Restored inside a step, a rank draws the step's rounds again, and asks nobody.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attrs import frozen

from energy_data.core.cursor_check import is_count, shown
from energy_data.core.node import State
from energy_data.errors import StateError
from energy_data.steps.counts import EMPTY, Counts
from energy_data.steps.plan import Planned
from energy_data.steps.rules import DocsPerStep

MOST = 1 << 20  # micro-batches of a rank in a step; more are a damaged number


class Settled(NamedTuple):
    """A step that all ranks know of."""

    plan: Planned
    counts: Counts

    def to_list(self) -> list[Any]:
        """Return the step as plain data."""
        return [*self.plan[:-1], list(self.plan.blank), *self.counts]

    @classmethod
    def of(cls, said: Any) -> Settled | None:
        """Return a step read back."""
        if said is None:
            return None
        step, rounds, amount, microbatches, short, blank, *counts = said
        plan = Planned(step, rounds, amount, microbatches, short, tuple(blank))
        known = [each for each in counts[1:] if each is not None]  # documents always are
        numbers = (*plan[:4], *plan.blank, *counts[:1], *known)
        if not all(map(is_count, numbers)) or not isinstance(short, bool) or len(counts) != 5:
            raise ValueError(f"a step of {shown(said)}")
        given = rounds - len(blank)
        if not sorted(set(blank)) == blank[:rounds] or not given <= microbatches <= MOST:
            raise ValueError(f"a step of {rounds} rounds and {microbatches} micro-batches")
        return cls(plan, Counts(*counts).plus(EMPTY))


@frozen(kw_only=True)
class At:
    """A place: a step, and how much of it was handed over."""

    epoch: int = 0  # of the step's first round
    begun: int = 0  # number of the epoch's first micro-batch
    base: int = 0  # number of the step's first round
    step: int = 0
    index: int = 0
    docs_seen: int = 0
    passes: tuple[int, ...] = ()
    told: int = 0
    given: int = 0  # micro-batches of each rank in this iteration, before the step
    places: dict[int, State] | None = None  # of the lanes at the step's first round, if a pass ago

    def to_dict(self, settled: Settled | None, rules: DocsPerStep, ranks: int) -> dict[str, Any]:
        """Return the place as plain data."""
        return {
            "step": self.step,
            "index": self.index,
            "docs_seen": self.docs_seen,
            "base": self.base,
            "passes": list(self.passes) if self.index else [],
            "told": self.told,
            "given": self.given,
            "settled": settled.to_list() if settled and self.index else None,
            "ranks": ranks,
            "rule": rules.fixed,
        }


def _check_inside(plan: Planned, step: int, index: int, passes: tuple[int, ...]) -> None:
    """Raise ValueError for a place that cannot be inside a step."""
    if plan.step != step or not 0 < index < plan.microbatches:
        raise ValueError(f"micro-batch {index} of step {step}, and a step {plan}")
    if sorted({*passes}) != list(passes) or (passes and passes[-1] > plan.rounds):
        raise ValueError(f"passes that end after {passes} of {plan.rounds} rounds")


@frozen(kw_only=True)
class StepState:
    """A place read back."""

    step: int
    index: int
    docs_seen: int
    base: int
    told: int
    given: int | None  # None: in states from before it was saved
    passes: tuple[int, ...]
    settled: Settled | None
    ranks: int
    rule: list[Any]

    @classmethod
    def of(cls, said: Any) -> StepState:
        """Return the place; StateError if it is damaged."""
        try:
            names = ("step", "index", "docs_seen", "base", "told", "ranks")
            numbers = {name: said[name] for name in names}
            given = said.get("given", 0)  # older versions have none
            passes, settled = tuple(said["passes"]), Settled.of(said["settled"])
            for number in (*numbers.values(), given, *passes):
                if not is_count(number):
                    raise ValueError(f"a number from 0 to 2**48 is expected, got {shown(number)}")
            index = numbers["index"]
            if settled is None and (index or passes):
                raise ValueError(f"micro-batch {index} of a step that is not known")
            if settled is not None:
                _check_inside(settled.plan, numbers["step"], index, passes)
            return cls(
                **numbers,
                given=said.get("given"),
                passes=passes,
                settled=settled,
                rule=list(said["rule"]),
            )
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"state: its place inside steps is damaged ({type(error).__name__}: {error}). Use "
                f"another checkpoint."
            ) from error

    def unfit(self, rules: DocsPerStep, ranks: int) -> str | None:
        """Return in a sentence why a run cannot go on from here, None if it can."""
        if self.rule != rules.fixed:
            return (
                f"state: it was saved with docs_per_step of mode, count and shares {self.rule}, "
                f"this run has {rules.fixed}. Only the target may change inside a run "
                f"(without `shares`, they are as many as ranks); pass the same, or restore with "
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
