"""Which rounds make a step: a pure function of their contents over all ranks. And positions in it.

The saved form of a position, besides what every state has:

    step, index       the step, and the number of its micro-batches that were handed out
    docs_seen         documents in all earlier steps
    base              first micro-batch of the step's first round; the lanes are saved there
    given             micro-batches returned by each rank in this iteration, before the step
    plan              inside a step: its rounds, micro-batches and totals; else None
    ranks, rule       number of ranks, and the rules that must not change

Restored inside a step, a rank draws the step's rounds again and exchanges nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

from attrs import frozen

from energy_data.core.cursor import is_count, shorten
from energy_data.errors import DataError, StateError
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.lanes import RunPosition
from energy_data.loading.steps.counts import EMPTY, Counts, sum_counts
from energy_data.order.step_rules import DocsPerStep

MAX_EMPTY_ROUNDS = 16  # in a row; more are an error, not a hang
MAX_MICROBATCHES = 1 << 20  # of a rank in a step; more are a damaged number
NUMBERS = ("step", "index", "docs_seen", "base", "given")


class Round(NamedTuple):
    """The contents of a round: on one rank, or over all ranks."""

    counts: Counts
    items: int = 1  # ranks that have a micro-batch in it
    ended: int = 0  # ranks for which the pass is over
    new_stage: bool = False  # whether a stage begins in it
    microbatches: int = 1  # of the rank that has most of them

    @classmethod
    def merge(cls, rounds: Iterable[Round]) -> Round:
        """Return a round over all ranks from the rounds of the ranks."""
        counts, items, ended, new_stage, microbatches = zip(*rounds, strict=True)
        return cls(sum_counts(counts), sum(items), sum(ended), any(new_stage), max(microbatches))


class StepPlan(NamedTuple):
    """A step, with the rounds that it has so far."""

    step: int
    rounds: int = 0
    amount: int = 0  # of what the target counts
    microbatches: int = 0  # of each rank, including empty ones
    is_short: bool = True  # it holds less than the target
    blank: tuple[int, ...] = ()  # rounds without a micro-batch on any rank; they are skipped
    counts: Counts = EMPTY
    empty_rounds: int = 0  # the last ones, whose amount was 0

    def to_list(self) -> list[Any]:
        """Return a complete step as plain data."""
        return [*self[:5], list(self.blank), list(self.counts)]

    @classmethod
    def from_list(cls, saved: Any) -> StepPlan:
        """Return a saved step. Raises TypeError or ValueError for a damaged one."""
        step, rounds, amount, microbatches, is_short, blank, counts = saved
        known = [each for each in counts[1:] if each is not None]  # documents are never None
        numbers = (step, rounds, amount, microbatches, *blank, *counts[:1], *known)
        if not all(map(is_count, numbers)) or not isinstance(is_short, bool) or len(counts) != 5:
            raise ValueError(f"a step of {shorten(saved)}")
        given = rounds - len(blank)
        if sorted(set(blank)) != blank[:rounds] or not given <= microbatches <= MAX_MICROBATCHES:
            raise ValueError(f"a step of {rounds} rounds and {microbatches} micro-batches")
        return cls(step, rounds, amount, microbatches, is_short, tuple(blank), Counts(*counts))


Outcome = Literal["open", "full", "before", "end"]
"""The step takes the round and stays open, or is full; or the step ends before the round, because
a stage begins in it; or the pass has ended before the round."""


def add_round(
    step: StepPlan, a_round: Round, rules: DocsPerStep, ranks: int
) -> tuple[StepPlan, Outcome]:
    """Return the step after one more round of all ranks, and the outcome.

    Raises DataError if the step needs too many micro-batches, or rounds stay empty.
    """
    if a_round.ended and (rules.on_rank_end == "stop" or a_round.ended == ranks):
        return step, "end"
    if not a_round.items:
        return step._replace(rounds=step.rounds + 1, blank=(*step.blank, step.rounds)), "open"
    if a_round.new_stage and step.microbatches:
        return step, "before"
    size, is_exact = rules.round_size(ranks), rules.mode == "exact"
    found = getattr(a_round.counts, rules.measure, size)  # `microbatches` is no field of them
    amount = step.amount + found
    is_full = is_exact or amount >= rules.target_of(step.step)
    step = StepPlan(
        step.step,
        step.rounds + 1,
        amount,
        step.microbatches + (a_round.microbatches if is_exact else size // ranks),
        not is_full,
        step.blank,
        sum_counts([step.counts, a_round.counts]),
        0 if found else step.empty_rounds + 1,
    )
    _check(step, rules)
    return step, "full" if is_full else "open"


def _check(step: StepPlan, rules: DocsPerStep) -> None:
    target, most = rules.target_of(step.step), rules.max_microbatches
    if most is not None and step.microbatches + step.is_short > most:
        raise DataError(
            f"docs_per_step: step {step.step} needs more than {most} micro-batches per rank, "
            f"{step.microbatches} hold {step.amount} of {target} {rules.measure}. Raise "
            f"max_microbatches, or the batch size."
        )
    if rules.mode == "exact" and step.amount != target:
        raise DataError(
            f"docs_per_step: step {step.step} was cut to exactly {target} {rules.measure}, but "
            f"its micro-batches hold {step.amount}. Let `batch` and `encode_batch` pass on the "
            f"`__docs__` of packs, or the `__key__` of samples, or put the number of documents "
            f"into each micro-batch as `__docs__`."
        )
    if step.is_short and step.empty_rounds >= MAX_EMPTY_ROUNDS:
        raise DataError(
            f"docs_per_step: {step.empty_rounds} rounds in a row held no {rules.measure} on any "
            f"rank; step {step.step} holds {step.amount} of {target}. Look for what leaves "
            f"samples out: a filter, SkipSample, or bad data."
        )


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
    plan: StepPlan | None = None  # of the step, once it is complete

    def in_run(self) -> RunPosition:
        """Return the position of the step's first micro-batch."""
        return RunPosition(self.epoch, self.epoch_start, self.base, self.base)

    def to_dict(self, rules: DocsPerStep, ranks: int) -> dict[str, Any]:
        """Return the position as plain data; epoch and epoch_start are saved by `RunState`."""
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            "plan": self.plan.to_list() if self.plan and self.index else None,
            "ranks": ranks,
            "rule": rules.fixed,
        }

    @classmethod
    def of(cls, saved: RunState, ranks: int) -> StepPosition:
        """Return a saved position for a run on `ranks` ranks; StateError if it is damaged."""
        epoch, start = saved.epoch, saved.epoch_start
        if saved.step is None:
            given = (saved.clock - start) // ranks
            return cls(epoch=epoch, epoch_start=start, base=saved.clock, given=given)
        try:
            numbers = {name: saved.step[name] for name in (*NUMBERS, "ranks")}
            plan = None if (found := saved.step["plan"]) is None else StepPlan.from_list(found)
            if wrong := [each for each in numbers.values() if not is_count(each)]:
                raise ValueError(f"a number from 0 to 2**48 is expected, got {shorten(wrong[0])}")
            step, index = numbers["step"], numbers["index"]
            if (plan.step, 0 < index < plan.microbatches) != (step, True) if plan else index:
                raise ValueError(f"micro-batch {index} of step {step}, and a step {plan}")
            if saved.clock < numbers["base"]:
                raise ValueError(
                    f"a step from {numbers['base']} on, and a round from {saved.clock} on"
                )
            numbers["given"] = numbers["given"] * numbers.pop("ranks") // ranks
            return cls(epoch=epoch, epoch_start=start, plan=plan, **numbers)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"state: its position inside steps is damaged ({type(error).__name__}: {error}). "
                f"Use another checkpoint."
            ) from error


def misfit(saved: dict[str, Any], rules: DocsPerStep, ranks: int) -> str | None:
    """Return why a run cannot continue from the saved form of a position; None if it can."""
    if saved.get("rule") != rules.fixed:
        return (
            f"state: it was saved with docs_per_step of mode, count and shares "
            f"{saved.get('rule')}, this run has {rules.fixed}. Only the target may change during a "
            f"run (without `shares`, there are as many as ranks). Pass the same, or restore with "
            f"on_mismatch='restart'."
        )
    if saved["index"] and saved["ranks"] != ranks:
        return (
            f"state: it was saved inside step {saved['step']}, after micro-batch {saved['index']} "
            f"on {saved['ranks']} ranks, this run has {ranks}. Inside a step the number of ranks "
            f"is fixed: use {saved['ranks']}, or restore a state saved after the last micro-batch "
            f"of a step (`__step__.is_last`)."
        )
    return None
