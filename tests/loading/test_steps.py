"""Steps over ranks: what is in them, the same on all, whatever is drawn or told when."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from energy_data.loading.steps.counts import counts_of
from energy_data.order.step_rules import DocsPerStep
from loading.runs import loaders_of, run
from loading.steps import STREAM, known_stream, numbered, ranks_of, stream, take_steps


def naive(spec, ranks, target, steps):
    """The original's loop over the micro-batches of the run: rounds until the target is reached."""
    batches = run(loaders_of(spec, 1, lanes=12), rounds=600)
    found, g = [], 0
    rule = DocsPerStep(target=1)
    while len(found) < steps:
        rounds, total = [], 0
        while total < target:
            a_round = [batches[number] for number in range(g, g + ranks)]
            total += sum(counts_of(batch, rule).documents for batch in a_round)
            rounds.append([tuple(batch["__key__"]) for batch in a_round])
            g += ranks
        found.append((total, rounds))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("lookahead", [1, 2, 7])
def test_steps_are_those_of_the_naive_loop_for_every_lookahead(ranks, lookahead):
    expected = naive(STREAM, ranks, 20, 6)
    loaders = ranks_of(STREAM, ranks, target=20, lookahead=lookahead)
    for rank, steps in enumerate(take_steps(loaders, 6)):
        for (total, rounds), given in zip(expected, steps, strict=True):
            assert [keys for keys, _ in given] == [a_round[rank] for a_round in rounds]
            assert {step.step_docs for _, step in given} == {total}


def test_every_micro_batch_says_where_in_the_step_it_is_and_what_the_step_holds():
    given = take_steps(ranks_of(STREAM, 2, target=20), 5)
    seen = 0
    for both in zip(*given, strict=True):
        for steps in both:
            said = [step for _, step in steps]
            assert [step.index for step in said] == list(range(len(said)))
            assert [step.is_first for step in said] == [True] + [False] * (len(said) - 1)
            assert [step.is_last for step in said] == [False] * (len(said) - 1) + [True]
            assert {step.num_microbatches for step in said} == {len(said)}
            assert {step.docs_seen for step in said} == {seen}
            assert {(step.dp_size, step.is_short, step.is_empty) for step in said} == {
                (2, False, False)
            }
        every = [step for steps in both for _, step in steps]
        docs = sum(step.docs for step in every)
        assert {step.step_docs for step in every} == {docs}
        assert {step.step_samples for step in every} == {3 * len(every)}
        assert {step.step_tokens for step in every} == {10 * docs + len(every)}
        assert {step.step_labels for step in every} == {3 * len(every)}
        assert {step.step_groups for step in every} == {None}
        seen += docs
        assert docs >= 20


def test_counts_that_are_known_beforehand_need_no_message_and_give_the_same_steps():
    stores = HashStore(), HashStore()
    asked = take_steps(ranks_of(stream(numbered), 3, store=stores[0], target=20), 4)
    assert take_steps(ranks_of(known_stream(), 3, store=stores[1], target=20), 4) == asked
    assert [store.num_keys() > 0 for store in stores] == [True, False]
