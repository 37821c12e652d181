"""Steps of exactly so many documents."""

from __future__ import annotations

import json
from itertools import islice

import pytest
import torch
from attrs import evolve
from torch.distributed import HashStore

from energy_data.core.rng import sample_rng
from energy_data.core.user_call import ErrorPolicy
from energy_data.errors import (
    DataError,
    FatalSampleError,
    SkipSample,
    SpecError,
    StateMismatchError,
)
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.packing import Packing
from energy_data.tasks.collate import collate
from loading.steps import known_stream, numbered, ranks_of, stream, take, take_steps
from loading.test_steps_ends import one_pass


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


def test_what_does_not_divide_goes_to_the_first_ranks():
    steps = take_steps(ranks_of(stream(numbered), 4, mode="exact", target=10), 1)
    assert [sum(len(keys) for keys, _ in mine[0]) for mine in steps] == [3, 3, 2, 2]


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


def test_shares_that_were_left_out_are_those_of_the_ranks_that_began():
    loaders = ranks_of(stream(numbered), 4, mode="exact", target=18)
    before = keys_of(take_steps(loaders, 2))
    saved = [loader.state_dict() for loader in loaders]
    with pytest.raises(StateMismatchError, match=r"shares \['exact', 'documents', 4\], this run"):
        ranks_of(stream(numbered), 2, mode="exact", target=18)[0].restore_state_global(saved)
    others = ranks_of(stream(numbered), 2, mode="exact", target=18, shares=4)
    for loader in others:
        loader.restore_state_global(saved)
    expected = keys_of(take_steps(ranks_of(stream(numbered), 4, mode="exact", target=18), 4))
    assert before + keys_of(take_steps(others, 2)) == expected


def skipping(batch):
    if batch[0]["number"] % 3 == 0:
        raise SkipSample
    return numbered(batch)


def test_batches_left_out_are_replaced():
    steps = take_steps(ranks_of(stream(skipping), 2, mode="exact", target=13), 4)
    assert [len(keys) for keys in keys_of(steps)] == [13] * 4


def test_batches_that_are_all_left_out_are_an_error_and_not_a_hang(monkeypatch):
    def none(batch):
        raise SkipSample

    monkeypatch.setattr("energy_data.core.node.MAX_EMPTY_DRAWS", 30)
    (loader,) = ranks_of(stream(none), mode="exact")
    with pytest.raises(DataError, match="no item was returned in 30 draws in a row"):
        next(iter(loader))


def failing(batch):
    if batch[0]["number"] % 3 == 0:
        raise ValueError("a bad batch")
    return {**numbered(batch), "drawn": int(sample_rng().integers(1 << 30))}


@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_batches_that_fail_are_reported_and_replaced_also_after_a_restart(count):
    heard = []
    on_failure = ErrorPolicy(handler=lambda error, *_: heard.append(str(error)))
    spec = evolve(stream(failing), on_failure=on_failure)
    expected = take(ranks_of(spec, 2, mode="exact", target=13), 16)
    assert set(heard) == {"a bad batch"}
    loaders = ranks_of(spec, 2, mode="exact", target=13)
    take(loaders, count)
    saved = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
    again = ranks_of(spec, 2, mode="exact", target=13)
    for loader in again:
        loader.restore_state_global(saved)
    assert take(again, 8) == [mine[count : count + 8] for mine in expected]


def test_batches_of_one_share_draw_numbers_of_their_own():
    def drawing(batch):
        return {**numbered(batch), "drawn": int(sample_rng().integers(1 << 60))}

    (loader,) = ranks_of(stream(drawing), mode="exact", target=12)
    assert len({batch["drawn"] for batch in islice(loader, 8)}) == 8


def test_batches_that_fail_too_often_end_the_run():
    def bad(batch):
        raise ValueError("a bad batch")

    on_failure = ErrorPolicy(handler=lambda *_: None, tolerance=4)
    (loader,) = ranks_of(evolve(stream(bad), on_failure=on_failure), mode="exact")
    with pytest.raises(FatalSampleError, match="bad: it failed 4 times in a row"):
        next(iter(loader))


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_plain_batches_cut_to_size_need_no_message(batch_size):
    rules = {"mode": "exact", "target": 14}
    store = HashStore()
    asked = take_steps(ranks_of(stream(numbered, batch_size), 3, **rules), 4)
    known = take_steps(ranks_of(known_stream(batch_size), 3, store=store, **rules), 4)
    assert known == asked
    assert store.num_keys() == 0


def sizes(sample):
    return {"tokens": 1 + sample["number"] % 7}


def packed(documents):
    return {
        "__key__": [sample["__key__"] for sample in documents],
        "tokens": sum(sizes(sample)["tokens"] for sample in documents),
    }


def one_pack(batch):
    (pack,) = batch
    return pack


