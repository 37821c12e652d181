"""Which rounds make a step: a pure function of their contents over all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from energy_data.core.spec import Spec
from energy_data.errors import DataError
from energy_data.loading.steps.counts import Counts
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.order.step_rules import DocsPerStep

MAX_EMPTY_ROUNDS = 16  # in a row; more are an error, not a hang


class Round(NamedTuple):
    """What is known of a round over all ranks."""

    amount: int  # of what the target counts
    items: int = 1  # ranks that have a micro-batch in it
    ended: int = 0  # ranks for which the pass is over
    new_stage: bool = False  # whether a stage begins in it
    microbatches: int = 1  # of the rank that has most of them


class OpenStep(NamedTuple):
    """A step that is being filled."""

    step: int
    rounds: int = 0
    amount: int = 0
    empty_rounds: int = 0  # the last ones, whose amount was 0
    microbatches: int = 0
    blank: tuple[int, ...] = ()  # rounds without a micro-batch on any rank; they are skipped


Outcome = Literal["open", "full", "before", "end"]
"""The step takes the round and stays open, or is full; or the step ends before the round, because
a stage begins in it; or the pass has ended before the round."""


class StepPlan(NamedTuple):
    """A step whose rounds are known."""

    step: int
    rounds: int
    amount: int
    microbatches: int  # of each rank, including empty ones
    is_short: bool
    blank: tuple[int, ...] = ()

    @classmethod
    def of(cls, step: OpenStep, rules: DocsPerStep) -> StepPlan:
        """Return the step with the rounds that it has so far."""
        is_short = step.amount < rules.target_of(step.step)
        return cls(step.step, step.rounds, step.amount, step.microbatches, is_short, step.blank)


def add_round(
    step: OpenStep, a_round: Round, rules: DocsPerStep, ranks: int
) -> tuple[OpenStep, Outcome]:
    """Return the step after one more round, and the outcome.

    Raises DataError if the step needs too many micro-batches, or rounds stay empty.
    """
    if a_round.ended and (rules.on_rank_end == "stop" or a_round.ended == ranks):
        return step, "end"
    if not a_round.items:
        return step._replace(rounds=step.rounds + 1, blank=(*step.blank, step.rounds)), "open"
    if a_round.new_stage and step.microbatches:
        return step, "before"
    step = OpenStep(
        step.step,
        step.rounds + 1,
        step.amount + a_round.amount,
        0 if a_round.amount else step.empty_rounds + 1,
        step.microbatches + a_round.microbatches,
        step.blank,
    )
    full = rules.mode == "exact" or step.amount >= rules.target_of(step.step)
    _check(step, rules, full=full)
    return step, "full" if full else "open"


def _check(step: OpenStep, rules: DocsPerStep, *, full: bool) -> None:
    target, most = rules.target_of(step.step), rules.max_microbatches
    if most is not None and step.microbatches + (not full) > most:
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
    if not full and step.empty_rounds >= MAX_EMPTY_ROUNDS:
        raise DataError(
            f"docs_per_step: {step.empty_rounds} rounds in a row held no {rules.measure} on any "
            f"rank; step {step.step} holds {step.amount} of {target}. Look for what leaves "
            f"samples out: a filter, SkipSample, or bad data."
        )


KnownCounts: TypeAlias = Callable[[int], tuple[int, Counts]]
"""Number of a micro-batch or share in the run -> its number of micro-batches, and their contents.
All ranks can compute it, so they need not exchange counts."""


def known_counts(spec: Spec, rules: DocsPerStep) -> KnownCounts | None:
    """Return the contents of micro-batches if no data is needed to know them, else None."""
    if not isinstance(spec, BatchSpec) or spec.aligned or not makes_full_batches(spec):
        return None
    if rules.count not in ("documents", "samples"):
        return None
    counts = Counts(spec.batch_size, spec.batch_size, None, None, None)
    return lambda number: (1, counts)


def makes_full_batches(spec: Any) -> bool:
    """Return whether batches of a batch spec are full, and user code does not decide otherwise."""
    return (
        spec.shows_none
        and isinstance(spec.of, ReadSpec)
        and isinstance(spec.of.of, ReferencesSpec | OrderSpec)
    )
