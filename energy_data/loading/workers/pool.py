"""Workers that run the lanes of a rank ahead of the trainer, and are started again if they die.

For each worker the pool keeps the states of its lanes after the last batch handed over. Everything
that a worker has made since may be lost: a worker that starts again makes the same batches.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Sequence
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from energy_data.core.cursor import State
from energy_data.core.profiler import STARTING, Profiler
from energy_data.core.recipe import check_whole
from energy_data.errors import EnergyDataError, SpecError
from energy_data.loading.lanes import Journal, LaneRunner, LanesStart, Taken
from energy_data.loading.workers.process import WorkerProcess, portable_dataset, prepare
from energy_data.loading.workers.protocol import (
    PEER_GONE,
    Message,
    Start,
    StartMethod,
    Worker,
    WorkerError,
)
from energy_data.loading.workers.thread import WorkerThread

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset
    from energy_data.loading.transport.device import Cuda

log = logging.getLogger(__name__)


@frozen(kw_only=True)
class PoolOptions:
    """How workers are run."""

    start_method: StartMethod = "forkserver"
    prefetch: int = 2  # batches each worker is ahead, at most
    arena_bytes: int = 4 << 30  # of shared memory per worker process, at most
    timeout_s: float | None = 300.0  # a worker silent for longer is reported; None: wait forever
    start_timeout_s: float | None = None  # until a worker's first message; None: as `timeout_s`
    fail_on_timeout: bool = True  # False: the process is replaced; threads cannot be
    max_restarts: int = 3  # at one micro-batch
    cuda: Cuda | None = field(default=None, repr=False)  # pins batches; None: they are not pinned

    def __attrs_post_init__(self) -> None:
        if self.start_method not in ("fork", "forkserver", "spawn", "thread"):
            raise SpecError(
                f"start_method: must be 'fork', 'forkserver', 'spawn' or 'thread', got "
                f"{self.start_method!r}."
            )
        check_whole("prefetch_factor", self.prefetch, 1)
        check_whole("max_restarts", self.max_restarts, 0)
        check_whole("arena_bytes", self.arena_bytes, 1)
        for name, seconds in (("", self.timeout_s), ("initial_", self.start_timeout_s)):
            if seconds is not None and not seconds > 0:
                raise SpecError(
                    f"watchdog_{name}timeout_seconds: must be a number > 0 or None, got "
                    f"{seconds!r}."
                )


class WorkerPool(LaneRunner):
    """Runs lanes in workers; lane number n of the rank belongs to worker n mod the workers.

    An exception that interrupts `take` (KeyboardInterrupt) ends all workers. The next `take` starts
    them again from the states after the last batch handed over.
    """

    def __init__(self, dataset: SavableDataset[Any], options: PoolOptions) -> None:
        self.dataset, self.options = dataset, options
        self._portable: SavableDataset[Any] | bytes | None = None
        self._places: dict[int, State] = {}  # lane -> its state after the last batch handed over
        self._journal = Journal()
        self._began = LanesStart(0, 1, {}, {})
        self._owner: dict[int, int] = {}  # lane -> worker
        self._workers: dict[int, Worker] = {}
        self._stale: set[int] = set()  # workers that need a new start
        self._silent: set[int] = set()  # workers that have sent nothing yet
        self._failures: dict[int, tuple[int, int]] = {}  # worker -> micro-batch, failures at it
        self._process = os.getpid()
        self.profiler = Profiler()
        prepare(options.start_method)  # imports while the trainer makes its model
        self._stop_at_end()

    def _stop_at_end(self) -> None:
        # Not `weakref.finalize`: at exit, multiprocessing waits for its children, which end when we
        # close their connections. Its own finalizers run before it waits.
        Finalize(self, _stop_all, (self._workers,), exitpriority=100)

    @property
    def slots_in_use(self) -> int:  # noqa: D102
        return sum(worker.slots_in_use for worker in self._workers.values())

    def adopt(self, start: LanesStart) -> None:  # noqa: D102
        self._journal.clear()
        self._places, self._began = dict(start.places), start
        count = max(1, min(self.dataset.worker_config.num_workers, len(start.places)))
        self._owner = {lane: number % count for number, lane in enumerate(start.places)}
        self._stale = set(self._owner.values())
        idle = [self._workers.pop(n) for n in list(self._workers) if n not in self._stale]
        if self._process == os.getpid():
            stop(idle)

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
            stop(workers)

    def _leave_to_parent(self) -> None:
        """In a forked process, forget the workers: they belong to the parent."""
        self._workers.clear()
        self._process = os.getpid()
        self._stale = set(self._owner.values())
        self._stop_at_end()

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
        stride = self.dataset.worker_config.world_size
        while self._stale:
            number = min(self._stale)
            if number not in self._workers:
                self._workers[number] = self._start(number)
            places = {n: self._places[n] for n, owner in self._owner.items() if owner == number}
            traced = self._failures.get(number, (-1, 0))[0] >= batch
            lanes = self._began._replace(batch=batch, places=places)
            try:
                self._workers[number].begin(Start(lanes, stride, traced))
            except PEER_GONE:
                self._replace(number, batch)
            else:
                self._stale.discard(number)

    def _start(self, number: int) -> Worker:
        """Return a new worker. Does not wait for it."""
        options, method = self.options, self.options.start_method
        self._silent.add(number)
        if self._portable is None:
            self._portable = portable_dataset(self.dataset, method)
        if method == "thread":
            pin = options.cuda.pinner() if options.cuda else None
            return WorkerThread(self._portable, number, prefetch=options.prefetch, pin=pin)
        return WorkerProcess(
            self._portable,
            number,
            start_method=method,
            prefetch=options.prefetch,
            arena_bytes=options.arena_bytes,
            cuda=options.cuda,
        )

    def _receive(self, number: int, batch: int) -> Message | None:
        """Return the next message of a worker; None if the worker needs a new start."""
        worker = self._workers[number]
        try:
            message = worker.receive(self._limit_s(number))
        except PEER_GONE:
            self._replace(number, batch)
            return None
        except EnergyDataError:
            self._drop(number)
            raise
        if worker.starting_s:
            self.profiler.add(STARTING, worker.starting_s)
            worker.starting_s = 0.0
        if message is None:
            self._report_silence(number, batch)
            return None
        self._silent.discard(number)
        if message.kind == "full" and worker.has_freed():
            return None
        return message

    def _hand_over(self, number: int, lane: int, batch: int, message: Message) -> Sequence[Any]:
        assert message.batch == batch, f"worker {number} gave {message.batch}, not {batch}"
        items = self._workers[number].open(message)
        self._failures.pop(number, None)
        self._journal.add(Taken(batch, lane, self._places[lane]))
        self._places[lane] = message.state
        self._stale.discard(number)
        if message.kind == "end":
            raise StopIteration
        return items

    def _limit_s(self, number: int) -> float | None:
        """Return how long a worker may be silent, in seconds."""
        first = self.options.start_timeout_s if number in self._silent else None
        return first or self.options.timeout_s

    def _report_silence(self, number: int, batch: int) -> None:
        """Raise, or replace the worker, with its current sample and stacks."""
        sample, stacks = self._workers[number].ask()
        self._drop(number)
        what = (
            f"gave nothing for {self._limit_s(number):g} s at micro-batch {batch}, working on "
            f"{sample or 'an unknown sample'}\n{stacks}"
        )
        if self.options.fail_on_timeout or self.options.start_method == "thread":
            raise WorkerError(f"worker {number}: it {what}\nRemove the sample, or raise timeout_s.")
        self._count_failure(number, batch, what)

    def _replace(self, number: int, batch: int) -> None:
        """Let a process that is gone be replaced, from the last batch handed over."""
        try:
            what = self._workers[number].fate()
        finally:
            self._drop(number)
        self._count_failure(number, batch, what)

    def _count_failure(self, number: int, batch: int, what: str) -> None:
        """Count a failure of a worker. WorkerError if there were too many at this batch."""
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


def stop(workers: Iterable[Worker]) -> None:
    """End some workers, all at once."""
    workers, begin = list(workers), time.monotonic()
    for worker in workers:
        worker.hang_up()
    for worker in workers:
        worker.close(max(0.0, begin + worker.stop_s - time.monotonic()))


def _stop_all(workers: dict[int, Worker]) -> None:
    stop(workers.values())
    workers.clear()
