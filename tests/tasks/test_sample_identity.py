"""`sample_rng()` in every function of a user: of the sample, wherever and whenever it is made."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loading.runs import in_order, loaders_of
from trees import A, batches, joined, leaf, number_cost, parity, references

from energy_data.core.rng import sample_rng
from energy_data.errors import EnergyDataError
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec, FlatMapSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.packing import Packing
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.select_pack import SelectPackSpec
from energy_data.tasks.encoders import DefaultTaskEncoder
from energy_data.tasks.mixture import StreamBuilder
from energy_data.testing import assert_resumes_exactly

ORDER = BlendSpec((Part(A, 2), Part(leaf("d", 23), 3)))


def dice(most: int = 1 << 30) -> int:
    return int(sample_rng().integers(most))


class Throwing(DefaultTaskEncoder):
    def encode_sample(self, sample):
        return {"name": sample["__key__"], "thrown": dice()}

    def batch(self, samples):
        return [(sample["name"], sample["thrown"]) for sample in samples]


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_sample_of_a_micro_batch_has_numbers_of_its_own_on_any_ranks(ranks):
    spec = StreamBuilder(batch_size=4, task_encoder=Throwing()).over(ORDER).spec
    given_out = [
        one for batch in in_order(loaders_of(spec, ranks, 4), 60 // ranks) for one in batch
    ]
    assert len({thrown for _, thrown in given_out}) == len(given_out)  # in each epoch others
    again = in_order(loaders_of(spec, 1, 4), 60)
    assert given_out == [one for batch in again for one in batch]


def test_the_default_task_encoder_asks_for_nothing_and_batches_say_nothing_more():
    plain = StreamBuilder(batch_size=4, task_encoder=DefaultTaskEncoder()).over(A).spec
    asking = StreamBuilder(batch_size=4, task_encoder=Throwing()).over(A).spec
    keys = [
        inner.keys for spec in (plain, asking) for _, inner in spec.walk() if hasattr(inner, "keys")
    ]
    assert keys == [False, True]
    assert "__restore_key__" not in in_order(loaders_of(plain, 1, 4), 1)[0]


def is_lucky(item) -> bool:
    return dice(4) > 0


def renamed(item):
    return {**item, "__key__": f"{item['__key__']}~{dice(100)}"}


def anonymous(item):
    """The item without anything that says which sample it is."""
    return {name: item[name] for name in ("__key__", "number")}


def test_a_filter_of_samples_without_a_key_knows_them_by_their_references():
    spec = batches(FilterSpec(of=ReadSpec(of=references(A)), predicate=is_lucky))
    assert in_order(loaders_of(spec, 1, 4), 20) == in_order(loaders_of(spec, 2, 4), 10)


def test_a_filter_of_items_without_identity_gets_no_numbers():
    parts = FlatMapSpec(of=ReadSpec(of=references(A)), function=lambda item: iter([item]))
    spec = FilterSpec(of=parts, predicate=is_lucky)
    with pytest.raises(EnergyDataError, match="is_lucky asks for the numbers of a dict without"):
        in_order(loaders_of(batches(spec), 1, 4), 1)


def lengths(item):
    return {"tokens": number_cost(item) + dice(3)}


def thrown_pack(items):
    return {**joined(items), "number": dice(1000)}


def cut(item, start, stop):
    return {**item, "__key__": f"{item['__key__']}[{start}:{stop}]{dice(100)}"}


def thrown_group(item):
    return dice(3), 2


def in_twos(items):
    return [items[at : at + 2] for at in range(0, len(items), 2)]


def thrown_pairs(items):
    ordered = sorted(items, key=lambda item: item["__key__"])
    first = dice(2)
    return [ordered[:first], *(ordered[at : at + 2] for at in range(first, len(ordered), 2))]


PACKING = Packing(limits={"tokens": 12}, lengths=lengths, pack=thrown_pack, cut=cut)
NAMELESS = EncodeSpec(of=ReadSpec(of=references(ORDER), keys=True), encode=anonymous)
WAITING = {
    "packed": batches(PackSpec(of=NAMELESS, packing=PACKING, buffer_size=6), 1),
    "pre-encoded": batches(
        PackSpec(of=EncodeSpec(of=NAMELESS, encode=renamed), packing=PACKING, buffer_size=6), 1
    ),
    "selected": GroupSpec(
        of=SelectPackSpec(of=NAMELESS, select=in_twos, pack=thrown_pack, buffer_size=6),
        batch_size=2,
        criterion=parity,
        collate=str,
    ),
    "grouped": GroupSpec(of=NAMELESS, batch_size=2, criterion=thrown_group, collate=str),
}


@pytest.mark.parametrize("tree", WAITING)
def test_what_has_lost_its_name_is_told_by_its_reference_while_it_waits(tree):
    (whole,) = loaders_of(WAITING[tree], 1, 1)
    expected = list(islice(iter(whole), 16))
    waited = False
    for at in range(1, 9):
        (loader,) = loaders_of(WAITING[tree], 1, 1)
        list(islice(iter(loader), at))
        (place,) = RunState.from_dict(loader.state_dict()).places.values()
        waited |= any(cursor.get("pending") for cursor in place.values())
        (again,) = loaders_of(WAITING[tree], 1, 1)
        again.load_state_dict(loader.state_dict())
        assert list(islice(iter(again), 8)) == expected[at : at + 8]
    assert waited


@st.composite
def throwing(draw):
    """Random trees whose every function throws dice."""
    read = ReadSpec(of=references(ORDER), keys=True)
    tree = FilterSpec(of=EncodeSpec(of=read, encode=renamed), predicate=is_lucky)
    if draw(st.booleans()):
        tree = EncodeSpec(of=tree, encode=anonymous)
    over = draw(st.sampled_from(["none", "pack", "select"]))
    if over == "pack":
        tree = PackSpec(of=tree, packing=PACKING, buffer_size=5)
    if over == "select":
        tree = SelectPackSpec(of=tree, select=thrown_pairs, pack=thrown_pack, buffer_size=5)
    if draw(st.booleans()):
        return GroupSpec(of=tree, batch_size=2, criterion=thrown_group, collate=str)
    return batches(tree, 2)


@settings(max_examples=25, deadline=None)
@given(spec=throwing(), data=st.data())
def test_what_is_made_again_after_a_restore_throws_what_it_threw(spec, data):
    assert_resumes_exactly(spec, lane=data.draw(st.integers(0, 2)), lanes=3, steps=8)


@settings(max_examples=12, deadline=None)
@given(spec=throwing(), at=st.integers(0, 10), ranks=st.sampled_from([1, 2, 4]))
def test_it_is_one_stream_wherever_it_goes_on(spec, at, ranks):
    (whole,) = loaders_of(spec, 1, 4)
    expected = list(islice(iter(whole), 18))
    (loader,) = loaders_of(spec, 1, 4)
    list(islice(iter(loader), at))
    others = loaders_of(spec, ranks, 4)
    for other in others:
        other.restore_state_global(loader.state_dict())
    assert in_order(others, 8 // ranks) == expected[at : at + 8]
