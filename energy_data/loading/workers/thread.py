"""Worker threads that run the lanes of a rank ahead of the trainer, in its own process.

Each thread has its own copy of the dataset (specs, sources, task encoder), made by pickling, as a
process has. User functions of different threads therefore share only global variables.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from energy_data.core.profiler import SENDING
from energy_data.core.user_call import CALL
from energy_data.errors import add_note
from energy_data.loading.transport.device import with_tensors
from energy_data.loading.workers.protocol import (
    Ack,
    Message,
    Start,
    Worker,
    current_item,
    thread_stack,
)
from energy_data.loading.workers.worker import Prefetcher

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

log = logging.getLogger(__name__)

Pin: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class WorkerThread(Prefetcher, Worker):
    """One worker thread. Batches are handed over as they are."""

    catches = BaseException  # whatever would end the thread is for the trainer
    stop_s = 3.0  # a thread that works on a batch finishes it first

    def __init__(
        self, dataset: SavableDataset[Any] | bytes, number: int, *, prefetch: int, pin: Pin | None
    ) -> None:
        """Start the thread. dataset: from `portable_dataset`."""
        super().__init__(dataset, prefetch)
        self._number, self._pin = number, pin
        self._orders: SimpleQueue[Start | Ack | None] = SimpleQueue()
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._generation = 0
        name = f"energy_data worker {number}"
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    # ---- in the thread

    def run(self) -> None:
        """Make batches until the trainer hangs up."""
        CALL.in_worker_thread = True
        super().run()

    def has_order(self) -> bool:  # noqa: D102
        return not self._orders.empty()

    def next_order(self) -> Start | Ack | None:  # noqa: D102
        return self._orders.get()

    def send(self, message: Message) -> None:  # noqa: D102
        self._messages.put(message)

    def error(self, error: BaseException) -> Any:  # noqa: D102
        return error

    def packed(self, items: list[Any], allocator: Any) -> Any:  # noqa: D102
        if self._pin is not None:
            began = time.perf_counter()
            items[0] = with_tensors(items[0], self._pin)
            self.profiler.add(SENDING, time.perf_counter() - began)
        return items

    # ---- in the trainer

    def begin(self, start: Start) -> None:  # noqa: D102
        self._generation += 1
        self._orders.put(start._replace(generation=self._generation))

    def receive(self, timeout_s: float | None) -> Message | None:  # noqa: D102
        while True:
            try:
                message = self._messages.get(timeout=timeout_s)
            except Empty:
                return None
            self._orders.put(Ack(1, []))
            if message.generation == self._generation:
                return message

    def open(self, message: Message) -> list[Any]:  # noqa: D102
        if message.error is not None:
            assert isinstance(message.error, BaseException)
            add_note(message.error, f"in worker thread {self._number}, micro-batch {message.batch}")
            raise message.error
        items: list[Any] = message.content or []
        return items

    def ask(self) -> tuple[str, str]:  # noqa: D102
        frame = sys._current_frames().get(self._thread.ident or 0)
        return ("", "") if frame is None else (current_item(frame), thread_stack(frame))

    def hang_up(self) -> None:  # noqa: D102
        self._orders.put(None)

    def close(self, grace_s: float = 0) -> None:  # noqa: D102
        self.hang_up()
        if self._thread is threading.current_thread():  # which collects a forgotten pool
            return
        self._thread.join(grace_s)
        if self._thread.is_alive():
            log.warning("%s is still at work, and ends after its batch", self._thread.name)
