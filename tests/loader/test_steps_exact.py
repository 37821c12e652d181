"""Steps of exactly so many documents."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from energy_data.errors import SkipSample, SpecError
from energy_data.nodes.encode import EncodeSpec
from energy_data.tasks.encoder import DefaultTaskEncoder
from loader.steps import Hub, numbered, ranks_of, stream, take, take_steps
from loader.test_steps_ends import one_pass


def keys_of(steps):
    """The samples of each step, over the ranks."""
    return [
        sorted(key for micro_batches in mine for keys, _ in micro_batches for key in keys)
        for mine in zip(*steps, strict=True)
    ]


@pytest.mark.parametrize("target", [1, 3, 10, 24, 37])
def test_every_step_holds_exactly_the_target(target):
    steps = take_steps(ranks_of(stream(numbered), 4, mode="exact", target=target), 5)
    assert [len(keys) for keys in keys_of(steps)] == [target] * 5
    for mine in steps:
        for number, micro_batches in enumerate(mine):
            said = [step for _, step in micro_batches]
            assert {step.step_docs for step in said} == {target}
            assert {step.docs_seen for step in said} == {number * target}
            assert [step.is_empty for step in said] == [not keys for keys, _ in micro_batches]
            assert sum(step.docs for step in said) in (target // 4, target // 4 + 1)


def test_ranks_with_fewer_micro_batches_get_empty_ones():
    steps = take_steps(ranks_of(stream(numbered), 4, mode="exact", target=14), 2)
    sizes = [[len(keys) for keys, _ in mine[0]] for mine in steps]
    assert sizes == [[3, 1], [3, 1], [3, 0], [3, 0]]


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_with_the_same_shares_steps_hold_the_same_samples_on_any_number_of_ranks(ranks):
    rules = {"mode": "exact", "target": 20, "shares": 6}
    expected = keys_of(take_steps(ranks_of(stream(numbered), 6, **rules), 6))
    assert keys_of(take_steps(ranks_of(stream(numbered), ranks, **rules), 6)) == expected


@pytest.mark.parametrize("lookahead", [1, 4])
def test_saved_at_every_micro_batch_exact_steps_go_on_identically(lookahead):
    rules = {"mode": "exact", "target": [[0, 14], [2, 25]], "lookahead": lookahead}
    expected = take(ranks_of(stream(numbered), 3, **rules), 24)
    for count in range(16):
        loaders = ranks_of(stream(numbered), 3, **rules)
        take(loaders, count)
        saved = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
        again = ranks_of(stream(numbered), 3, **rules)
        for loader in again:
            loader.restore_state_global(saved)
        assert take(again, 8) == [mine[count : count + 8] for mine in expected]


def test_between_exact_steps_another_number_of_ranks_goes_on():
    rules = {"mode": "exact", "target": 18, "shares": 6}
    expected = keys_of(take_steps(ranks_of(stream(numbered), 1, **rules), 7))
    loaders = ranks_of(stream(numbered), 6, **rules)
    before = keys_of(take_steps(loaders, 3))
    others = ranks_of(stream(numbered), 2, **rules)
    for loader in others:
        loader.restore_state_global([one.state_dict() for one in loaders])
    assert before + keys_of(take_steps(others, 4)) == expected


def skipping(batch):
    if batch[0]["number"] % 3 == 0:
        raise SkipSample
    return numbered(batch)


def test_batches_left_out_are_replaced():
    steps = take_steps(ranks_of(stream(skipping), 2, mode="exact", target=13), 4)
    assert [len(keys) for keys in keys_of(steps)] == [13] * 4


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_plain_batches_cut_to_size_need_no_message(batch_size):
    rules = {"mode": "exact", "target": 14}
    hub = Hub(3)
    spec = stream(numbered, batch_size)
    asked = take_steps(ranks_of(spec, 3, **rules), 4)
    # The default encoder has no user code, so what is in its batches is known.
    spec = evolve(spec, of=EncodeSpec(of=spec.of), collate=DefaultTaskEncoder().collate)
    known = take_steps(ranks_of(spec, 3, hub=hub, **rules), 4)
    assert known == asked
    assert hub.tables == []


@pytest.mark.parametrize("ranks", [4, 5])
def test_ranks_that_cannot_share_the_step_are_refused(ranks):
    with pytest.raises(SpecError, match=f"{ranks} ranks cannot deal out 6 shares"):
        ranks_of(stream(), ranks, mode="exact", shares=6, lanes=60)


def test_a_pass_that_ends_has_no_exact_steps():
    with pytest.raises(SpecError, match="cuts the batches of an endless training stream"):
        ranks_of(one_pass(9), mode="exact")
