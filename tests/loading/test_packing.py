"""Runs with packs, groups and parts of samples: the law, their states, and edits of the mixture."""

from __future__ import annotations

import json
import os
import random
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import (
    batches,
    groups,
    leaf,
    not_fifth,
    not_third,
    packs,
    parts,
    samples,
    selected,
    staged,
)

from energy_data.core.cursor import as_tuples
from energy_data.errors import StateError
from energy_data.loading.checkpoint.run_state import MAX_BYTES, MAX_INLINE, pack, unpack
from energy_data.loading.workers.protocol import WorkerError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.leaf import Shuffle
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.packing import Packing
from energy_data.nodes.passes import ConcatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from loading import encoders
from loading.runs import loader_of, loaders_of, run, run_in_step
from loading.workers import QUICK, is_alive, processes, worker_loader

LEAVES = {"a": 10, "b": 4, "c": 1, "d": 23}
BLEND = BlendSpec(tuple(Part(leaf(name, size), size) for name, size in LEAVES.items()))
MIXED = FilterSpec(of=EncodeSpec(of=samples(BLEND), encode=not_fifth), predicate=not_third)
PARTS = EncodeSpec(of=samples(BLEND), encode=parts)
SPLIT = {"limits": {"tokens": 5}, "over_long": "split"}

STREAMS = {
    "packs": batches(packs(MIXED), 2),
    "parts in packs": batches(packs(PARTS, **SPLIT), 2),
    "packs that were selected, in groups": groups(selected(PARTS, encode=not_fifth)),
    "packs in groups": groups(packs(MIXED, **SPLIT)),
}


def every_name(stream):
    return pytest.mark.parametrize("name", list(STREAMS))(stream)


def states(loaders):
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


@pytest.mark.parametrize("method", QUICK)
@every_name
@pytest.mark.parametrize(("ranks", "workers"), [(1, 2), (2, 1)])
def test_ranks_and_workers_change_nothing(name, ranks, workers, method):
    expected = run([worker_loader(STREAMS[name], workers=0)], rounds=40)
    loaders = [
        worker_loader(STREAMS[name], workers, rank, ranks, start_method=method)
        for rank in range(ranks)
    ]
    assert run(loaders, rounds=40 // ranks) == expected
    for loader in loaders:
        loader.close()


@every_name
def test_workers_killed_and_ranks_changed_change_nothing(name):
    rng = random.Random(name)
    expected = run([worker_loader(STREAMS[name], workers=0)], rounds=60)
    given, saved = {}, None
    for _ in range(4):
        ranks = rng.choice([1, 2, 4])
        loaders = [
            worker_loader(
                STREAMS[name], rng.choice([0, 1, 2]), rank, ranks, start_method=rng.choice(QUICK)
            )
            for rank in range(ranks)
        ]
        for loader in loaders if saved else ():
            loader.restore_state_global(saved)
        for _ in range(rng.randint(1, 3)):
            given |= run_in_step(loaders, 1)
            for process in [one for loader in loaders for one in processes(loader)][:1]:
                if is_alive(process):
                    os.kill(process, signal.SIGKILL)
        saved = states(loaders)
        for loader in loaders:
            loader.close()
    assert given == {g: expected[g] for g in given}
    assert list(given) == list(range(len(given)))


@pytest.mark.parametrize("ranks", [1, 2, 8])
@pytest.mark.parametrize("over", [packs, lambda of: packs(of, **SPLIT)])
def test_a_pass_packs_every_sample_once_on_any_number_of_ranks(over, ranks):
    order = ConcatSpec(tuple(leaf(name, size) for name, size in LEAVES.items()))
    read = ReadSpec(of=ReferencesSpec(of=order, deal=2))
    given = run(loaders_of(batches(over(read), 2), ranks, from_start=True))
    assert given == run([loader_of(batches(over(read), 2), from_start=True)])
    keys = {key.split("[")[0] for batch in given.values() for pack in batch for key in pack}
    assert keys == {f"{name}/{n}" for name, size in LEAVES.items() for n in range(size)}


def long_or_short(sample):
    return {"tokens": 1 + sample["number"] * 7919 % 1000}


def keys(samples):
    return tuple(sample["__key__"] for sample in samples)


@pytest.mark.parametrize("over_long", ["error", "split"])
def test_a_state_has_at_most_32_bytes_per_pending_reference(over_long):
    parts = tuple(Part(leaf(f"part-{n}", 40_000_000 + n), 1 + n % 5) for n in range(30))
    shuffle = Shuffle(buffer_size=1000, sequence_length=100)
    read = ReadSpec(of=ReferencesSpec(of=BlendSpec(parts), shuffle=shuffle))
    rule = Packing(limits={"tokens": 1000}, lengths=long_or_short, pack=keys, over_long=over_long)
    spec = PackSpec(of=read, packing=rule, buffer_size=1000)
    spec = BatchSpec(of=spec, batch_size=1, collate=list)
    loader = loader_of(spec, lanes=4)
    before = len(json.dumps(loader.state_dict()))
    run([loader], 8)
    state = loader.state_dict()
    pending = sum(len(place.get("pending", ())) for place in places(loader, 8))
    assert pending >= 4 * 850
    assert len(json.dumps(state)) - before <= 32 * pending
    other = loader_of(spec, lanes=4)
    other.load_state_dict(json.loads(json.dumps(state)))
    assert other.state_dict() == state


def edited(before, after, rounds=12):
    """The batches before an edit and after it, what was pending then, and how much was lost."""
    loader = loader_of(before, lanes=3)
    given = list(run([loader], rounds).values())
    pending = [ref[-3:] for place in places(loader, rounds) for ref in place.get("pending", ())]
    other = loader_of(after, lanes=3)
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())), on_mismatch="keep_matching")
    lost = sum(place.get("lost", 0) for place in places(other, rounds))
    return given, list(run([other], 60).values()), pending, lost


