"""Which rounds make a step: a pure function of what is in them, over all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from energy_data.errors import DataError
from energy_data.steps.rules import DocsPerStep


class Round(NamedTuple):
    """What the ranks together know of a round."""

    amount: int  # of what the target counts
    items: int = 1  # ranks that have a micro-batch in it
    ended: int = 0  # ranks for which the pass is over
    new_stage: bool = False  # whether a stage begins in it
    microbatches: int = 1  # of the rank that has most of them


class Open(NamedTuple):
    """A step that is being filled."""

    step: int
    rounds: int = 0
    amount: int = 0
    empty_rounds: int = 0  # the last ones, that counted nothing
    microbatches: int = 0
    blank: tuple[int, ...] = ()  # rounds in which no rank has a micro-batch: they are not given


Outcome = Literal["open", "full", "before", "end"]
"""Of a round: the step takes it and goes on, or is full; or the step is closed before it, because
a stage begins; or the pass has ended before it."""


class Planned(NamedTuple):
    """A step whose rounds are known."""

    step: int
    rounds: int
    amount: int
    microbatches: int  # of each rank, empty ones among them
    is_short: bool
    blank: tuple[int, ...] = ()

    @classmethod
    def of(cls, filled: Open, rules: DocsPerStep) -> Planned:
        """Return the step with what is in it so far."""
        whole = -(-filled.microbatches // rules.multiple) * rules.multiple
        short = filled.amount < rules.target_of(filled.step)
        return cls(filled.step, filled.rounds, filled.amount, whole, short, filled.blank)


def advance(filled: Open, a_round: Round, rules: DocsPerStep, ranks: int) -> tuple[Open, Outcome]:
    """Return the step after one more round, and what became of the round.

    Raises DataError where the step would need too many micro-batches, or nothing comes.
    """
    if a_round.ended and (rules.on_rank_end == "stop" or a_round.ended == ranks):
        return filled, "end"
    if not a_round.items:
        blank = (*filled.blank, filled.rounds)
        return filled._replace(rounds=filled.rounds + 1, blank=blank), "open"
    if a_round.new_stage and filled.microbatches and rules.at_boundary == "close":
        return filled, "before"
    filled = Open(
        filled.step,
        filled.rounds + 1,
        filled.amount + a_round.amount,
        0 if a_round.amount else filled.empty_rounds + 1,
        filled.microbatches + a_round.microbatches,
        filled.blank,
    )
    reached = rules.mode == "exact" or filled.amount >= rules.target_of(filled.step)
    full = reached and (rules.mode == "exact" or filled.microbatches % rules.multiple == 0)
    _check(filled, rules, full=full)
    return filled, "full" if full else "open"


def _check(filled: Open, rules: DocsPerStep, *, full: bool) -> None:
    target, most = rules.target_of(filled.step), rules.max_microbatches
    count = Planned.of(filled, rules).microbatches if full else filled.microbatches + 1
    if most is not None and count > most:
        raise DataError(
            f"docs_per_step: step {filled.step} needs more than {most} micro-batches per rank, "
            f"{filled.microbatches} hold {filled.amount} of {target} {rules.measure}. Raise "
            f"max_microbatches, or the batch size."
        )
    if rules.mode == "exact" and filled.amount != target:
        raise DataError(
            f"docs_per_step: step {filled.step} was cut to exactly {target} {rules.measure}, but "
            f"its micro-batches come to {filled.amount}. Let `batch` and `encode_batch` pass on "
            f"the `__docs__` of packs, or the `__key__` of samples, or put the number of documents "
            f"into each micro-batch as `__docs__`."
        )
    if not full and filled.empty_rounds >= rules.max_empty_rounds:
        raise DataError(
            f"docs_per_step: {filled.empty_rounds} rounds in a row held no {rules.measure} on any "
            f"rank; step {filled.step} holds {filled.amount} of {target}. Look at what leaves "
            f"samples out, or raise max_empty_rounds."
        )


def step_plan(
    counts: Iterable[Sequence[int | None]], rules: DocsPerStep, *, step: int = 0
) -> Iterator[Planned]:
    """Yield the steps of one pass, from the counts of all ranks, round by round.

    counts: [rounds, ranks]; None where a rank has ended. `last="carry"` leaves the rest to the
    next pass: it is not given.
    """
    filled = Open(step)
    for row in counts:
        known = [count for count in row if count is not None]
        a_round = Round(sum(known), items=len(known), ended=len(row) - len(known))
        filled, outcome = advance(filled, a_round, rules, len(row))
        if outcome == "end":
            break
        if outcome == "full":
            yield Planned.of(filled, rules)
            filled = Open(filled.step + 1)
    if filled.microbatches and rules.last == "short":
        yield Planned.of(filled, rules)
