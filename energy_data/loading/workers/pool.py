"""Workers that run the lanes of a rank ahead of the trainer, and are started again if they die.

For each worker the pool keeps the states of its lanes after the last batch handed over. Everything
that a worker has made since may be lost: a worker that starts again makes the same batches.
"""

from __future__ import annotations

import gc
import logging
import os
import pickle
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from attrs import field, frozen

from energy_data.core.cursor import State
from energy_data.core.profiler import STARTING, Profiler
from energy_data.errors import EnergyDataError, SpecError, add_note
from energy_data.loading.lanes import Journal, LaneRunner, Taken
from energy_data.loading.transport.arena import ArenaFullError
from energy_data.loading.workers.process import (
    ProcessMethod,
    WorkerProcess,
    portable_dataset,
    prepare,
    stop,
)
from energy_data.loading.workers.protocol import PEER_GONE, Message, Start

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

log = logging.getLogger(__name__)

StartMethod = ProcessMethod | Literal["thread"]


class WorkerError(EnergyDataError):
    """A worker failed for good: it died or hung repeatedly, or its error cannot be unpickled."""


@frozen(kw_only=True)
class PoolOptions:
    """How workers are run."""

    start_method: StartMethod = "forkserver"
    prefetch: int = 2  # batches each worker is ahead, at most
    arena_bytes: int = 4 << 30  # of shared memory per worker process, at most
    timeout_s: float | None = 300.0  # a worker silent for longer is reported; None: wait forever
    on_timeout: Literal["raise", "restart"] = "raise"
    max_restarts: int = 3  # at one micro-batch
    # Called with the memory of each new slot; for threads, it returns what pins a tensor.
    pin: Any = field(default=None, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.start_method not in ("fork", "forkserver", "spawn", "thread"):
            raise SpecError(
                f"start_method: must be 'fork', 'forkserver', 'spawn' or 'thread', got "
                f"{self.start_method!r}."
            )
        if self.prefetch < 1:
            raise SpecError(f"prefetch: must be >= 1, got {self.prefetch}.")
        if self.on_timeout not in ("raise", "restart"):
            raise SpecError(f"on_timeout: must be 'raise' or 'restart', got {self.on_timeout!r}.")
        if self.on_timeout == "restart" and self.start_method == "thread" and self.timeout_s:
            raise SpecError(
                "on_timeout: must be 'raise' with start_method='thread', got 'restart': a thread "
                "that hangs cannot be ended. Use worker processes, or timeout_s=None."
            )


class Worker(Protocol):
    """One worker, as the pool sees it."""

    @property
    def slots_in_use(self) -> int:
        """The number of live batches in memory that the worker shares with the trainer."""


W = TypeVar("W", bound=Worker)


class WorkerPool(LaneRunner, Generic[W]):
    """Runs lanes in workers; lane number n of the rank belongs to worker n mod the workers.

    An exception that interrupts `take` (KeyboardInterrupt) ends all workers. The next `take` starts
    them again from the states after the last batch handed over.
    """

    def __init__(self, dataset: SavableDataset[Any], options: PoolOptions) -> None:
        self.dataset, self.options = dataset, options
        self._portable: SavableDataset[Any] | bytes | None = None
        self._places: dict[int, State] = {}  # lane -> its state after the last batch handed over
        self._journal = Journal()
        self._num_lanes = 1
        self._owner: dict[int, int] = {}  # lane -> worker
        self._workers: dict[int, W] = {}
        self._stale: set[int] = set()  # workers that need a new start
        self._process = os.getpid()
        self.profiler = Profiler()

    @abstractmethod
    def _start(self, number: int) -> W:
        """Return a new worker. Does not wait for it."""

    @abstractmethod
    def _begin(self, number: int, start: Start) -> bool:
        """Let a worker start at a position; false if it is gone, and another must be started."""

    @abstractmethod
    def _receive(self, number: int, batch: int) -> Message | None:
        """Return the next message of a worker; None if the worker needs a new start."""

    @abstractmethod
    def _open(self, number: int, message: Message) -> list[Any]:
        """Return the micro-batch of a message, nothing if it was skipped; or raise its error."""

    @abstractmethod
    def _stop(self, workers: Iterable[W]) -> None:
        """End some workers, all at once."""

    @property
    def slots_in_use(self) -> int:  # noqa: D102
        return sum(worker.slots_in_use for worker in self._workers.values())

    def adopt(self, places: Mapping[int, State], num_lanes: int, batch: int) -> None:  # noqa: D102
        self._journal.clear()
        self._places = dict(places)
        count = max(1, min(self.dataset.worker_config.num_workers, len(places)))
        self._owner = {lane: number % count for number, lane in enumerate(places)}
        self._num_lanes = num_lanes
        self._stale = set(self._owner.values())
        idle = [self._workers.pop(n) for n in list(self._workers) if n not in self._stale]
        if self._process == os.getpid():
            self._stop(idle)

    def keep(self, batch: int) -> None:  # noqa: D102
        self._journal.keep(batch)

    def states(self, batch: int | None = None) -> dict[int, State]:  # noqa: D102
        before = {taken.lane: taken.before for taken in self._journal.since(batch)}
        return {**self._places, **before}

    def take(self, lane: int, batch: int) -> Sequence[Any]:  # noqa: D102
        if self._process != os.getpid():
            self._leave_to_parent()
        try:
            return self._take(lane, batch)
        except Exception:
            raise
        except BaseException:  # an interrupt, perhaps in the middle of a message
            self.close()
            raise

    def close(self) -> None:  # noqa: D102
        workers = [self._workers.pop(number) for number in list(self._workers)]
        self._stale = set(self._owner.values())
        if self._process == os.getpid():
            self._stop(workers)

    def _leave_to_parent(self) -> None:
        """In a forked process, forget the workers: they belong to the parent."""
        self._workers.clear()
        self._process = os.getpid()
        self._stale = set(self._owner.values())

    def _take(self, lane: int, batch: int) -> Sequence[Any]:
        for taken in self._journal.since(batch):  # the trainer did not get them
            self._stale.add(self._owner[taken.lane])
            self._places[taken.lane] = taken.before
        number = self._owner[lane]
        while True:
            if number not in self._workers:
                self._stale.add(number)
            self._begin_stale(batch)
            self._stale.add(number)  # if anything below raises, the worker makes the batch again
            message = self._receive(number, batch)
            if message is None:
                continue
            if message.usage is not None:
                self.profiler.merge(message.usage)
            if message.kind != "end" or message.batch == batch:
                return self._hand_over(number, lane, batch, message)
            self._stale.discard(number)  # a lane that had ended before the start reports it again

    def _begin_stale(self, batch: int) -> None:
        """Let all workers start that need it. Waits for none, so they start in parallel."""
        for number in sorted(self._stale):
            if number not in self._workers:
                self._workers[number] = self._start(number)
        while self._stale:
            number = min(self._stale)
            if number not in self._workers:
                self._workers[number] = self._start(number)
            places = {n: self._places[n] for n, owner in self._owner.items() if owner == number}
            stride = self.dataset.worker_config.world_size
            if self._begin(number, Start(batch, stride, self._num_lanes, places, traced=False)):
                self._stale.discard(number)

    def _hand_over(self, number: int, lane: int, batch: int, message: Message) -> Sequence[Any]:
        assert message.batch == batch, f"worker {number} gave {message.batch}, not {batch}"
        items = self._open(number, message)
        self._journal.add(Taken(batch, lane, self._places[lane]))
        self._places[lane] = message.state
        self._stale.discard(number)
        if message.kind == "end":
            raise StopIteration
        return items


class ProcessPool(WorkerPool[WorkerProcess]):
    """Runs lanes in worker processes."""

    def __init__(self, dataset: SavableDataset[Any], options: PoolOptions) -> None:
        super().__init__(dataset, options)
        # Worker -> micro-batch, failures at it.
        self._failures: dict[int, tuple[int, int]] = {}
        prepare(self._method)  # imports while the trainer makes its model
        self._stop_at_exit()

    @property
    def _method(self) -> ProcessMethod:
        method = self.options.start_method
        assert method != "thread", "threads are not processes"
        return method

    def _stop_at_exit(self) -> None:
        # Not `weakref.finalize`: at exit, multiprocessing waits for its children, which end when we
        # close their connections. Its own finalizers run before it waits.
        Finalize(self, _stop_all, (self._workers, self._process), exitpriority=100)

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        self._stop_at_exit()

    def _stop(self, workers: Iterable[WorkerProcess]) -> None:
        stop(workers)

    def _start(self, number: int) -> WorkerProcess:
        options = self.options
        if self._portable is None:
            self._portable = portable_dataset(self.dataset, self._method)
        return WorkerProcess(
            self._portable,
            start_method=self._method,
            prefetch=options.prefetch,
            arena_bytes=options.arena_bytes,
            pin=options.pin,
        )

    def _begin(self, number: int, start: Start) -> bool:
        failed_at, _ = self._failures.get(number, (-1, 0))
        try:
            self._workers[number].begin(start._replace(traced=failed_at >= start.batch))
        except PEER_GONE:
            self._restart(number, start.batch)
            return False
        return True

    def _receive(self, number: int, batch: int) -> Message | None:
        worker = self._workers[number]
        try:
            message = worker.receive(self.options.timeout_s)
        except PEER_GONE:
            self._restart(number, batch)
            return None
        except EnergyDataError:
            self._drop(number)
            raise
        if worker.starting_s:
            self.profiler.add(STARTING, worker.starting_s)
            worker.starting_s = 0.0
        if message is None:
            self._report_silence(number, batch)
        elif message.kind == "full" and self._found_room(number):
            return None
        return message

    def _open(self, number: int, message: Message) -> list[Any]:
        if message.kind in ("error", "full"):
            raise _error_of(message, number)
        items = []
        if message.content is not None:
            try:
                items.append(self._workers[number].arena.read(message.content))
            except Exception as error:
                add_note(error, f"while unpickling a batch of worker {number} in the trainer")
                raise
        self._failures.pop(number, None)
        return items

    def _found_room(self, number: int) -> bool:
        """Return whether the arena of a worker was full only of batches in reference cycles."""
        gc.collect()
        return self._workers[number].arena.has_freed

    def _report_silence(self, number: int, batch: int) -> None:
        """Raise, or restart the worker, with its current sample and stacks."""
        sample, stacks = self._workers[number].ask()
        what = (
            f"gave nothing for {self.options.timeout_s:g} s at micro-batch {batch}, working on "
            f"{sample or 'an unknown sample'}\n{stacks}"
        )
        if self.options.on_timeout == "raise":
            self._drop(number)
            raise WorkerError(f"worker {number}: it {what}\nRemove the sample, or raise timeout_s.")
        self._count_failure(number, batch, what)

    def _restart(self, number: int, batch: int) -> None:
        """Replace a process that is gone, from the last batch handed over."""
        worker = self._workers[number]
        try:
            worker.check_start()
        except EnergyDataError:
            self._drop(number)
            raise
        fate, sample, stacks = worker.fate(), worker.last_sample(), worker.last_stacks()
        named = f", working on {sample}" if sample else ""
        self._count_failure(number, batch, f"{fate}{named}" + (f"\n{stacks}" if stacks else ""))

    def _count_failure(self, number: int, batch: int, what: str) -> None:
        """Drop a worker that failed. WorkerError if there were too many failures at this batch."""
        self._drop(number)
        failed_at, times = self._failures.get(number, (batch, 0))
        times = times + 1 if failed_at == batch else 1
        self._failures[number] = batch, times
        if times > self.options.max_restarts:
            del self._failures[number]
            raise WorkerError(
                f"worker {number}: it failed {times} times at micro-batch {batch}; the last time "
                f"it {what}\nRemove the sample, or check what the task encoder does with it."
            )
        log.warning("worker %d %s, at micro-batch %d; starting it again", number, what, batch)

    def _drop(self, number: int) -> None:
        """End a worker; another one continues at its position."""
        self._stale.add(number)
        self._workers.pop(number).close()


def _error_of(message: Message, number: int) -> Exception:
    """Return the worker's error, as the trainer raises it."""
    assert isinstance(message.error, tuple)
    pickled, text = message.error
    note = f"in worker {number}, micro-batch {message.batch}:\n{text}"
    if pickled is None:
        return WorkerError(note)
    try:
        error: Exception = pickle.loads(pickled)  # noqa: S301 - pickled by our own worker
    except Exception:  # noqa: BLE001 - its class is not here; the text contains it
        return WorkerError(note)
    if not isinstance(error, ArenaFullError):
        add_note(error, note)
    return error


def _stop_all(workers: dict[int, WorkerProcess], owner: int) -> None:
    """End the processes, unless this is a forked child, which has only copies."""
    ours = list(workers.values())
    workers.clear()
    if os.getpid() == owner:
        stop(ours)
