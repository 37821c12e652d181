"""Groups, chosen packs and parts of samples: what they give, and what they do when they cannot."""

from __future__ import annotations

import json

import numpy as np
import pytest
from attrs import evolve
from trees import (
    batches,
    cut_packs,
    finite,
    groups,
    joined,
    leaf,
    lengths,
    not_fifth,
    packing,
    packs,
    pairs,
    parity,
    parts,
    samples,
    selected,
)

from energy_data.core.context import Context
from energy_data.core.cursor import restore, save
from energy_data.errors import DataError, SkipSample, SpecError, StateError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.select_pack import PackedSamplesOutput, PartialSample
from energy_data.testing import next_item, take

ONE_PASS = samples(leaf("x", 23), deal=4)


def taken(spec, count=10**6, **context):
    return take(spec.build(Context(**context)), count)


def number(key):
    return int(key.split("/")[1])


@pytest.mark.parametrize("lanes", [1, 3, 30])
def test_a_batch_has_samples_of_one_group_and_none_is_lost(lanes):
    given = [
        batch for lane in range(lanes) for batch in taken(groups(ONE_PASS), lane=lane, lanes=lanes)
    ]
    assert all(len({number(key) % 2 for key in batch}) == 1 for batch in given)
    assert sorted(key for batch in given for key in batch) == sorted(f"x/{n}" for n in range(23))


def test_a_group_may_have_a_batch_size_of_its_own():
    sizes = {
        number(batch[0]) % 2: len(batch) for batch in taken(groups(samples(leaf("x", 99))), 20)
    }
    assert sizes == {0: 2, 1: 3}


def test_groups_that_are_not_full_come_last_the_oldest_first_or_not_at_all():
    given = taken(groups(ONE_PASS))
    full = taken(groups(ONE_PASS, drop_last=True))
    assert given[: len(full)] == full
    assert len(given) - len(full) in (1, 2)


def test_keys_that_are_too_many_are_an_error():
    spec = groups(samples(leaf("x", 999)), max_pending=50)
    spec = type(spec)(
        of=spec.of,
        batch_size=2,
        collate=len,
        max_pending=50,
        criterion=lambda s: (s["number"], None),
    )
    with pytest.raises(DataError, match=r"samples are pending in .* groups"):
        taken(spec, 3)


@pytest.mark.parametrize("found", ["even", ("even",), ("even", "2"), None])
def test_a_criterion_returns_a_key_and_a_size(found):
    spec = groups(ONE_PASS)
    spec = type(spec)(of=spec.of, batch_size=2, collate=len, criterion=lambda _: found)
    with pytest.raises(DataError, match=r"got .* for dataset x, .* Return \(key, None\)"):
        taken(spec, 1)


def test_a_criterion_may_leave_samples_out():
    def criterion(sample):
        return parity(not_fifth(sample))

    spec = groups(ONE_PASS)
    node = type(spec)(of=spec.of, batch_size=2, collate=spec.collate, criterion=criterion).build(
        Context()
    )
    given = [number(key) for batch in take(node, 100) for key in batch]
    assert sorted(given) == [n for n in range(23) if n % 5 != 4]
    assert node.cursor.skipped == 4


def test_what_is_selected_together_is_packed_together_and_the_rest_is_counted():
    node = selected(ONE_PASS, 6).build(Context())
    given = [pack["__key__"] for pack in take(node, 100)]
    keys = [key for pack in given for key in pack]
    assert all(len(pack) <= 2 for pack in given)
    assert len(set(keys)) == len(keys) == 3 * 5 + 5
    assert node.cursor.skipped == 3


def test_what_is_left_at_the_end_is_selected_from_too():
    seen = []

    def everything(samples):
        seen.append(len(samples))
        return [samples]

    spec = selected(ONE_PASS, 10)
    spec = type(spec)(of=spec.of, select=everything, pack=spec.pack, buffer_size=10)
    taken(spec)
    assert seen == [10, 10, 3]


def test_selected_samples_are_encoded_when_they_are_packed():
    node = selected(ONE_PASS, 6, encode=not_fifth).build(Context())
    keys = [number(key) for pack in take(node, 100) for key in pack["__key__"]]
    assert all(key % 5 != 4 for key in keys)
    assert len(keys) + node.cursor.skipped == 23


def test_copies_of_samples_cannot_be_selected():
    spec = selected(ONE_PASS)
    spec = type(spec)(
        of=spec.of, select=lambda s: pairs([dict(one) for one in s]), pack=spec.pack, buffer_size=4
    )
    with pytest.raises(DataError, match="returned a dict that is not among its arguments"):
        taken(spec)


