"""How a worker writes its batches into the arena, and waits for room."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any

from energy_data.core.profiler import SENDING, Profiler
from energy_data.loading.transport.arena import (
    ArenaFullError,
    ArenaWriter,
    BatchHandle,
    SlotAllocator,
)


class BatchSender:
    """Writes the batches of a worker to an arena, and lets their tensors be made there.

    `wait_for_room` waits until the trainer has freed slots; it returns False if the trainer has
    taken every batch, so that none will be freed before the user drops one.
    """

    def __init__(
        self, arena: ArenaWriter, wait_for_room: Callable[[], bool], profiler: Profiler
    ) -> None:
        self._arena, self._wait_for_room, self._profiler = arena, wait_for_room, profiler
        self._allocates = True

    def allocator(self) -> SlotAllocator | None:
        """Return what the tensors of the next batch are made with; None: ordinary memory."""
        return self._arena.allocator() if self._allocates else None

    def write(self, items: list[Any], allocator: SlotAllocator | None) -> BatchHandle:
        """Write the only batch of `items`, and remove it from the list.

        ArenaFullError if the user keeps too many batches.
        """
        handle = None
        try:
            handle = self._written(items[0], allocator)
        except ArenaFullError:
            if allocator is None or allocator.slot is None:
                raise
        # Not in the handler: the traceback of its error keeps the batch.
        if handle is None:  # the batch and its slot do not fit the arena together
            items[0] = pickle.loads(pickle.dumps(items[0]))  # noqa: S301 - a copy of our own
            assert allocator is not None
            allocator.close()
            handle = self._written(items[0], None)
        items.clear()
        if allocator is None or allocator.close() or handle.slot != allocator.slot:
            return handle
        # The task encoder keeps a view of its batch, which the trainer must not change.
        self._allocates = False
        return self._written(self._arena.read(handle), None)

    def _written(self, batch: Any, allocator: SlotAllocator | None) -> BatchHandle:
        while True:
            began = time.perf_counter()
            try:
                handle = self._arena.write(batch, allocator)
            except ArenaFullError:
                if not self._wait_for_room():
                    raise
            else:
                self._profiler.add(SENDING, time.perf_counter() - began)
                return handle
