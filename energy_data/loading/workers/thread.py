"""Worker threads that run the lanes of a rank ahead of the trainer, in its own process.

Each thread has its own copy of the dataset (specs, sources, task encoder), made by pickling, as a
process has. User functions of different threads therefore share only global variables.
"""

from __future__ import annotations

import atexit
import logging
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from energy_data.core.cursor import save
from energy_data.core.profiler import SENDING, STARTING
from energy_data.core.user_call import CALL
from energy_data.errors import SpecError, add_note
from energy_data.loading.lanes import Nodes
from energy_data.loading.transport.device import with_tensors
from energy_data.loading.workers.pool import PoolOptions, WorkerError, WorkerPool
from energy_data.loading.workers.prefetcher import Prefetcher
from energy_data.loading.workers.process import portable_dataset
from energy_data.loading.workers.protocol import Ack, Message, Start
from energy_data.loading.workers.watchdog import current_item, thread_stack

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

log = logging.getLogger(__name__)

_STOP_S = 3.0  # seconds threads have to end; one that works on a batch finishes it first

Pin: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


class ThreadPool(WorkerPool["WorkerThread"]):
    """Runs lanes in threads of this process."""

    def __init__(self, dataset: SavableDataset[Any], options: PoolOptions) -> None:
        super().__init__(dataset, options)
        # A pool that is forgotten ends its threads. Any thread may do that, so it does not wait.
        weakref.finalize(self, _dismiss, self._workers).atexit = False

    def _start(self, number: int) -> WorkerThread:
        if self._portable is None:
            self._portable = portable_dataset(self.dataset, "spawn")
        assert isinstance(self._portable, bytes)
        pin = self.options.pin and self.options.pin()
        return WorkerThread(self._portable, number, self.options.prefetch, pin)

    def _begin(self, number: int, start: Start) -> bool:
        self._workers[number].begin(start)
        return True

    def _receive(self, number: int, batch: int) -> Message:
        worker = self._workers[number]
        message = worker.receive(self.options.timeout_s)
        if message is not None:
            return message
        sample, stack = worker.ask()
        worker.dismiss()
        self._stale.add(number)
        del self._workers[number]
        raise WorkerError(
            f"worker {number}: it gave nothing for {self.options.timeout_s:g} s at micro-batch "
            f"{batch}, working on {sample or 'an unknown sample'}\n{stack}\nRemove the sample, or "
            f"raise timeout_s. The thread cannot be ended, and goes on."
        )

    def _open(self, number: int, message: Message) -> list[Any]:
        if message.error is not None:
            assert isinstance(message.error, BaseException)
            add_note(message.error, f"in worker thread {number}, micro-batch {message.batch}")
            raise message.error
        items: list[Any] = message.content or []
        return items

    def _stop(self, workers: Iterable[WorkerThread]) -> None:
        workers = list(workers)
        for worker in workers:
            worker.dismiss()
        _join(workers)


class _ThreadPrefetcher(Prefetcher):
    """The work of a worker thread. Batches are handed over as they are."""

    catches = BaseException  # whatever would end the thread is for the trainer

    def __init__(self, dataset: bytes, prefetch: int, pin: Pin | None) -> None:
        super().__init__(prefetch)
        self.orders: SimpleQueue[Start | Ack | None] = SimpleQueue()
        self.messages: SimpleQueue[Message] = SimpleQueue()
        self._packed, self._pin = dataset, pin
        self._dataset: SavableDataset[Any] | None = None

    def has_order(self) -> bool:
        return not self.orders.empty()

    def next_order(self) -> Start | Ack | None:
        return self.orders.get()

    def send(self, message: Message) -> None:
        self.messages.put(message)

    def error(self, error: BaseException) -> Any:
        return error

    def run(self) -> None:
        CALL.in_worker_thread = True
        super().run()

    def build(self, start: Start) -> Nodes:
        began = time.perf_counter()
        if self._dataset is None:
            self._dataset = _unpickled(self._packed)
        nodes = self._dataset.build(start.places, start.num_lanes, profiler=self.profiler)
        self.profiler.add(STARTING, time.perf_counter() - began)
        return nodes

    def make(self, lane: int) -> Message:
        node = self.nodes[lane]
        CALL.batch = self.batch
        try:
            items = list(node.take(1))
        except StopIteration:
            self.living.discard(lane)
            return self.message("end", state=save(node))
        if items and self._pin is not None:
            began = time.perf_counter()
            items[0] = with_tensors(items[0], self._pin)
            self.profiler.add(SENDING, time.perf_counter() - began)
        return self.message("batch" if items else "skipped", items, save(node))


def _unpickled(packed: bytes) -> SavableDataset[Any]:
    try:
        dataset: SavableDataset[Any] = pickle.loads(packed)  # noqa: S301 - pickled by this process
    except Exception as error:
        raise SpecError(
            f"worker: each thread has its own dataset, and it cannot be made from its pickled form "
            f"({error}). Fix that, or use num_workers=0."
        ) from error
    return dataset


class WorkerThread(threading.Thread):
    """One worker thread."""

    slots_in_use = 0

    def __init__(self, dataset: bytes, number: int, prefetch: int, pin: Pin | None) -> None:
        """Start the thread."""
        super().__init__(name=f"energy_data worker {number}", daemon=True)
        self._prefetcher = _ThreadPrefetcher(dataset, prefetch, pin)
        self._generation = 0
        self.start()

    def run(self) -> None:
        """Make batches until the thread is dismissed."""
        self._prefetcher.run()

    def begin(self, start: Start) -> None:
        """Let the worker start at a position; what it has made until now is void."""
        self._generation += 1
        self._prefetcher.orders.put(start._replace(generation=self._generation))

    def receive(self, timeout_s: float | None) -> Message | None:
        """Return the next message; None if there is none in time."""
        while True:
            try:
                message = self._prefetcher.messages.get(timeout=timeout_s)
            except Empty:
                return None
            self._prefetcher.orders.put(Ack(1, []))
            if message.generation == self._generation:
                return message

    def ask(self) -> tuple[str, str]:
        """Return the current sample of the worker, and its stack."""
        frame = sys._current_frames().get(self.ident or 0)
        return ("", "") if frame is None else (current_item(frame), thread_stack(frame))

    def dismiss(self) -> None:
        """Let the thread end after its batch. Does not wait."""
        self._prefetcher.orders.put(None)


def _dismiss(workers: dict[int, WorkerThread]) -> None:
    for worker in list(workers.values()):
        worker.dismiss()


def _join(threads: Iterable[WorkerThread]) -> None:
    """Wait for dismissed threads to end. One that hangs is left alone, and named."""
    deadline = time.monotonic() + _STOP_S
    for thread in threads:
        if thread is threading.current_thread():
            continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            log.warning("%s is still at work, and ends after its batch", thread.name)


def _end_all() -> None:
    """End all threads at the exit of the interpreter, which would stop them anywhere."""
    threads = [thread for thread in threading.enumerate() if isinstance(thread, WorkerThread)]
    for thread in threads:
        thread.dismiss()
    _join(threads)


atexit.register(_end_all)
