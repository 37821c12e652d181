"""Ends of passes, virtual epochs, stages, and what goes wrong."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from trees import leaf

from energy_data.errors import DataError, SkipSample, SpecError
from energy_data.loading.steps.exchange import StepsError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import Shuffle
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from loading.runs import in_order, loader_of
from loading.steps import STREAM, numbered, ranks_of, stream, take, together


def one_pass(size, batch_size=2, collate=numbered):
    read = ReadSpec(of=ReferencesSpec(of=leaf("x", size), shuffle=Shuffle(), deal=batch_size))
    return BatchSpec(of=read, batch_size=batch_size, collate=collate, aligned=True)


def steps_of(given):
    """Of each rank: the micro-batches of each step, and whether it is short."""
    found = []
    for micro_batches in given:
        steps: dict = {}
        for keys, step in micro_batches:
            steps.setdefault((step.step, step.is_short), []).append(keys)
        found.append([(batches, short) for (_, short), batches in steps.items()])
    return found


def keys_of(given):
    return sorted(key for mine in given for keys, _ in mine for key in keys)


def joined(parts):
    """Of each rank: its micro-batches of all parts."""
    return [[each for part in parts for each in part[rank]] for rank in range(len(parts[0]))]


def count_until_error(loader):
    """How many batches a loader gives before it raises ZeroDivisionError."""
    count = 0
    try:
        for _ in loader:
            count += 1
    except ZeroDivisionError:
        return count
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("lookahead", [1, 3])
@pytest.mark.parametrize(
    ("on_rank_end", "last", "micro_batches", "samples"),
    [  # rank 0 of 3 has one micro-batch more; a step is two rounds
        ("stop", "drop", 2, 12),
        ("stop", "short", 3, 18),
        ("pad", "drop", 4, 19),
        ("pad", "short", 4, 19),
    ],
)
def test_a_pass_ends_on_all_ranks_together(lookahead, on_rank_end, last, micro_batches, samples):
    rules = {"target": 12 if on_rank_end == "stop" else 7, "lookahead": lookahead}
    loaders = ranks_of(one_pass(19), 3, on_rank_end=on_rank_end, last=last, **rules)
    for _ in range(2):  # the second pass as the first
        given = take(loaders)
        assert [len(mine) for mine in given] == [micro_batches] * 3
        assert len(keys_of(given)) == samples
        assert len(set(keys_of(given))) == samples
        empty = [step.is_empty for mine in given for _, step in mine]
        assert sum(empty) == 3 * micro_batches - (samples + 1) // 2
        short = on_rank_end == "stop" and last == "short"
        assert sum(step.is_short for _, step in given[0]) == short


@pytest.mark.parametrize(("on_rank_end", "rounds"), [("stop", 2), ("pad", 3)])
def test_rounds_of_shares_are_the_same_on_any_number_of_ranks_to_the_end_of_a_pass(
    on_rank_end, rounds
):
    rules = {"target": 8, "shares": 4, "last": "short", "on_rank_end": on_rank_end}
    for ranks in (1, 2, 4):
        loaders = ranks_of(one_pass(22), ranks, **rules)
        for _ in range(2):  # the second pass as the first
            given = take(loaders)
            assert [len(mine) for mine in given] == [rounds * 4 // ranks] * ranks
            assert len(keys_of(given)) == len(set(keys_of(given))) == min(8 * rounds, 22)
            steps = [[step.step_docs for _, step in mine] for mine in given]
            assert set(steps[0]) == ({8} if on_rank_end == "stop" else {8, 6})


@pytest.mark.parametrize("target", [16, 50])
def test_saved_anywhere_around_the_end_of_a_pass_it_goes_on_identically(target):
    spec, rules = one_pass(20), {"target": target, "last": "short"}

    def walk(loaders, count):
        """Micro-batches of both ranks in one list, None where a pass ends."""

        def work(loader):
            found, iterator = [], iter(loader)
            while len(found) < count:
                batch = next(iterator, None)
                iterator = iterator if batch else iter(loader)
                found.append(batch and (tuple(batch["__key__"]), batch["__step__"]))
            return found

        return together(loaders, work)

    expected = walk(ranks_of(spec, 2, **rules), 40)
    assert sum(each is None for each in expected[0]) >= 3
    for count in range(26):
        loaders = ranks_of(spec, 2, **rules)
        walk(loaders, count)
        again = ranks_of(spec, 2, **rules)
        for loader in again:
            loader.restore_state_global([one.state_dict() for one in loaders])
        assert walk(again, 12) == [mine[count : count + 12] for mine in expected], count


def test_a_virtual_epoch_ends_with_the_step_that_reaches_it():
    loaders = ranks_of(STREAM, 2, target=25, facts={"virtual_epoch_length": 10})
    whole = take(ranks_of(STREAM, 2, target=25), 60)[0]
    begin = 0
    for _ in range(3):
        (given, _) = take(loaders)
        assert given == whole[begin : begin + len(given)]
        assert given[-1][1].is_last
        assert len(given) - given[-1][1].num_microbatches < 10 <= len(given)
        begin += len(given)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_virtual_epoch_of_exact_steps_counts_their_micro_batches_also_after_a_restart(ranks):
    facts = {"virtual_epoch_length": 10}
    rules = {"mode": "exact", "target": 24, "shares": 4}
    whole = take(ranks_of(stream(numbered), ranks, **rules), 40)

    def epochs_after(count):
        """The lengths of the epochs of a rank, and what it was given."""
        loaders = ranks_of(stream(numbered), ranks, facts=facts, **rules)
        take(loaders, count)
        again = ranks_of(stream(numbered), ranks, facts=facts, **rules)
        for loader in again:
            loader.restore_state_global([one.state_dict() for one in loaders])
        epochs = [take(again)[0] for _ in range(2)]
        assert epochs[0] + epochs[1] == whole[0][count : count + sum(map(len, epochs))]
        return [len(given) for given in epochs]

    step = 8 // ranks
    length = -(-10 // step) * step
    for count in range(10):
        assert epochs_after(count) == [length - count, length]


def staged(collate, end=None):
    stages = [("a", 0, 12), ("b", 12, end)]
    return StagedSpec(
        stages=tuple(
            Stage(name=name, of=stream(collate), begin=begin, end=end)
            for name, begin, end in stages
        )
    )


def test_a_stage_that_begins_inside_a_step_closes_it_short():
    given = take(ranks_of(staged(numbered), 2, target=21), 20)[0]
    lengths: dict = {}
    for _, step in given:
        lengths[step.step] = step.num_microbatches, step.is_short
    assert list(lengths.values())[:3] == [(4, False), (2, True), (4, False)]


@pytest.mark.parametrize("last", ["drop", "short"])
def test_a_run_that_has_ended_goes_on_when_its_last_stage_becomes_longer(last):
    rules = {"target": 21, "last": last}
    loaders = ranks_of(staged(numbered, end=26), 2, **rules)
    given = take(loaders)
    assert {len(mine) for mine in given} == {10 if last == "drop" else 13}
    assert take(loaders) == [[], []]
    saved = [loader.state_dict() for loader in loaders]
    longer = ranks_of(staged(numbered, end=60), 2, **rules)
    for loader in longer:
        loader.restore_state_global(saved)
    rest = take(longer)
    whole = take(ranks_of(staged(numbered, end=60), 2, **rules))
    keys = [[keys for keys, _ in mine] for mine in joined([given, rest])]
    expected = [[keys for keys, _ in mine] for mine in whole]
    assert [mine[:28] for mine in keys] == [mine[:28] for mine in expected]
    assert rest[0][0][1].step == given[0][-1][1].step + 1


def failing(batch):
    if any(sample["number"] == 77 for sample in batch):
        raise ZeroDivisionError("a sample that cannot be")
    return numbered(batch)


def skipping(batch):
    if sum(sample["number"] for sample in batch) % 4 == 0:
        raise SkipSample
    return numbered(batch)


@pytest.mark.parametrize("lookahead", [1, 4])
def test_a_rank_that_fails_tells_the_others(lookahead):
    loaders = ranks_of(stream(failing, size=100), 3, target=30, lookahead=lookahead)

    def work(loader):
        try:
            for _ in islice(loader, 200):
                pass
        except Exception as error:  # noqa: BLE001 - looked at below
            return type(error), str(error)
        return None

    found = together(loaders, work)
    own = [error for error in found if error[0] is ZeroDivisionError]
    told = [error for error in found if error[0] is StepsError]
    assert len(own) >= 1
    assert len(own) + len(told) == 3
    assert all("has failed: ZeroDivisionError: a sample that cannot be" in text for _, text in told)


def test_alone_an_error_comes_when_its_micro_batch_is_due_and_may_be_tried_again():
    spec = stream(failing, size=100)
    good = count_until_error(loader_of(spec, lanes=12))
    (loader,) = ranks_of(spec, target=6, lookahead=4)
    assert good - 2 < count_until_error(loader) <= good
    assert count_until_error(loader) == 0


def test_a_micro_batch_that_is_left_out_is_an_empty_one_if_others_have_one():
    spec = BatchSpec(of=one_pass(40).of, batch_size=2, collate=skipping, aligned=True)
    expected = in_order([loader_of(spec, lanes=12)])
    loaders = ranks_of(spec, 2, target=8, last="short")
    given = take(loaders)
    assert keys_of(given) == sorted(key for batch in expected for key in batch["__key__"])
    assert len(given[0]) == len(given[1])
    assert sum(step.is_empty for mine in given for _, step in mine) == 2 * len(given[0]) - len(
        expected
    )
    alone = take(ranks_of(spec, 1, target=8, last="short"))[0]
    assert [keys for keys, _ in alone] == [tuple(batch["__key__"]) for batch in expected]


def test_nothing_at_all_is_an_error():
    def nothing(batch):
        return {**numbered(batch), "__docs__": 0}

    with pytest.raises(DataError, match="16 rounds in a row held no documents on any rank"):
        take(ranks_of(stream(nothing), 2), 1)


def test_empty_micro_batches_have_the_form_of_full_ones():
    def tensors(batch):
        numbers = torch.tensor([[sample["number"]] * 3 for sample in batch])
        return {"__key__": [sample["__key__"] for sample in batch], "x": numbers, "__docs__": 2}

    loaders = ranks_of(one_pass(18, collate=tensors), 2, target=8, on_rank_end="pad", last="short")
    (_, batches) = together(loaders, list)
    empty = [batch for batch in batches if batch["__step__"].is_empty]
    assert [(batch["x"].shape, batch["__key__"]) for batch in empty] == [((0, 3), [])]
    assert empty[0]["__docs__"] == 0


@pytest.mark.parametrize("facts", [{"from_start": True}, {"even_batches": "pad"}])
def test_validation_and_evened_passes_have_no_steps(facts):
    with pytest.raises(SpecError, match="docs_per_step: it does not go with"):
        ranks_of(one_pass(9), facts=facts)


def test_batches_that_take_no_fields_are_described_by_the_loader():
    (loader,) = ranks_of(stream(tuple), target=5)
    batch = next(iter(loader))
    assert isinstance(batch, tuple)
    assert (loader.last_step.index, loader.last_step.num_microbatches) == (0, 2)
