"""Batches that are made in their slot arrive like any other."""

from __future__ import annotations

import contextlib
import mmap
import threading
from itertools import islice

import numpy as np
import pytest
import torch
from trees import leaf, samples

from energy_data.core.batch_memory import allocate_in, new_batch_tensor
from energy_data.loading.transport.arena import (
    ArenaFullError,
    ArenaReader,
    ArenaWriter,
    SlotAllocator,
)
from energy_data.nodes.batch import BatchSpec
from energy_data.tasks.collate import collate
from loading.workers import worker_loader

MIB = 1 << 20


@pytest.fixture
def arena():
    writer = ArenaWriter(64 * MIB)
    writer.write({"first": torch.zeros(MIB)})  # allocators are as large as the last batch
    return writer


def acquired(writer: ArenaWriter) -> SlotAllocator:
    """An allocator that has its slot."""
    allocator = writer.allocator()
    allocator.take(1)
    return allocator


def images(value: int, count: int = 4) -> list[dict]:
    return [{"image": torch.full((256, 256), value + n, dtype=torch.uint8)} for n in range(count)]


def read(writer: ArenaWriter, parcel):
    return ArenaReader(writer.fd).read(parcel)


@pytest.mark.parametrize("kind", [torch.from_numpy, np.asarray], ids=["tensors", "arrays"])
def test_a_collated_batch_stays_where_it_was_made(arena, kind):
    allocator = arena.allocator()
    values = [np.full((256, 256), n, np.float32) for n in range(3)]
    with allocate_in(allocator):
        batch = collate([{"image": kind(value), "text": "t"} for value in values])
    parcel = arena.write(batch, allocator)
    assert allocator.end == batch["image"].nbytes
    assert parcel.slot == allocator.slot
    assert parcel.spans[0] == (0, allocator.end)
    found = read(arena, parcel)
    assert torch.equal(found["image"], torch.from_numpy(np.stack(values)))
    assert found["text"] == ["t"] * 3


def test_what_was_made_elsewhere_is_copied_behind_it(arena):
    allocator = arena.allocator()
    other = torch.arange(5000)
    with allocate_in(allocator):
        batch = {**collate(images(1)), "other": other, "part": None}
        batch["part"] = batch["image"][1:3]
    found = read(arena, arena.write(batch, allocator))
    assert torch.equal(found["other"], other)
    assert torch.equal(found["image"], batch["image"])
    assert torch.equal(found["part"], batch["image"][1:3])


def test_a_batch_that_outgrows_its_slot_is_copied_to_another(arena):
    allocator = arena.allocator()
    with allocate_in(allocator):
        batch = [collate(images(n, 64)) for n in range(8)]
    parcel = arena.write(batch, allocator)
    assert parcel.slot != allocator.slot
    for found, made in zip(read(arena, parcel), batch, strict=True):
        assert torch.equal(found["image"], made["image"])


def test_a_slot_is_free_when_neither_side_uses_it(arena):
    allocator = arena.allocator()
    with allocate_in(allocator):
        batch = collate(images(1))
    number = arena.write(batch, allocator).slot.number
    assert not allocator.close(), "the batch is alive"
    arena.free([number])
    assert acquired(arena).slot.number != number
    del batch
    assert allocator.close()
    allocators = [acquired(arena) for _ in range(2)]
    assert number in {allocator.slot.number for allocator in allocators}


