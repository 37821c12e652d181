"""Batches are copied to shared memory in the quickest way, and are the same in all."""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from contextlib import nullcontext
from itertools import islice, repeat
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energy_data.data.tar import native
from energy_data.loading import arena, copying
from energy_data.loading.copying import WAYS, Copier, PastCaches
from energy_data.loading.transport.arena import ArenaReader, ArenaWriter

MIB = 1 << 20
all_ways = pytest.mark.skipif(
    not hasattr(native.COPY, "past_caches"), reason="no compiler, or another processor"
)


class NamedWay:
    """Notes its name, and takes the given times one after another."""

    def __init__(self, name, times, note, helper=None):
        self.name, self.times, self.note, self.helper = name, iter(times), note, helper

    def __call__(self, memory, pieces):
        self.note(self.name, next(self.times))

    def helped(self):
        return self.helper


def copied(sizes, times, helped=()):
    """The names of the ways that batches of these sizes were copied in.

    helped: times of helpers, by the way they help; their names are capitals.
    """
    used, now = [], [0.0]

    def note(name, seconds):
        used.append(name)
        now[0] += seconds

    helpers = {name: NamedWay(name.upper(), each, note) for name, each in dict(helped).items()}
    ways = [NamedWay(name, each, note, helpers.get(name)) for name, each in times.items()]
    copier = Copier(ways, lambda: now[0])
    for size in sizes:
        copier.copy(None, [], size * MIB)
    return "".join(used)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("way", WAYS)
@given(begin=st.integers(0, 200), skipped=st.integers(0, 70), size=st.integers(0, 700))
def test_a_copy_is_exact_and_touches_nothing_beside_it(way, num_threads, begin, skipped, size):
    way = way if num_threads == 1 else way.helped() or way
    data = bytes(n % 251 for n in range(skipped + size))
    memory = mmap.mmap(-1, 4096)
    memory[:] = b"\xff" * 4096
    way(memory, [(begin, begin + size, memoryview(data)[skipped:])])
    assert memory[:] == b"\xff" * begin + data[skipped:] + b"\xff" * (4096 - begin - size)
    memory.close()


@all_ways
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("wrong", [None, (7, 6, b"")])
def test_nothing_holds_on_to_what_was_copied(num_threads, wrong):
    memory, data = bytearray(MIB), bytearray(MIB)
    with pytest.raises(ValueError, match="size of its place") if wrong else nullcontext():
        pieces = ((0, MIB, data), *([wrong] if wrong else []))
        native.COPY.past_caches(memory, pieces, False, num_threads)
    data.append(0)  # which it would refuse if a view of it were left open


@all_ways
def test_there_are_three_ways_where_it_is_compiled():
    assert len(WAYS) == 3


@all_ways
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(
    ("memory", "pieces", "error"),
    [
        (bytearray(3), ((0, 3, b"1234"),), ValueError),
        (bytearray(9), ((0, 4, b"1234"), (0, 4, b"123")), ValueError),
        (bytearray(9), ((7, 11, b"1234"),), ValueError),
        (bytearray(9), ((-4, 0, b"1234"),), ValueError),
        (bytearray(9), ((3, 2, b""),), ValueError),
        (bytearray(9), ((0, 4, b"1234"), (0, 4)), TypeError),
        (bytearray(9), ((0, 4, b"1234"), None), TypeError),
        (bytearray(9), ((0, 4, "1234"),), TypeError),
        (bytearray(9), [(0, 4, b"1234")], TypeError),
        (b"123456789", ((0, 4, b"1234"),), TypeError),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_copied(memory, pieces, error, num_threads):
    before = bytes(memory)
    with pytest.raises(error):
        native.COPY.past_caches(memory, pieces, False, num_threads)
    assert memory == before
    if isinstance(memory, bytearray):
        memory.append(0)  # which it would refuse if a view of it were left open


@all_ways
@pytest.mark.parametrize(("num_cores", "helped"), [(1, None), (2, PastCaches(True, 2))])
def test_there_is_a_helper_only_where_there_is_a_core_for_it(monkeypatch, num_cores, helped):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)))
    assert PastCaches(True).helped() == helped


@pytest.mark.parametrize("quickest", ["a", "b", "c"])
def test_the_quickest_way_is_taken_after_each_was_tried_five_times(quickest):
    used = copied([16] * 35, {n: repeat(1 if n == quickest else 2) for n in "abc"})
    assert used == "abc" * 5 + quickest * 20


def test_a_way_is_judged_by_its_best_time():
    """The machine interrupts some."""
    assert copied([16] * 11, {"a": [9, 9, 1, 9, 9, 1], "b": repeat(2)})[-1] == "a"


def test_batches_of_one_class_of_sizes_are_judged_by_their_bytes():
    assert copied([*[31, 16] * 5, 16], {"a": [20] * 6, "b": [16] * 5})[-1] == "a"


def test_each_class_of_sizes_is_tried_for_itself():
    times = {"a": [*[1] * 5, *[2] * 5], "b": [*[2] * 5, *[1] * 6]}
    used = copied([*[16] * 10, *[64] * 11], times)
    assert used == "ab" * 5 + "ab" * 5 + "b"


@pytest.mark.parametrize(("helped", "taken"), [(1.9, "B"), (2.1, "b")])
def test_a_second_thread_must_make_it_one_and_a_half_times_as_quick(helped, taken):
    used = copied([16] * 52, {"a": repeat(4), "b": repeat(3)}, {"b": repeat(helped)})
    assert used == "ab" * 5 + "bB" * 5 + taken * 32


