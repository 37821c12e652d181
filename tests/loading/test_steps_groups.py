"""Exact steps over batches by group, and over packs that the task encoder chooses."""

from __future__ import annotations

import json

import pytest

from energy_data.errors import SkipSample, SpecError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.select_pack import SelectPackSpec
from loading.steps import numbered, ranks_of, stream, take, take_steps
from loading.test_steps_exact import keys_of, packs


def by_remainder(sample):
    return sample["number"] % 4, None


def grouped(of=None, collate=numbered):
    return GroupSpec(of=of or stream().of, batch_size=4, criterion=by_remainder, collate=collate)


def groups_of(steps):
    """Of each micro-batch that is not empty: the groups in it."""
    all_keys = [keys for mine in steps for one in mine for keys, _ in one if keys]
    return [{int(key.split("/")[1]) % 4 for key in keys} for keys in all_keys]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_groups_are_cut_where_a_share_is_full_and_what_is_over_waits(ranks):
    rules = {"mode": "exact", "target": 13, "shares": 4}
    steps = take_steps(ranks_of(grouped(), ranks, **rules), 30)
    assert [len(keys) for keys in keys_of(steps)] == [13] * 30
    assert {len(groups) for groups in groups_of(steps)} == {1}
    every = [key for keys in keys_of(steps) for key in keys]
    assert len(set(every)) == len(every)
    assert keys_of(steps) == keys_of(take_steps(ranks_of(grouped(), 4, **rules), 30))


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_step_may_hold_so_many_groups_and_all_of_each(ranks):
    rules = {"mode": "exact", "target": 7, "count": "groups", "shares": 3}
    steps = take_steps(ranks_of(grouped(), ranks, **rules), 12)
    said = [step for mine in steps for one in mine for _, step in one]
    assert {step.step_groups for step in said} == {7}
    assert [len(keys) for keys in keys_of(steps)] == [28] * 12
    assert {len(groups) for groups in groups_of(steps)} == {1}


def test_groups_need_something_that_groups():
    with pytest.raises(SpecError, match="nothing groups samples here"):
        ranks_of(stream(), mode="exact", count="groups")
    with pytest.raises(SpecError, match="the pack of this tree closes packs by itself"):
        ranks_of(grouped(packs().of), mode="exact")


def select_fives(samples):
    chosen = sorted(samples, key=lambda sample: sample["number"])
    return [chosen[at : at + 5] for at in range(0, len(chosen), 5)]


def selected(encode=None):
    packed = SelectPackSpec(
        of=stream().of, select=select_fives, pack=packed_keys, buffer_size=17, encode=encode
    )
    return BatchSpec(of=packed, batch_size=2, collate=two_packs)


def packed_keys(samples):
    return {"__key__": [sample["__key__"] for sample in samples]}


def two_packs(batch):
    keys = [key for pack in batch for key in pack["__key__"]]
    return {"__key__": keys, "__docs__": [pack["__docs__"] for pack in batch]}


def without_sevens(sample):
    if sample["number"] % 7 == 0:
        raise SkipSample
    return sample


@pytest.mark.parametrize("encode", [None, without_sevens])
@pytest.mark.parametrize("ranks", [1, 2])
def test_lists_selected_to_be_packed_are_cut_where_a_share_is_full(ranks, encode):
    rules = {"mode": "exact", "target": 23, "shares": 2}
    steps = take_steps(ranks_of(selected(encode), ranks, **rules), 20)
    assert [len(keys) for keys in keys_of(steps)] == [23] * 20
    every = [key for keys in keys_of(steps) for key in keys]
    assert len(set(every)) == len(every)


@pytest.mark.parametrize(
    ("spec", "rules"),
    [
        (grouped(), {"target": 13}),
        (grouped(), {"target": 3, "count": "groups"}),
        (selected(without_sevens), {"target": 23}),
    ],
)
def test_groups_and_selected_lists_cut_to_size_go_on_identically_from_every_micro_batch(
    spec, rules
):
    expected = take(ranks_of(spec, 2, mode="exact", **rules), 26)
    for count in range(20):
        loaders = ranks_of(spec, 2, mode="exact", **rules)
        take(loaders, count)
        saved = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
        again = ranks_of(spec, 2, mode="exact", **rules)
        for loader in again:
            loader.restore_state_global(saved)
        assert take(again, 6) == [mine[count : count + 6] for mine in expected]