@pytest.mark.parametrize("buffer_size", [1, 4, 50])
def test_samples_that_are_cut_or_pushed_back_come_next_and_none_is_lost(buffer_size):
    node = cut_packs(ONE_PASS, buffer_size).build(Context())
    packs_made = [pack["__key__"] for pack in take(node, 100)]
    every = [lengths({"number": n})["tokens"] for n in range(23)]
    sizes = [sum(stop - start for _, start, stop in pack) for pack in packs_made]
    assert sum(sizes) == sum(every)
    assert all(size == 10 for size in sizes[:-1]) == (buffer_size > 1)
    ends: dict[str, int] = {}
    for key, start, stop in (piece for pack in packs_made for piece in pack):
        assert start == ends.get(key, 0)
        ends[key] = stop
    assert ends == {f"x/{n}": size for n, size in enumerate(every)}
    assert node.cursor.skipped == 0


def test_the_state_has_the_slices_of_what_is_pushed_back():
    node = cut_packs(ONE_PASS, 4).build(Context())
    take(node, 3)
    sliced = [ref[1 : 1 + ref[0]] for ref in node.cursor.pending if ref[0]]
    assert [len(one) for one in sliced] == [2]


def selecting(select, buffer_size=4):
    return evolve(selected(ONE_PASS, buffer_size), select=select)


def test_a_full_buffer_that_is_all_pushed_back_is_an_error():
    with pytest.raises(DataError, match="pushed back all 4 samples of a full buffer, and made no"):
        taken(selecting(lambda samples: PackedSamplesOutput([], samples)))


def test_what_is_pushed_back_without_a_pack_waits_for_more_and_is_skipped_at_the_end():
    def only_fours(samples):
        packs = [samples[:4]] if len(samples) == 4 else []
        return PackedSamplesOutput(packs, samples[len(packs) * 4 :])

    node = selecting(only_fours).build(Context())
    assert [len(pack["__key__"]) for pack in take(node, 100)] == [4] * 5
    assert node.cursor.skipped == 3


def test_a_part_of_another_sample_cannot_be_selected():
    with pytest.raises(DataError, match="returned a dict that is not among its arguments"):
        taken(selecting(lambda samples: [[PartialSample(dict(samples[0]), (0, 1))]]))


@pytest.mark.parametrize("wrong", [(0, -1), "ab", (0.5,), None, ()])
def test_a_slice_is_of_whole_numbers(wrong):
    with pytest.raises(DataError, match="slice must be a tuple of whole numbers >= 0"):
        PartialSample({}, wrong)


def test_parts_of_a_sample_have_random_numbers_of_their_own():
    sample = {"__restore_key__": ("x", 0, 7)}
    assert PartialSample(sample, (0, 4)).__restore_key__ == ("x", 0, 7, 0, 4)
    assert PartialSample(sample, np.array([4, 9])).__restore_key__ == ("x", 0, 7, 4, 9)


def test_a_generator_gives_all_parts_of_each_sample_in_order():
    spec = EncodeSpec(of=samples(leaf("x", 9), deal=9), encode=parts)
    given = [sample["__key__"] for sample in taken(spec)]
    order = [sample["__key__"] for sample in taken(spec.of)]
    assert given == [f"{key}.{part}" for key in order for part in range((number(key) + 1) % 4)]


def test_a_generator_is_resumed_not_run_again_for_each_part():
    runs = []

    def ten(sample):
        runs.append(sample["number"])
        yield from ({**sample, "part": part} for part in range(10))

    assert len(taken(EncodeSpec(of=samples(leaf("x", 9), deal=9), encode=ten))) == 90
    assert len(runs) == 9


def test_a_generator_that_skips_ends_its_sample():
    def until_two(sample):
        yield {**sample, "part": 0}
        if sample["number"] != 4:
            yield {**sample, "part": 1}
        raise SkipSample

    given = taken(EncodeSpec(of=ONE_PASS, encode=until_two))
    assert len(given) == 2 * 23 - 1


def test_a_generator_that_cannot_be_seen_is_an_error_that_says_what_to_do():
    spec = EncodeSpec(of=ONE_PASS, encode=lambda sample: parts(sample))
    with pytest.raises(SpecError, match='EncodeSpec\\(yields="several"\\)'):
        taken(spec)
    hidden = EncodeSpec(of=ONE_PASS, encode=lambda sample: parts(sample), yields="several")
    assert taken(hidden) == taken(EncodeSpec(of=ONE_PASS, encode=parts))


@pytest.mark.parametrize(
    ("make", "who"),
    [
        (groups, "group"),
        (selected, "select_pack"),
        (lambda of: EncodeSpec(of=of, encode=parts), "encode"),
        (lambda of: groups(EncodeSpec(of=of, encode=not_fifth)), "group"),
    ],
)
def test_only_what_can_be_made_again_can_be_kept_back(make, who):
    with pytest.raises(SpecError, match=f"{who}: .* 'batch' below it cannot replay its items"):
        make(finite(leaf("x", 5)))