def packs(**facts):
    rule = Packing(limits={"tokens": 20}, lengths=sizes, pack=packed, **facts)
    read = stream().of
    return BatchSpec(of=PackSpec(of=read, packing=rule), batch_size=1, collate=one_pack)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_packs_are_closed_where_a_share_is_full(ranks):
    rules = {"mode": "exact", "target": 50, "shares": 4}
    steps = take_steps(ranks_of(packs(), ranks, **rules), 6)
    assert [len(keys) for keys in keys_of(steps)] == [50] * 6
    assert keys_of(steps) == keys_of(take_steps(ranks_of(packs(), 4, **rules), 6))
    said = [step for mine in steps for one in mine for _, step in one]
    assert {(step.step_docs, step.dp_size) for step in said} == {(50, ranks)}
    # 50 documents of 4 tokens each, on average, in packs of 20: only the last of a share is open.
    assert all(step.num_microbatches <= (4 // ranks) * 4 for step in said)
    assert all(step.step_tokens >= 100 for step in said)


def test_packs_cut_to_size_go_on_identically_from_every_micro_batch():
    rules = {"mode": "exact", "target": [[0, 30], [2, 41]]}
    expected = take(ranks_of(packs(), 2, **rules), 30)
    for count in range(20):
        loaders = ranks_of(packs(), 2, **rules)
        take(loaders, count)
        again = ranks_of(packs(), 2, **rules)
        for loader in again:
            loader.restore_state_global([one.state_dict() for one in loaders])
        assert take(again, 6) == [mine[count : count + 6] for mine in expected]


@pytest.mark.parametrize("fragments", ["last", "each"])
def test_documents_split_over_packs_count_once_unless_asked(fragments):
    def cut(sample, start, stop):
        return {**sample, "part": stop - start}

    def lengths(sample):
        return {"tokens": sample.get("part", 1 + sample["number"] % 30)}

    rule = Packing(
        limits={"tokens": 10},
        lengths=lengths,
        cut=cut,
        over_long="split",
        fragments=fragments,
        pack=lambda parts: {"__key__": [part["__key__"] for part in parts]},
    )
    spec = BatchSpec(of=PackSpec(of=stream().of, packing=rule), batch_size=1, collate=one_pack)
    steps = take_steps(ranks_of(spec, 2, mode="exact", target=40), 3)
    assert {step.step_docs for mine in steps for one in mine for _, step in one} == {40}
    parts = [len(keys) for keys in keys_of(steps)]
    assert (parts == [40] * 3) == (fragments == "each")


def test_padding_is_counted_neither_as_tokens_nor_as_documents():
    def tokens(sample):
        return {"__key__": sample["__key__"], "tokens": torch.ones(7)}

    read = EncodeSpec(of=stream().of, encode=tokens)
    packed = PackSpec(of=read, packing=Packing(limits={"tokens": 20}))  # two documents and padding
    spec = BatchSpec(of=packed, batch_size=3, collate=collate)
    (loader,) = ranks_of(spec, target=11)
    batches = list(islice(loader, 2))
    assert [batch["tokens"].shape for batch in batches] == [(3, 20)] * 2
    step = batches[1]["__step__"]
    assert (step.docs, step.step_docs, step.step_samples, step.step_tokens) == (6, 12, 6, 84)
    assert step.is_last


def test_packs_that_decide_by_themselves_are_refused():
    spec = packs()
    filtered = evolve(spec, of=FilterSpec(of=spec.of, predicate=bool))
    with pytest.raises(SpecError, match="the pack of this tree closes packs by itself"):
        ranks_of(filtered, mode="exact")


@pytest.mark.parametrize("ranks", [4, 5])
def test_ranks_that_cannot_share_the_step_are_refused(ranks):
    with pytest.raises(SpecError, match=f"{ranks} ranks cannot divide 6 shares"):
        ranks_of(stream(), ranks, mode="exact", shares=6, lanes=60)


def test_a_pass_that_ends_has_no_exact_steps():
    with pytest.raises(SpecError, match="cuts the batches of an endless training stream"):
        ranks_of(one_pass(9), mode="exact")


def stacked(packs):
    return {"tokens": torch.stack([pack["tokens"] for pack in packs])}


def end_to_end(packs):
    return {"tokens": torch.cat([pack["tokens"] for pack in packs])}


@pytest.mark.parametrize("collate", [stacked, end_to_end])
@pytest.mark.parametrize("ranks", [1, 2])
def test_packs_whose_batch_does_not_say_what_is_in_it_are_an_error(collate, ranks):
    read = EncodeSpec(of=stream().of, encode=lambda sample: {"tokens": torch.ones(7)})
    packed = PackSpec(of=read, packing=Packing(limits={"tokens": 20}))
    loaders = ranks_of(BatchSpec(of=packed, batch_size=2, collate=collate), ranks, mode="exact")
    with pytest.raises(DataError, match=r"cut to exactly 10 documents, but its micro-"):
        take(loaders, 1)
