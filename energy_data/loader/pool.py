"""Worker processes that run the lanes of a rank ahead of the trainer."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import time
from collections.abc import Sequence
from multiprocessing.util import Finalize
from typing import Any, Literal

from attrs import field, frozen

from energy_data.errors import EnergyDataError, SpecError
from energy_data.loader.arena import ArenaFullError, Parcel
from energy_data.loader.host import Host, Nodes, Step, Steps
from energy_data.loader.process import (
    StartMethod,
    WorkerGoneError,
    WorkerProcess,
    portable_run,
    prepare,
    stop,
)
from energy_data.loader.run import Run
from energy_data.loader.wire import Go, Message
from energy_data.meter import STARTING, Meter
from energy_data.node import State

log = logging.getLogger(__name__)


class WorkerError(EnergyDataError):
    """A worker failed for good: it died or hung again and again, or raised what cannot cross."""


@frozen(kw_only=True)
class PoolOptions:
    """How worker processes are run."""

    start_method: StartMethod = "forkserver"
    prefetch: int = 2  # batches each worker is ahead, at most
    arena_bytes: int = 4 << 30  # of shared memory per worker, at most
    timeout_s: float | None = 300.0  # a worker silent for so long is reported; None: wait for ever
    on_timeout: Literal["raise", "restart"] = "raise"
    max_restarts: int = 3  # at one micro-batch
    pin: Any = field(default=None, repr=False)  # called with the memory of each new slot

    def __attrs_post_init__(self) -> None:
        if self.start_method not in ("fork", "forkserver", "spawn"):
            raise SpecError(
                f"start_method: must be 'fork', 'forkserver' or 'spawn', got {self.start_method!r}."
            )
        if self.prefetch < 1:
            raise SpecError(f"prefetch: must be >= 1, got {self.prefetch}.")
        if self.on_timeout not in ("raise", "restart"):
            raise SpecError(f"on_timeout: must be 'raise' or 'restart', got {self.on_timeout!r}.")


class Pool(Host):
    """Runs lanes in worker processes; a worker has every so-manieth lane of the rank."""

    def __init__(self, run: Run[Any], options: PoolOptions) -> None:
        self.run, self.options = run, options
        self._portable: Run[Any] | bytes | None = None
        self._places: dict[int, State] = {}
        self._steps = Steps()
        self._num_lanes = 1
        self._owner: dict[int, int] = {}  # lane -> worker
        self._workers: dict[int, WorkerProcess] = {}
        self._stale: set[int] = set()  # workers that must be told where to begin
        # Worker -> micro-batch, times it died there.
        self._failures: dict[int, tuple[int, int]] = {}
        self._process = os.getpid()
        self._meter = Meter()
        prepare(options.start_method)  # imports while the trainer makes its model
        # Not `weakref.finalize`: at exit, multiprocessing waits for its children, and these end
        # when we say so. Its own finalizers run before it waits.
        Finalize(self, _stop_all, (self._workers, self._process), exitpriority=100)

    @property
    def meter(self) -> Meter:  # noqa: D102
        return self._meter

    @property
    def slots_in_use(self) -> int:  # noqa: D102
        return sum(worker.slots_in_use for worker in self._workers.values())

    def adopt(self, nodes: Nodes, num_lanes: int, batch: int) -> None:  # noqa: D102
        self._steps.clear()
        self._places = {lane: node.state_dict() for lane, node in nodes.items()}
        count = max(1, min(self.run.worker_config.num_workers, len(nodes)))
        self._owner = {lane: number % count for number, lane in enumerate(nodes)}
        self._num_lanes = num_lanes
        self._stale = set(self._owner.values())
        idle = [self._workers.pop(n) for n in list(self._workers) if n not in self._stale]
        if self._process == os.getpid():
            stop(idle)

    def keep(self, batch: int) -> None:  # noqa: D102
        self._steps.keep(batch)

    def states(self, batch: int) -> dict[int, State]:  # noqa: D102
        before = {step.lane: step.before for step in self._steps.since(batch)}
        return {**self._places, **before}

    def rewind(self, batch: int) -> None:  # noqa: D102
        nodes = self.run.build(self._places, self._num_lanes)
        for lane, node in nodes.items():
            node.load_state_dict(self._places[lane])
            node.rewind()
        self._steps.clear()
        self._places = {lane: node.state_dict() for lane, node in nodes.items()}
        self._stale = set(self._owner.values())

    def take(self, lane: int, batch: int) -> Sequence[Any]:  # noqa: D102
        if self._process != os.getpid():
            self._leave_to_parent()
        for step in self._steps.since(batch):
            self._stale.add(self._owner[step.lane])
            self._places[step.lane] = step.before
        number = self._owner[lane]
        while True:
            worker = self._ready(number, batch)
            try:
                message = worker.receive(self.options.timeout_s)
            except WorkerGoneError:
                self._restart(number, batch)
                continue
            except EnergyDataError:
                self._drop(number)
                raise
            self._charge(worker, message)
            if message is None:
                self._report_silence(number, batch)
                continue
            if message.kind == "full" and self._found_room(number):
                self._stale.add(number)
            elif message.kind != "end" or message.batch == batch:
                return self._handed_over(number, lane, batch, message)
            # Else a lane that had ended before this worker began says so again.

    def close(self) -> None:  # noqa: D102
        _stop_all(self._workers, self._process)
        self._stale = set(self._owner.values())

    def _leave_to_parent(self) -> None:
        """Forget workers we have only because this process was forked: they talk to our parent."""
        self._workers.clear()
        self._process = os.getpid()
        self._stale = set(self._owner.values())
        Finalize(self, _stop_all, (self._workers, self._process), exitpriority=100)

    def _ready(self, number: int, batch: int) -> WorkerProcess:
        """Return a worker that knows where to begin."""
        for other in sorted(self._stale):  # all of them at once: they start in parallel
            if other not in self._workers:
                self._workers[other] = self._start()
        while self._stale:
            other = min(self._stale)
            if other not in self._workers:
                self._workers[other] = self._start()
            try:
                self._tell(other, batch)
            except WorkerGoneError:
                self._restart(other, batch)
        return self._workers[number]

    def _start(self) -> WorkerProcess:
        options, began = self.options, time.perf_counter()
        if self._portable is None:
            self._portable = portable_run(self.run, options.start_method)
        worker = WorkerProcess(
            self._portable,
            start_method=options.start_method,
            prefetch=options.prefetch,
            arena_bytes=options.arena_bytes,
            siblings=self._workers.values(),
            pin=options.pin,
        )
        worker.starting_s = time.perf_counter() - began
        return worker

    def _tell(self, number: int, batch: int) -> None:
        died_at, _ = self._failures.get(number, (-1, 0))
        self._workers[number].begin(
            Go(
                batch=batch,
                stride=self.run.worker_config.world_size,
                num_lanes=self._num_lanes,
                places={n: self._places[n] for n, owner in self._owner.items() if owner == number},
                traced=died_at >= batch,
            )
        )
        self._stale.discard(number)

    def _charge(self, worker: WorkerProcess, message: Message | None) -> None:
        if worker.starting_s:
            self._meter.charge(STARTING, worker.starting_s)
            worker.starting_s = 0.0
        if message is not None and message.spent is not None:
            self._meter.add(message.spent)

    def _handed_over(self, number: int, lane: int, batch: int, message: Message) -> Sequence[Any]:
        assert message.batch == batch, f"worker {number} gave {message.batch}, {batch} was next"
        self._stale.add(number)  # until we are through: then whatever is raised loses no batch
        if message.kind in ("error", "full"):
            raise _raised(message, number)
        items = []
        if message.parcel is not None:
            items.append(_read(self._workers[number], message.parcel, number))
        self._failures.pop(number, None)
        self._steps.add(Step(batch, lane, self._places[lane]))
        self._places[lane] = message.state
        self._stale.discard(number)
        if message.kind == "end":
            raise StopIteration
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


def _read(worker: WorkerProcess, parcel: Parcel, number: int) -> Any:
    try:
        return worker.arena.read(parcel)
    except Exception as error:
        error.add_note(
            f"while taking a batch from worker {number}: it was pickled there, and cannot be made "
            f"again here"
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
        error.add_note(note)
    return error


def _stop_all(workers: dict[int, WorkerProcess], owner: int) -> None:
    """End the processes, if they are ours: a forked child of the trainer has them only by copy."""
    ours = list(workers.values())
    workers.clear()
    if os.getpid() == owner:
        stop(ours)