def test_whether_it_does_is_tried_again_more_and_more_seldom():
    helped = [*[3] * 5, *[1] * 5, *[1] * 256, *repeat(3, 5), 3]
    used = copied([16] * (5 + 10 + 32 + 10 + 256 + 10 + 99), {"a": repeat(3)}, {"a": helped})
    assert used == "a" * 5 + "aA" * 5 + "a" * 32 + "aA" * 5 + "A" * 256 + "aA" * 5 + "a" * 99


def test_the_helper_of_the_quickest_way_that_has_one_is_tried():
    """Else chance would decide, where the quickest one has none and is little quicker."""
    times = {"a": repeat(2), "b": repeat(4), "c": repeat(3)}
    used = copied([16] * (15 + 10 + 9), times, {"b": repeat(1), "c": repeat(1)})
    assert used == "abc" * 5 + "aC" * 5 + "C" * 9


@pytest.mark.parametrize(
    ("num_threads", "together"),
    [(1, [1, 1, 1, 1, 1]), (2, [2, 2, 1])],
)
def test_helpers_take_many_small_pieces_together(monkeypatch, num_threads, together):
    seen = []
    monkeypatch.setattr(
        copying, "COPY", SimpleNamespace(past_caches=lambda *given: seen.append(given))
    )
    pieces = [(0, size * MIB, b"") for size in (1, 15, 15, 2, 1)]
    PastCaches(True, num_threads)("memory", iter(pieces))
    assert [given[1] for given in seen] == [
        tuple(islice(rest, count)) for rest in [iter(pieces)] for count in together
    ]
    assert {(*given[:1], *given[2:]) for given in seen} == {("memory", True, num_threads)}


@all_ways
@pytest.mark.parametrize("num_threads", [1, 2])
def test_copies_are_let_go_of_before_the_next_are_made(num_threads):
    made = []

    def pieces():
        for _ in range(9):
            copy = np.zeros(8 * MIB, dtype=np.uint8)
            made.append(weakref.ref(copy))
            assert sum(one() is not None for one in made) <= 2
            yield (0, 8 * MIB, copy)
            del copy

    with mmap.mmap(-1, 8 * MIB) as memory:
        PastCaches(False, num_threads)(memory, pieces())
    assert len(made) == 9


@pytest.mark.parametrize(("num_bytes", "is_fresh"), [(8 * MIB - 1, False), (8 * MIB, True)])
def test_small_batches_and_first_ones_of_a_slot_are_no_measure(num_bytes, is_fresh):
    used = []
    ways = [NamedWay("a", repeat(1), lambda *_: used.append(1))]
    with mmap.mmap(-1, 8 * MIB) as memory:
        pieces = [(0, num_bytes, b"x" * num_bytes)]
        Copier(ways).copy(memory, pieces, num_bytes, is_fresh=is_fresh)
        assert memory[:num_bytes] == b"x" * num_bytes
    assert not used


def sent(writer, reader, batch):
    writer.free(reader.freed())
    parcel = writer.write(batch)
    reader.expect(parcel)
    return reader.read(parcel)


@all_ways
@pytest.mark.parametrize("num_kept", [0, 2])
def test_large_batches_are_the_same_in_every_way(num_kept):
    writer = ArenaWriter(128 * MIB)
    reader = ArenaReader(writer.fd)
    kept = deque(maxlen=num_kept)
    for number in range(27 + num_kept):  # one in each slot, five in each way, one in the best
        generator = torch.Generator().manual_seed(number)
        batch = {
            "large": torch.randint(0, 256, (9 * MIB + 3,), dtype=torch.uint8, generator=generator),
            "odd": [torch.randn(1031, 3, generator=generator) for _ in range(9)],
        }
        read = sent(writer, reader, batch)
        assert torch.equal(read["large"], batch["large"])
        assert all(map(torch.equal, read["odd"], batch["odd"]))
        is_known = any(each._alone is not None for each in writer._copier._choices.values())
        assert is_known == (number >= 15 + num_kept)
        kept.append(read)
        del read
    assert list(writer._copier._choices) == [24]
    assert writer._copier._choices[24]._left  # it has decided
    assert len(writer._slots) == 1 + num_kept


def test_copies_of_what_is_not_contiguous_are_made_one_after_another(monkeypatch):
    made, most = [], []

    def noted(tensor):
        copy = tensor.contiguous().numpy().copy()
        made.append(weakref.ref(copy))
        most.append(sum(one() is not None for one in made))
        return memoryview(copy).cast("B")

    monkeypatch.setattr(arena, "bytes_of", noted)
    writer = ArenaWriter(64 * MIB)
    writer.write({"x": [torch.zeros(1024, 1024, dtype=torch.uint8).T for _ in range(16)]})
    assert len(made) == 16
    assert max(most) <= 2


def test_a_slot_is_not_lost_when_a_copy_is_interrupted(monkeypatch):
    writer = ArenaWriter(64 * MIB)
    reader = ArenaReader(writer.fd)
    batch = {"x": torch.zeros(9 * MIB, dtype=torch.uint8)}

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(writer._copier, "copy", interrupted)
        for _ in range(9):
            with pytest.raises(KeyboardInterrupt):
                writer.write(batch)
    assert torch.equal(sent(writer, reader, batch)["x"], batch["x"])
    assert len(writer._slots) == 1
