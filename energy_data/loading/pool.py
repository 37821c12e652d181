"""Worker processes that run the lanes of a rank ahead of the trainer."""

from __future__ import annotations

import gc
import logging
import os
import pickle
from collections.abc import Iterable
from multiprocessing.util import Finalize
from typing import Any

from energy_data.core.profiler import STARTING
from energy_data.errors import EnergyDataError, add_note
from energy_data.loading.crew import Crew, PoolOptions, WorkerError
from energy_data.loading.process import (
    WorkerGoneError,
    WorkerProcess,
    stop,
)
from energy_data.loading.run import Run
from energy_data.loading.start import ProcessMethod, portable_run, prepare
from energy_data.loading.transport.arena import ArenaFullError, BatchHandle
from energy_data.loading.wire import Go, Message

log = logging.getLogger(__name__)


class Pool(Crew[WorkerProcess, Message]):
    """Runs lanes in worker processes."""

    def __init__(self, run: Run[Any], options: PoolOptions) -> None:
        super().__init__(run, options)
        # Worker -> micro-batch, times it died there.
        self._failures: dict[int, tuple[int, int]] = {}
        prepare(self._method)  # imports while the trainer makes its model
        self._end_with_us()

    @property
    def _method(self) -> ProcessMethod:
        method = self.options.start_method
        assert method != "thread", "threads are no processes"
        return method

    def _end_with_us(self) -> None:
        # Not `weakref.finalize`: at exit, multiprocessing waits for its children, and these end
        # when we say so. Its own finalizers run before it waits.
        Finalize(self, _stop_all, (self._workers, self._process), exitpriority=100)

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        self._end_with_us()

    def _stop(self, workers: Iterable[WorkerProcess]) -> None:
        stop(workers)

    def _start(self, number: int) -> WorkerProcess:
        options = self.options
        if self._portable is None:
            self._portable = portable_run(self.run, self._method)
        return WorkerProcess(
            self._portable,
            start_method=self._method,
            prefetch=options.prefetch,
            arena_bytes=options.arena_bytes,
            pin=options.pin,
        )

    def _begin(self, number: int, go: Go) -> bool:
        died_at, _ = self._failures.get(number, (-1, 0))
        try:
            self._workers[number].begin(go._replace(traced=died_at >= go.batch))
        except WorkerGoneError:
            self._restart(number, go.batch)
            return False
        return True

    def _receive(self, number: int, batch: int) -> Message | None:
        worker = self._workers[number]
        try:
            message = worker.receive(self.options.timeout_s)
        except WorkerGoneError:
            self._restart(number, batch)
            return None
        except EnergyDataError:
            self._drop(number)
            raise
        if worker.starting_s:
            self._profiler.add(STARTING, worker.starting_s)
            worker.starting_s = 0.0
        if message is None:
            self._report_silence(number, batch)
        elif message.kind == "full" and self._found_room(number):
            return None
        return message

    def _open(self, number: int, message: Message) -> list[Any]:
        if message.kind in ("error", "full"):
            raise _raised(message, number)
        items = []
        if message.parcel is not None:
            items.append(_read(self._workers[number], message.parcel, number))
        self._failures.pop(number, None)
        return items

    def _found_room(self, number: int) -> bool:
        """Return whether batches in reference cycles were all that filled the arena of a worker."""
        gc.collect()
        return self._workers[number].arena.has_freed

    def _report_silence(self, number: int, batch: int) -> None:
        """Raise, or restart the worker, with the sample and the place in the code it is at."""
        worker = self._workers[number]
        sample, stack = worker.ask()
        what = (
            f"gave nothing for {self.options.timeout_s:g} s at micro-batch {batch}, working on "
            f"{sample or 'a sample it did not name'}\n{stack}"
        )
        if self.options.on_timeout == "raise":
            self._drop(number)
            raise WorkerError(
                f"worker {number}: it {what}\nTake the sample out, or give it more time: timeout_s."
            )
        self._count(number, batch, what)

    def _restart(self, number: int, batch: int) -> None:
        """Put a new process in the place of one that is gone, at the last batch handed over."""
        worker = self._workers[number]
        if worker.interrupted:  # by an exception in this process: it is not the worker's fault
            self._drop(number)
            return
        try:
            worker.check_start()
        except EnergyDataError:
            self._drop(number)
            raise
        fate, sample, words = worker.fate(), worker.status(), worker.last_words()
        named = f", working on {sample}" if sample else ""
        self._count(number, batch, f"{fate}{named}" + (f"\n{words}" if words else ""))

    def _count(self, number: int, batch: int, what: str) -> None:
        """Count a failure. WorkerError if there are too many at this micro-batch."""
        self._drop(number)
        died_at, times = self._failures.get(number, (batch, 0))
        times = times + 1 if died_at == batch else 1
        self._failures[number] = batch, times
        if times > self.options.max_restarts:
            del self._failures[number]
            raise WorkerError(
                f"worker {number}: it failed {times} times at micro-batch {batch}; the last time "
                f"it {what}\nTake the sample out, or look at what the task encoder does to it."
            )
        log.warning("worker %d %s, at micro-batch %d; starting it again", number, what, batch)

    def _drop(self, number: int) -> None:
        """End a worker; another one begins where it was."""
        self._stale.add(number)
        self._workers.pop(number).close()


def _read(worker: WorkerProcess, parcel: BatchHandle, number: int) -> Any:
    try:
        return worker.arena.read(parcel)
    except Exception as error:
        add_note(
            error,
            f"while taking a batch from worker {number}: it was pickled there, and cannot be made "
            f"again here",
        )
        raise


def _raised(message: Message, number: int) -> Exception:
    """Return the worker's exception, as we raise it."""
    assert message.error is not None
    pickled, text = message.error
    note = f"in worker {number}, micro-batch {message.batch}:\n{text}"
    if pickled is None:
        return WorkerError(note)
    try:
        error: Exception = pickle.loads(pickled)  # noqa: S301 - pickled by our own worker
    except Exception:  # noqa: BLE001 - its class is not here; the text says what it was
        return WorkerError(note)
    if not isinstance(error, ArenaFullError):
        add_note(error, note)
    return error


def _stop_all(workers: dict[int, WorkerProcess], owner: int) -> None:
    """End the processes, if they are ours: a forked child of the trainer has them only by copy."""
    ours = list(workers.values())
    workers.clear()
    if os.getpid() == owner:
        stop(ours)