def test_a_map_that_changes_its_mind_is_found_out_after_a_restore():
    calls = []

    def fickle(sample):
        calls.append(sample)
        if len(calls) > 40:
            raise SkipSample
        return sample

    spec = groups(EncodeSpec(of=samples(leaf("x", 99)), encode=fickle), 4)
    node = spec.build(Context())
    state = None
    while len(calls) <= 30:
        next_item(node)
        state = json.loads(json.dumps(save(node)))
    calls.extend([None] * 40)
    again = spec.build(Context())
    restore(again, state)
    with pytest.raises(DataError, match="now skipped"):
        next_item(again)


@pytest.mark.parametrize("kind", [packs, selected])
def test_packing_that_changes_its_mind_is_found_out_after_a_restore(kind):
    left_out = []

    def joined_or_left_out(documents):
        if left_out:
            raise SkipSample
        return joined(documents)

    made = kind(samples(leaf("x", 60)))
    if kind is packs:
        spec = groups(evolve(made, packing=evolve(made.packing, pack=joined_or_left_out)))
    else:
        spec = groups(evolve(made, pack=joined_or_left_out))
    node = spec.build(Context())
    while not node.cursor.pending:
        next_item(node)
    state, again = save(node), spec.build(Context())
    restore(again, json.loads(json.dumps(state)))
    left_out.append(True)
    with pytest.raises(DataError, match=r"the pack that begins with .*: it was made before"):
        next_item(again)


def test_a_pack_of_nothing_is_a_damaged_state():
    spec = groups(packs(samples(leaf("x", 60))))
    state = save(spec.build(Context()))
    state["root"]["pending"] = [[]]
    with pytest.raises(StateError, match="damaged: 'pending' of root has references to missing"):
        restore(spec.build(Context()), state)


def test_a_filter_that_lets_nothing_pass_is_an_error_and_not_a_hang(monkeypatch):
    monkeypatch.setattr("energy_data.core.node.MAX_EMPTY_DRAWS", 300)
    nothing = FilterSpec(of=samples(leaf("x", 5)), predicate=lambda _: False)
    for spec in (groups(nothing), selected(nothing), batches(EncodeSpec(of=nothing, encode=parts))):
        with pytest.raises(DataError, match="no item was returned"):
            taken(spec, 1)


@pytest.mark.parametrize("kind", [groups, packs, selected, batches])
def test_a_filter_that_lets_nothing_pass_is_reported_soon_with_large_buffers_too(kind, monkeypatch):
    monkeypatch.setattr("energy_data.core.node.MAX_EMPTY_ITEMS", 3_000)
    seen: list = []
    nothing = FilterSpec(of=samples(leaf("x", 500)), predicate=seen.append)
    with pytest.raises(DataError, match="in 7 draws in a row, each of up to 400 items"):
        taken(kind(nothing, 400), 1)
    assert len(seen) <= 8 * 400 + 400


def test_a_blend_of_filters_that_let_nothing_pass_is_an_error_and_not_a_hang(monkeypatch):
    monkeypatch.setattr("energy_data.core.node.MAX_EMPTY_DRAWS", 300)
    children = [
        Part(FilterSpec(of=samples(leaf(name, 5)), predicate=lambda _: False)) for name in "xy"
    ]
    with pytest.raises(DataError, match="no item was returned in 300 draws"):
        taken(batches(BlendSpec(tuple(children))), 1)


def nobody(sample):
    raise SkipSample


def test_a_collate_that_skips_every_batch_is_an_error_and_not_a_hang(monkeypatch):
    monkeypatch.setattr("energy_data.core.node.MAX_EMPTY_DRAWS", 300)
    with pytest.raises(DataError, match="no item was returned in 300 draws in a row"):
        taken(evolve(batches(samples(leaf("x", 5))), collate=nobody), 1)


@pytest.mark.parametrize(
    "spec",
    [
        evolve(groups(samples(leaf("x", 5))), criterion=nobody),
        evolve(groups(samples(leaf("x", 5))), collate=nobody),
        evolve(selected(samples(leaf("x", 5))), encode=nobody),
        evolve(selected(samples(leaf("x", 5))), select=lambda samples: []),
        PackSpec(of=samples(leaf("x", 5)), packing=evolve(packing(), pack=nobody)),
        packs(
            FilterSpec(of=samples(leaf("x", 5)), predicate=lambda sample: sample["number"] == 2),
            limits={"tokens": 1},
            over_long="skip",
        ),
    ],
)
def test_what_leaves_everything_out_is_an_error_and_not_a_hang(spec, monkeypatch):
    monkeypatch.setattr("energy_data.core.node.MAX_EMPTY_DRAWS", 300)
    monkeypatch.setattr("energy_data.core.node.MAX_EMPTY_DRAWS", 300)
    with pytest.raises(DataError, match="no item was returned in 300"):
        taken(spec, 1)