def places(loader, batch):
    return [place for lane in loader._host.states(batch).values() for place in lane.values()]


def blend(over, **weights):
    parts = [Part(leaf(name, 900), weight) for name, weight in weights.items()]
    return batches(over(samples(BlendSpec(tuple(parts)))), 2)


def all_keys(given):
    return [key for batch in given for pack in batch for key in pack]


@pytest.mark.parametrize("over", [packs, selected], ids=["packs", "selected"])
def test_after_an_edit_what_is_pending_of_leaves_that_stay_is_kept(over):
    before, after, pending, lost = edited(blend(over, a=2, b=1), blend(over, c=1, a=2, b=1))
    assert lost == 0
    assert {f"{'ab'[entry]}/{number}" for entry, _, number in pending} <= set(all_keys(after))
    given = all_keys(before + after)
    assert len(set(given)) == len(given)


@pytest.mark.parametrize("over", [packs, selected], ids=["packs", "selected"])
def test_after_an_edit_what_is_pending_of_leaves_that_are_gone_is_lost_and_counted(over, caplog):
    before, after, pending, lost = edited(blend(over, a=2, b=3), blend(over, a=2, c=1))
    assert lost == sum(entry == 1 for entry, *_ in pending) > 0
    assert f"{lost} samples of other leaves or nodes were read and not returned yet" in caplog.text
    assert {f"a/{number}" for entry, _, number in pending if entry == 0} <= set(all_keys(after))
    assert not any(key.startswith("b/") for key in all_keys(after))
    given = all_keys(before + after)
    assert len(set(given)) == len(given)


def test_after_an_edit_a_sample_given_in_part_gives_its_other_parts():
    def spec(**weights):
        listed = [Part(leaf(name, 300), weight) for name, weight in weights.items()]
        return batches(EncodeSpec(of=samples(BlendSpec(tuple(listed))), encode=parts), 2)

    before, after, _, lost = edited(spec(a=1), spec(b=1, a=1), rounds=7)
    given = [key for batch in before + after for key in batch if key.startswith("a/")]
    assert lost == 0
    assert len(set(given)) == len(given)
    whole = {key.split(".")[0] for batch in before for key in batch}
    for key in whole:
        number = int(key.split("/")[1])
        assert {one for one in given if one.split(".")[0] == key} == {
            f"{key}.{part}" for part in range((number + 1) % 4)
        }


def test_when_packing_changes_what_was_pending_is_lost_with_a_warning(caplog):
    edited(blend(packs, a=2), batches(samples(leaf("a", 300)), 2))
    assert "samples of other leaves or nodes were read and not returned yet" in caplog.text


@pytest.mark.parametrize("over", [packs, lambda of: packs(of, **SPLIT)], ids=["whole", "split"])
def test_a_stage_that_is_left_hands_back_what_waited_to_be_packed(over):
    body = batches(over(samples(leaf("x", 200))), 2)
    given = run([loader_of(staged(body, body, steps=[6]), lanes=1)], 30)
    keys = [key for batch in given.values() for pack in batch for key in pack]
    assert len(set(keys)) == len(keys)
    alone = run([loader_of(body, lanes=1)], 30)
    first = {key.split("[")[0] for g in range(6) for pack in alone[g] for key in pack}
    assert {key.split("[")[0] for key in keys} > first


def test_a_sample_that_kills_its_worker_is_named_where_it_is_packed_too():
    encoded = EncodeSpec(of=samples(leaf("x", 40)), encode=encoders.killed)
    loader = worker_loader(batches(packs(encoded), 2), start_method="fork", max_restarts=2)
    with pytest.raises(WorkerError, match="key x/17"):
        run([loader], 40)
    loader.close()


refs = st.lists(st.lists(st.integers(0, 2**62), max_size=5).map(tuple), min_size=1, max_size=9)
numbers = st.lists(st.integers(-(2**62), 2**62))


@given(value=(refs | numbers).map(tuple))
def test_a_packed_field_is_unpacked_as_it_was(value):
    assert as_tuples(unpack(pack(value))) == value


@pytest.mark.parametrize("length", [2, 200])
@pytest.mark.parametrize("damage", [lambda text: text[:-1], lambda text: f"{text}x", lambda _: ""])
def test_damaged_references_are_an_error_of_the_state(length, damage):
    packed = pack(tuple((0, 0, number) for number in range(length)))
    assert (len(packed) > MAX_INLINE) == (length > 2)
    with pytest.raises(StateError, match=r"^state: "):
        unpack(damage(packed))


@pytest.mark.parametrize("bomb", [["x" * (MAX_BYTES + 1)], "[" * 100_000])
def test_a_packed_value_that_takes_all_memory_is_an_error_of_the_state(bomb):
    packed = pack(bomb) if isinstance(bomb, list) else bomb
    with pytest.raises(StateError, match=r"^state: a packed part is damaged"):
        unpack(packed)
