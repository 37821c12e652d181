"""Batches are copied to shared memory in the quicker of two ways, and are the same in both."""

from __future__ import annotations

import mmap
from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from energy_data import compiled
from energy_data.loader.arena import ArenaReader, ArenaWriter
from energy_data.loader.copying import WAYS, Copier

MIB = 1 << 20
both = pytest.mark.skipif(len(WAYS) < 2, reason="installed without a compiler")


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


def batch_of(num_bytes):
    return [(0, num_bytes, bytes(num_bytes))]


@pytest.mark.parametrize("way", WAYS)
@given(begin=st.integers(0, 200), skipped=st.integers(0, 70), size=st.integers(0, 700))
def test_a_copy_is_exact_and_touches_nothing_beside_it(way, begin, skipped, size):
    data = bytes(n % 251 for n in range(skipped + size))
    memory = mmap.mmap(-1, 4096)
    memory[:] = b"\xff" * 4096
    way(memory, [(begin, begin + size, memoryview(data)[skipped:])])
    assert memory[:] == b"\xff" * begin + data[skipped:] + b"\xff" * (4096 - begin - size)
    memory.close()


@both
def test_buffers_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match="different sizes"):
        compiled.COPY.past_caches(bytearray(3), b"1234")
    with pytest.raises(TypeError):
        compiled.COPY.past_caches(b"1234", b"1234")


@pytest.mark.parametrize("quicker", ["a", "b"])
def test_the_quicker_way_is_taken_after_each_was_tried_five_times(quicker):
    ways, clock, used = named_ways({n: always(1 if n == quicker else 2) for n in "ab"})
    copier = Copier(ways, clock)
    for _ in range(20):
        copier.copy(None, batch_of(16 * MIB))
    assert used == [*"ab" * 5, *quicker * 10]


def test_a_way_is_judged_by_its_best_time():
    """The first copies to a slot take longer, and so does one that the machine interrupts."""
    ways, clock, used = named_ways({"a": iter([9, 9, 1, 9, 9, 1]), "b": always(2)})
    copier = Copier(ways, clock)
    for _ in range(11):
        copier.copy(None, batch_of(16 * MIB))
    assert used[-1] == "a"


def test_each_size_is_tried_for_itself():
    ways, clock, used = named_ways({"a": [*[1] * 5, *[2] * 5], "b": [*[2] * 5, *[1] * 6]})
    copier = Copier(ways, clock)
    for size in [*[16] * 10, *[64] * 11]:
        copier.copy(None, batch_of(size * MIB))
    assert used == [*"ab" * 5, *"ab" * 5, "b"]


def test_small_batches_go_through_the_caches():
    ways, clock, used = named_ways({"a": always(1), "b": always(1)})
    memory = mmap.mmap(-1, 8 * MIB)
    Copier(ways, clock).copy(memory, [(0, 8 * MIB - 1, b"x" * (8 * MIB - 1))])
    assert not used
    assert memory[:] == b"x" * (8 * MIB - 1) + b"\0"


def test_large_batches_are_the_same_in_every_way():
    writer = ArenaWriter(128 * MIB)
    reader = ArenaReader(writer.fd)
    for number in range(12):  # five in each way, then in one of them
        generator = torch.Generator().manual_seed(number)
        batch = {
            "large": torch.randint(0, 256, (9 * MIB + 3,), dtype=torch.uint8, generator=generator),
            "odd": [torch.randn(1031, 3, generator=generator) for _ in range(9)],
        }
        writer.free(reader.freed())
        parcel = writer.write(batch)
        reader.expect(parcel)
        read = reader.read(parcel)
        assert torch.equal(read["large"], batch["large"])
        assert all(map(torch.equal, read["odd"], batch["odd"]))
        del read
    assert len(writer._slots) == 1