def test_an_allocator_never_makes_the_arena_exceed_its_limit():
    writer = ArenaWriter(MIB)
    writer.write(torch.zeros(MIB // 8))  # half of it, and the trainer holds it
    assert writer.allocator().take(1) is None
    with pytest.raises(ArenaFullError):
        writer.write(torch.zeros(MIB // 4))


def test_other_threads_allocate_elsewhere(arena):
    allocator, made = arena.allocator(), []
    with allocate_in(allocator):
        thread = threading.Thread(
            target=lambda: made.append(new_batch_tensor((4096,), torch.uint8))
        )
        thread.start()
        thread.join()
    assert made
    assert allocator.end == 0


class Keeping:
    """Makes batches, keeps the last ones, and looks whether others change them."""

    def __init__(self) -> None:
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __call__(self, samples: list[dict]) -> dict:
        batch = collate(images(samples[0]["number"] % 7))
        for one, copy in self.kept[-3:]:
            if not torch.equal(one, copy):
                raise ValueError("a batch was changed")
            one += 1
            copy += 1
        self.kept.append((batch["image"], batch["image"].clone()))
        return batch


def test_an_encoder_that_keeps_its_batches_shares_no_memory_with_the_trainer():
    spec = BatchSpec(of=samples(leaf("a", 100)), batch_size=1, collate=Keeping())
    loader = worker_loader(spec, workers=1, lanes=1)
    with contextlib.closing(loader):
        for number, batch in enumerate(islice(loader, 30)):
            expected = collate(images(batch["image"][0, 0, 0].item()))["image"]
            assert torch.equal(batch["image"], expected), number
            batch["image"] += 100


class Growing:
    """Makes small batches, and some that fit the arena only if nothing else is in it."""

    def __call__(self, samples: list[dict]) -> dict:
        large = samples[0]["number"] % 3 == 0
        return {
            "tokens": new_batch_tensor((1 << 15,), torch.uint8),
            "image": torch.ones(7 if large else 2, MIB // 4),
        }


def test_an_allocator_leaves_room_for_a_batch_that_fits_the_arena():
    spec = BatchSpec(of=samples(leaf("a", 30)), batch_size=1, collate=Growing())
    loader = worker_loader(spec, workers=1, lanes=1, arena_bytes=8 * MIB)
    with contextlib.closing(loader):
        stream, sizes = iter(loader), set()
        for _ in range(20):
            sizes.add(len(next(stream)["image"]))
    assert sizes == {2, 7}


class Elsewhere:
    """Makes some batches in their slot: all, every second, or none."""

    def __init__(self, every: int) -> None:
        self.every, self.made = every, 0

    def __call__(self, samples: list[dict]) -> dict:
        self.made += 1
        is_elsewhere = self.made % self.every
        make = torch.empty if is_elsewhere else new_batch_tensor
        return {"tokens": make((1 << 15,), dtype=torch.uint8)}


@pytest.mark.parametrize(("every", "count"), [(1, 99), (2, 50), (999, 0)])
def test_a_slot_is_acquired_only_for_batches_that_are_made_there(monkeypatch, every, count):
    acquired, acquire = mmap.mmap(-1, 4096), ArenaWriter.acquire  # shared with the worker

    def counted(writer):
        made = acquire(writer)
        acquired[0] += made is not None
        return made

    monkeypatch.setattr(ArenaWriter, "acquire", counted)
    spec = BatchSpec(of=samples(leaf("a", 100)), batch_size=1, collate=Elsewhere(every))
    loader = worker_loader(spec, workers=1, lanes=1, start_method="fork", prefetch=1)
    with contextlib.closing(loader):
        for _ in islice(loader, 100):
            pass
    assert count <= acquired[0] <= count + 1  # one may be on its way


def test_tensors_are_made_on_the_cpu_whatever_the_default_device_is():
    with torch.device("meta"):
        assert collate([{"x": torch.ones(5, device="cpu")}] * 2)["x"].device.type == "cpu"
        assert collate([{"x": np.ones(5)}] * 2)["x"].sum() == 10


def made_in(allocator, size=5000):
    with allocate_in(allocator):
        return new_batch_tensor((size,), torch.uint8).fill_(3)


def test_a_pickle_of_texts_is_written_behind_what_was_allocated(arena):
    allocator = arena.allocator()
    batch = {"a": ["x" * 9000, "y"], "made": made_in(allocator)}
    parcel = arena.write(batch, allocator)
    assert parcel.slot == allocator.slot
    found = read(arena, parcel)
    assert found["a"] == batch["a"]
    assert torch.equal(found["made"], batch["made"])


def test_a_batch_that_outgrows_its_slot_with_its_first_part_is_copied_to_another(arena):
    allocator = acquired(arena)
    batch = {
        "other": torch.ones(allocator.slot.size, dtype=torch.uint8),
        "made": made_in(allocator),
    }
    parcel = arena.write(batch, allocator)
    assert parcel.slot != allocator.slot
    assert max(end for _, end in parcel.spans) <= parcel.slot.size
    found = read(arena, parcel)
    assert all(torch.equal(found[name], batch[name]) for name in batch)


def test_retired_slots_are_reported_once(arena):
    first = arena.write({"x": torch.zeros(MIB)})
    reader = ArenaReader(arena.fd)
    reader.expect(first)
    reader.read(first)
    arena.free([0, *reader.freed()])
    larger = {"x": torch.zeros(2 * MIB)}
    parcel = arena.write(larger)
    assert set(parcel.retired) == {0, first.slot.number}
    assert torch.equal(
        arena.read(parcel)["x"], larger["x"]
    )  # it was not sent, so they are reported again
    parcel = arena.write(larger)
    assert set(parcel.retired) == {0, first.slot.number}
    reader.expect(parcel)
    assert first.slot.number not in reader._slots
    assert arena.write(larger).retired == ()


def test_a_large_pickle_is_written_behind_what_was_allocated(arena):
    allocator = arena.allocator()
    batch = {"made": made_in(allocator), "numbers": list(range(9000))}
    parcel = arena.write(batch, allocator)
    assert (parcel.slot, parcel.pickled) == (allocator.slot, None)
    found = read(arena, parcel)
    assert found["numbers"] == batch["numbers"]
    assert torch.equal(found["made"], batch["made"])


def test_a_sent_slot_is_not_free_when_its_allocator_is_closed(arena):
    allocator = arena.allocator()
    batch = {"made": made_in(allocator)}
    sent = arena.write(batch, allocator)
    found = read(arena, sent)
    allocator.close()
    del batch, allocator
    assert arena.write({"x": torch.zeros(MIB)}).slot != sent.slot
    assert bool((found["made"] == 3).all())
