"""Which rounds make a step: the pure rule."""

from __future__ import annotations

import random

import pytest

from energy_data.errors import DataError
from energy_data.loading.steps import planner
from energy_data.loading.steps.counts import Counts
from energy_data.loading.steps.planner import Round, StepPlan, add_round
from energy_data.order.step_rules import DocsPerStep


def plans_of(counts, rules):
    """Yield the steps of one pass, from the counts of all ranks, round by round; None: it ended."""
    step = StepPlan(0)
    for row in counts:
        known = [count for count in row if count is not None]
        a_round = Round(Counts(sum(known)), items=len(known), ended=len(row) - len(known))
        step, outcome = add_round(step, a_round, rules, len(row))
        if outcome == "end":
            break
        if outcome == "full":
            yield step
            step = StepPlan(step.step + 1)
    if step.microbatches and rules.last == "short":
        yield step


def plan(counts, target, **facts):
    """How many rounds, how much and how many micro-batches each step has."""
    rows = [[count] if isinstance(count, int) else count for count in counts]
    steps = plans_of(rows, DocsPerStep(target=target, **facts))
    return [(step.rounds, step.amount, step.microbatches) for step in steps]


@pytest.mark.parametrize(
    ("counts", "target", "first"),
    [  # the cases of the original
        ([2, 2, 2, 2, 2], 6, (3, 6, 3)),
        ([3, 3, 3], 5, (2, 6, 2)),
        ([4, 4], 5, (2, 8, 2)),
        ([2, 2, 2, 2], 4, (2, 4, 2)),
    ],
)
def test_the_cases_of_the_original(counts, target, first):
    assert plan(counts, target)[0] == first


def test_the_round_that_crosses_the_target_is_included_and_nothing_carried():
    assert plan([4, 4, 4, 4], 5) == [(2, 8, 2), (2, 8, 2)]
    assert plan([9, 1, 9], 5) == [(1, 9, 1), (2, 10, 2)]
    assert plan([5, 2, 3], 5) == [(1, 5, 1), (2, 5, 2)]


def test_only_the_total_over_the_ranks_matters():
    ranks = zip([1, 1, 1, 1], [5, 0, 0, 0], strict=True)
    assert plan(ranks, 6)[0] == (1, 6, 1)


def test_a_rank_without_documents_waits_with_the_others():
    assert plan([[0, 3], [0, 3], [0, 3]], 6)[0] == (2, 6, 2)


def test_rounds_without_any_document_are_an_error_after_a_while(monkeypatch):
    monkeypatch.setattr(planner, "MAX_EMPTY_ROUNDS", 3)
    assert plan([0, 0, 5], 5) == [(3, 5, 3)]
    with pytest.raises(DataError, match="3 rounds in a row held no documents on any rank; step 0"):
        plan([0, 0, 0, 5], 5)


def test_too_many_micro_batches_are_an_error():
    assert plan([1, 1, 1], 3, max_microbatches=3) == [(3, 3, 3)]
    with pytest.raises(
        DataError, match="step 0 needs more than 2 micro-batches per rank, 2 hold 2"
    ):
        plan([1, 1, 1], 3, max_microbatches=2)


def test_the_target_may_change_with_the_step():
    assert plan([1] * 12, [[0, 2], [2, 4]]) == [(2, 2, 2), (2, 2, 2), (4, 4, 4), (4, 4, 4)]


ENDING = [[3, 3], [3, 3], [3, None], [None, None]]


@pytest.mark.parametrize(
    ("on_rank_end", "last", "steps"),
    [
        ("stop", "drop", []),
        ("stop", "short", [(2, 12, 2)]),
        ("pad", "drop", [(3, 15, 3)]),
        ("pad", "short", [(3, 15, 3)]),
    ],
)
def test_a_pass_ends_with_the_first_rank_or_the_last(on_rank_end, last, steps):
    assert plan(ENDING, 14, on_rank_end=on_rank_end, last=last) == steps


def test_a_short_step_says_so():
    (step,) = plans_of([[3], [3], [3]], DocsPerStep(target=10, last="short"))
    assert (step.rounds, step.amount, step.microbatches, step.is_short) == (3, 9, 3, True)


def test_a_stage_that_begins_inside_a_step_closes_it():
    rules = DocsPerStep(target=10)
    step, _ = add_round(StepPlan(0), Round(Counts(6)), rules, 1)
    after, found = add_round(step, Round(Counts(6), new_stage=True), rules, 1)
    assert (after.rounds, found) == (1, "before")
    assert add_round(StepPlan(0), Round(Counts(6), new_stage=True), rules, 1)[1] == "open"


def naive(counts, target):
    """The original's loop, one round after another."""
    steps, at = [], 0
    while True:
        total = rounds = 0
        while total < target:
            if at == len(counts):
                return steps
            total, rounds, at = total + sum(counts[at]), rounds + 1, at + 1
        steps.append((rounds, total, rounds))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_steps_are_those_of_the_naive_loop(ranks, monkeypatch):
    monkeypatch.setattr(planner, "MAX_EMPTY_ROUNDS", 1000)
    draw = random.Random(ranks)
    for _ in range(1000):
        rounds, most = draw.randrange(60), draw.choice([1, 4, 9])
        counts = [[draw.randint(0, most) for _ in range(ranks)] for _ in range(rounds)]
        target = draw.randint(1, 40)
        assert plan(counts, target) == naive(counts, target)
