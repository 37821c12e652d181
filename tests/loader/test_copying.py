"""Batches are copied to shared memory in the quickest of three ways, and are the same in all."""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energy_data import compiled
from energy_data.loader import arena
from energy_data.loader.arena import ArenaReader, ArenaWriter
from energy_data.loader.copying import WAYS, Copier

MIB = 1 << 20
all_ways = pytest.mark.skipif(
    not hasattr(compiled.COPY, "past_caches"), reason="no compiler, or another processor"
)


def named_ways(times):
    """Ways that note their names and take so long, and the clock."""
    used, now = [], [0.0]

    def way(name, seconds):
        def copy(memory, pieces):
            used.append(name)
            now[0] += next(seconds)

        return copy

    return [way(name, iter(each)) for name, each in times.items()], lambda: now[0], used


def always(seconds):
    return (seconds for _ in count())


@pytest.mark.parametrize("way", WAYS)
@given(begin=st.integers(0, 200), skipped=st.integers(0, 70), size=st.integers(0, 700))
def test_a_copy_is_exact_and_touches_nothing_beside_it(way, begin, skipped, size):
    data = bytes(n % 251 for n in range(skipped + size))
    memory = mmap.mmap(-1, 4096)
    memory[:] = b"\xff" * 4096
    way(memory, [(begin, begin + size, memoryview(data)[skipped:])])
    assert memory[:] == b"\xff" * begin + data[skipped:] + b"\xff" * (4096 - begin - size)
    memory.close()


@all_ways
def test_there_are_three_ways_where_it_is_compiled():
    assert len(WAYS) == 3


@all_ways
def test_buffers_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="different sizes"):
        compiled.COPY.past_caches(bytearray(3), b"1234", False)
    with pytest.raises(TypeError):
        compiled.COPY.past_caches(b"1234", b"1234", True)


@pytest.mark.parametrize("quickest", ["a", "b", "c"])
def test_the_quickest_way_is_taken_after_each_was_tried_five_times(quickest):
    ways, clock, used = named_ways({n: always(1 if n == quickest else 2) for n in "abc"})
    copier = Copier(ways, clock)
    for _ in range(25):
        copier.copy(None, [], 16 * MIB)
    assert used == [*"abc" * 5, *quickest * 10]


def test_a_way_is_judged_by_its_best_time():
    """The machine interrupts some."""
    ways, clock, used = named_ways({"a": iter([9, 9, 1, 9, 9, 1]), "b": always(2)})
    copier = Copier(ways, clock)
    for _ in range(11):
        copier.copy(None, [], 16 * MIB)
    assert used[-1] == "a"


def test_batches_of_one_class_of_sizes_are_judged_by_their_bytes():
    ways, clock, used = named_ways({"a": [20] * 6, "b": [16] * 5})
    copier = Copier(ways, clock)
    for size in [*[31, 16] * 5, 16]:
        copier.copy(None, [], size * MIB)
    assert used[-1] == "a"


def test_each_class_of_sizes_is_tried_for_itself():
    ways, clock, used = named_ways({"a": [*[1] * 5, *[2] * 5], "b": [*[2] * 5, *[1] * 6]})
    copier = Copier(ways, clock)
    for size in [*[16] * 10, *[64] * 11]:
        copier.copy(None, [], size * MIB)
    assert used == [*"ab" * 5, *"ab" * 5, "b"]


@pytest.mark.parametrize(("num_bytes", "is_fresh"), [(8 * MIB - 1, False), (8 * MIB, True)])
def test_small_batches_and_first_ones_of_a_slot_are_no_measure(num_bytes, is_fresh):
    ways, clock, used = named_ways({"a": always(1), "b": always(1)})
    with mmap.mmap(-1, 8 * MIB) as memory:
        pieces = [(0, num_bytes, b"x" * num_bytes)]
        Copier(ways, clock).copy(memory, pieces, num_bytes, is_fresh=is_fresh)
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
    for number in range(17 + num_kept):  # one in each slot, five in each way, one in the best
        generator = torch.Generator().manual_seed(number)
        batch = {
            "large": torch.randint(0, 256, (9 * MIB + 3,), dtype=torch.uint8, generator=generator),
            "odd": [torch.randn(1031, 3, generator=generator) for _ in range(9)],
        }
        read = sent(writer, reader, batch)
        assert torch.equal(read["large"], batch["large"])
        assert all(map(torch.equal, read["odd"], batch["odd"]))
        assert bool(writer._copier._best) == (number >= 15 + num_kept)
        kept.append(read)
        del read
    assert list(writer._copier._best) == [24]
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
