"""The arena: batches cross in shared memory, and a slot lives as long as any view of it."""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import attrs
import numpy as np
import pytest
import torch
from trees import leaf, samples

from energy_data.loading.transport.arena import ArenaFullError, ArenaReader, ArenaWriter, FreeNotice
from energy_data.nodes.batch import BatchSpec
from loading.workers import descriptors, worker_loader

MIB = 1 << 20


class Arena:
    """Both sides in one process."""

    def __init__(self, limit: int = 64 * MIB, cuda=None):
        self.writer = ArenaWriter(limit)
        self.reader = ArenaReader(self.writer.fd, cuda)

    def sent(self, batch):
        self.writer.free(self.reader.freed())
        parcel = self.writer.write(batch)
        self.reader.expect(parcel)
        return self.reader.read(parcel)

    @property
    def slots(self) -> int:
        return len(self.writer._slots)


@dataclass
class Point:
    x: torch.Tensor
    name: str = "p"


class Pair(NamedTuple):
    first: torch.Tensor
    second: np.ndarray


@attrs.frozen
class Frozen:
    values: np.ndarray
    points: list[Point]


def same(a, b) -> bool:
    """Whether two values are equal, of the same types, shapes and dtypes, all through."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and repr(a.tolist()) == repr(b.tolist())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, Point | Frozen):
        a, b = asdict(a), asdict(b)
    return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a) if is_dict(a) else a == b


def asdict(value) -> dict:
    return {name: getattr(value, name) for name in value.__annotations__}


def is_dict(value) -> bool:
    return isinstance(value, dict)


LONG = torch.arange(5000)
GRID = np.arange(12_000.0).reshape(100, 120)
RECORDS = np.zeros(500, dtype=[("id", "<i4"), ("box", "<f4", (4,))])
BATCHES = {
    "dict": {"a": LONG, "b": {"c": GRID}},
    "list": [LONG, [GRID, (LONG[:3], "text")]],
    "dataclass": Point(LONG),
    "named tuple": Pair(LONG, GRID),
    "attrs": Frozen(GRID, [Point(LONG), Point(LONG[:2], "q")]),
    "dtypes": [
        (LONG % 100).to(dtype)  # float8 has no 5000: it may become NaN
        for dtype in (
            torch.bfloat16,
            torch.float16,
            torch.bool,
            torch.complex64,
            torch.uint8,
            torch.uint16,
            torch.float8_e4m3fn,
        )
    ],
    "no dimension": [torch.tensor(3.5), np.array(4), torch.tensor(True)],
    "empty": [torch.empty(0, 7), np.empty((3, 0)), torch.empty(0, dtype=torch.bool), [], {}],
    "not contiguous": [LONG[::2], LONG.reshape(50, 100).T, GRID[::3, ::-2], GRID.T],
    "fortran order": np.asfortranarray(GRID),
    "records": RECORDS,
    "read-only": np.broadcast_to(GRID[0], (50, 120)),
    "objects": np.array([{"a": 1}, None, "x"], dtype=object),
    "dates": np.array(["2026-01-01"] * 900, dtype="datetime64[s]"),
    "strings": np.array(["ab", "cde"] * 900),
    "large bytes": b"x" * 3_000_000,
    "large text": "é" * 1_000_000,
    "bytearray": bytearray(range(256)) * 100,
    "numpy scalars": [np.float32(1.5), np.int64(7), np.bool_(True)],
    "many small": [torch.full((10,), n) for n in range(2000)],
    "nothing": None,
    "sparse": torch.eye(50).to_sparse().to_dense(),
    "wide": LONG.expand(100, 5000),
    "one tensor and a view of it": [GRID, GRID[3:], LONG, LONG[7:]],
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches_of_all_kinds_arrive_as_they_were(name):
    arena = Arena()
    for _ in range(3):
        assert same(arena.sent(BATCHES[name]), BATCHES[name])


def test_views_can_be_written_to_and_read_only_arrays_stay_so():
    arena = Arena()
    tensor, array, small, fixed = arena.sent(
        [LONG, GRID, torch.zeros(3), np.frombuffer(b"x" * 5000, dtype=np.uint8)]
    )
    tensor += 1
    array[:] = 0
    small[0] = 7
    assert torch.equal(tensor, LONG + 1)
    assert not fixed.flags.writeable


def test_arrays_start_at_multiples_of_64_bytes():
    given = Arena().sent([torch.zeros(n, dtype=torch.uint8) for n in range(1025, 1100)])
    assert all(tensor.data_ptr() % 64 == 0 for tensor in given)


def test_tensors_that_need_gradients_and_named_parameters_arrive():
    parameter, tensor = Arena().sent([torch.nn.Parameter(torch.ones(999)), torch.ones(999) * 2])
    assert isinstance(parameter, torch.nn.Parameter)
    assert parameter.requires_grad
    assert not tensor.requires_grad


def test_a_slice_of_a_large_tensor_travels_alone_and_one_tensor_twice_stays_one():
    arena = Arena(limit=MIB)
    whole = torch.zeros(4 * MIB, dtype=torch.uint8)
    one, other = arena.sent([whole[:2000], whole[1000:3000]])
    assert one.untyped_storage().nbytes() == 2000
    assert other.shape == (2000,)
    first, second = arena.sent([LONG, LONG])
    assert first is second


@pytest.mark.parametrize(
    "view",
    [
        lambda batch: batch["array"][2:][1:3],
        lambda batch: batch["array"][5:6].reshape(-1)[::7].view(np.int64),
        lambda batch: memoryview(batch["array"][3]),
        lambda batch: torch.from_numpy(batch["array"])[1:][2],
        lambda batch: batch["tensor"][3:][5:],
        lambda batch: batch["tensor"].view(-1, 10).t()[1],
        lambda batch: batch["tensor"].numpy()[10:],
        lambda batch: batch["tensor"].untyped_storage(),
        lambda batch: [batch["tensor"][9]],
        lambda batch: iter(batch["array"]),
    ],
)
def test_any_view_of_a_view_keeps_the_slot(view):
    arena = Arena()
    batch = arena.sent({"array": GRID.copy(), "tensor": LONG.clone()})
    kept = view(batch)
    del batch
    gc.collect()
    assert arena.reader.freed() == []
    del kept
    gc.collect()
    assert arena.reader.freed() == [0]


def test_what_a_kept_view_shows_is_not_written_over():
    arena = Arena()
    kept = [arena.sent(torch.full((1000,), n))[10:20] for n in range(20)]
    assert [view.unique().item() for view in kept] == list(range(20))


def test_a_thousand_batches_share_one_slot():
    arena = Arena()
    for n in range(1000):
        assert arena.sent(torch.full((3000,), n))[0] == n
    assert arena.slots == 1


def test_small_batches_need_no_slot():
    arena = Arena()
    for n in range(100):
        arena.sent({"n": n, "x": torch.ones(100)})
    assert arena.slots == 0


def test_growing_batches_find_room_and_their_old_slots_are_given_back():
    arena = Arena(limit=8 * MIB)
    for size in range(2000, 6 * MIB, 100_000):
        assert len(arena.sent(b"x" * size)) == size
        used = os.fstat(arena.writer.fd).st_blocks * 512
        assert used <= 2 * size * 1.25 + MIB
    assert arena.slots == 1


def test_batches_of_random_sizes_stay_below_the_limit():
    arena, rng = Arena(limit=16 * MIB), np.random.default_rng(0)
    kept = [None] * 4
    for n in range(400):
        kept[n % 4] = None
        size = int(rng.integers(1, 2 * MIB))
        batch = arena.sent(torch.full((size,), n % 100, dtype=torch.uint8))
        assert (batch == n % 100).all()
        kept[n % 4] = batch
        del batch
    assert os.fstat(arena.writer.fd).st_blocks * 512 <= 16 * MIB + 4096


def test_a_batch_over_64_mib_crosses():
    big = torch.arange(70 * MIB, dtype=torch.uint8)
    assert torch.equal(Arena(limit=100 * MIB).sent(big), big)


def test_the_limit_holds_exactly_one_batch_that_fits_without_headroom():
    arena = Arena(limit=10 * MIB)
    assert arena.sent(b"x" * (10 * MIB - 4096)) is not None
    with pytest.raises(ArenaFullError, match=r"a batch needs 12 MiB, the limit is 10 MiB.*Raise"):
        arena.sent(b"x" * 12 * MIB)


def test_when_all_is_kept_the_error_says_what_to_do_and_letting_go_helps():
    arena = Arena(limit=10 * MIB)
    kept = [arena.sent(torch.zeros(MIB)), arena.sent(torch.zeros(MIB))]
    with pytest.raises(ArenaFullError, match=r"2 batches .* still in use .*clone\(\).*arena_bytes"):
        arena.sent(torch.zeros(MIB))
    kept.pop()
    assert arena.sent(torch.zeros(MIB)).shape == (MIB,)


def test_a_mebibyte_of_kept_batches_costs_no_file_descriptors():
    arena = Arena()
    before = descriptors()
    kept = [arena.sent(torch.full((300,), n)) for n in range(500)]
    kept += [arena.sent(torch.full((3000,), n)) for n in range(500)]
    assert descriptors() == before
    assert all((batch == n % 500).all() for n, batch in enumerate(kept))


def test_views_outlive_both_sides():
    arena = Arena()
    batch = arena.sent(LONG)
    arena.writer.close()
    del arena
    gc.collect()
    assert torch.equal(batch + 0, LONG)


class Event:
    """An event of a GPU that is reached when it is waited for."""

    def __init__(self, reached):
        self.reached = reached

    def query(self):
        return self.reached

    def synchronize(self):
        self.reached = True


class FakeCuda:
    def __init__(self, reached=True):
        self.reached, self.pinned = reached, []

    def pin(self, memory):
        self.pinned.append(ctypes.addressof(ctypes.c_char.from_buffer(memory)))

    def mark(self):
        return Event(self.reached)


def test_each_slot_is_pinned_once_and_its_memory_lives_as_long_as_views_of_it():
    cuda = FakeCuda()
    arena = Arena(cuda=cuda)
    first = arena.sent(LONG)
    second = arena.sent(LONG)
    assert cuda.pinned == [first.data_ptr(), second.data_ptr()]
    del first
    arena.sent(LONG)
    assert len(cuda.pinned) == 2


def test_a_slot_is_free_only_when_the_gpu_has_copied_it():
    reader = (arena := Arena(cuda=FakeCuda(reached=False))).reader
    arena.sent(LONG)
    assert reader.freed() == []
    assert reader.freed() == []
    assert reader.has_freed  # it waited for the copy
    assert reader.freed() == [0]
    assert not reader.has_freed


def test_a_batch_is_let_go_once_it_is_written():
    arena, batch = Arena(), [LONG.clone(), GRID.copy()]
    alive = weakref.ref(batch[0]), weakref.ref(batch[1])
    gc.disable()
    try:
        arena.writer.write(batch)
        del batch
        assert [ref() for ref in alive] == [None, None]
    finally:
        gc.enable()


def test_slots_in_use_are_counted():
    arena = Arena()
    kept = [arena.sent(LONG) for _ in range(3)]
    assert arena.reader.in_use == 3
    kept.clear()
    arena.reader.freed()
    assert arena.reader.in_use == 0


def megabyte(batch):
    return torch.full((MIB // 8,), batch[0]["number"])


LARGE = BatchSpec(of=samples(leaf("x", 100)), batch_size=1, collate=megabyte)


def test_a_user_who_keeps_batches_gets_an_error_and_lets_go_and_goes_on():
    expected = [batch[0].item() for batch in islice(worker_loader(LARGE, workers=0), 60)]
    loader = worker_loader(LARGE, start_method="fork", arena_bytes=8 * MIB, prefetch=2)
    stream, kept = iter(loader), []
    with pytest.raises(ArenaFullError, match="Do not keep batches"):
        deque(map(kept.append, stream), maxlen=0)
    given = [batch[0].item() for batch in kept]
    assert 8 <= len(kept) < 20
    state = loader.state_dict()
    with pytest.raises(ArenaFullError):
        next(stream)
    assert loader.state_dict() == state
    assert [batch[0].item() for batch in kept] == expected[: len(kept)]
    kept.clear()
    given += [batch[0].item() for batch in islice(loader, 60 - len(given))]
    assert given == expected
    loader.close()


def test_batches_on_their_way_do_not_make_the_arena_full():
    expected = [batch[0].item() for batch in islice(worker_loader(LARGE, workers=0), 40)]
    loader = worker_loader(LARGE, start_method="fork", arena_bytes=3 * MIB, prefetch=16)
    assert [batch[0].item() for batch in islice(loader, 40)] == expected
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert sum(len(batch) > 0 for batch in islice(loader, 10)) == 10
    loader.close()


def test_batches_in_reference_cycles_are_collected_before_the_arena_is_called_full():
    loader = worker_loader(LARGE, start_method="fork", arena_bytes=4 * MIB)
    gc.disable()
    try:
        for batch in islice(loader, 60):
            cycle = [batch]
            cycle.append(cycle)
    finally:
        gc.enable()
    loader.close()


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_descriptors_do_not_grow_with_batches_kept_or_not(count):
    loader = worker_loader(LARGE, start_method="fork", arena_bytes=1 << 30)
    stream, kept = iter(loader), []
    next(stream)
    before = descriptors()
    for n, batch in enumerate(islice(stream, count)):
        if n < 200:
            kept.append(batch)
    assert descriptors() <= before + 2
    kept.clear()
    loader.close()


def test_the_slot_of_a_batch_that_nobody_reads_is_freed_once():
    arena = Arena()
    arena.reader.expect(arena.writer.write(LONG))
    assert [arena.reader.freed(), arena.reader.freed()] == [[0], []]


@pytest.mark.parametrize("keeps", [True, False])
def test_the_slot_of_a_batch_is_freed_once_if_its_reading_was_interrupted(monkeypatch, keeps):
    arena, kept = Arena(), []

    def create(*facts):
        kept.append((facts[0], created(*facts)))
        raise KeyboardInterrupt

    created = FreeNotice.create
    monkeypatch.setattr(FreeNotice, "create", create)
    with pytest.raises(KeyboardInterrupt):
        arena.sent(LONG)
    if not keeps:  # as the traceback of an error does
        kept.clear()
    assert arena.reader.freed() == [0]
    monkeypatch.setattr(FreeNotice, "create", created)
    again = arena.sent(LONG)
    kept.clear()
    assert (arena.reader.freed(), same(again, LONG)) == ([], True)
