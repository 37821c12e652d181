"""Worker processes that run the lanes of a rank ahead of the trainer."""

from __future__ import annotations

import logging
import os
import pickle
import weakref
from collections.abc import Sequence
from typing import Any, Literal

from attrs import field, frozen

from energy_data.errors import EnergyDataError, SpecError
from energy_data.loader.arena import ArenaFullError
from energy_data.loader.host import Host, Nodes
from energy_data.loader.process import StartMethod, WorkerGoneError, WorkerProcess
from energy_data.loader.run import Run
from energy_data.loader.worker import Go, Message
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
        self._places: dict[int, State] = {}
        self._num_lanes, self._batch = 1, 0
        self._owner: dict[int, int] = {}  # lane -> worker
        self._workers: dict[int, WorkerProcess] = {}
        self._generation = 0
        self._stale: set[int] = set()  # workers that must be told where to begin
        self._failures: dict[
            int, tuple[int, int]
        ] = {}  # worker -> micro-batch, times it died there
        self._finalizer = weakref.finalize(self, _stop_all, self._workers, os.getpid())

    def adopt(self, nodes: Nodes, num_lanes: int, batch: int) -> None:  # noqa: D102
        self._places = {lane: node.state_dict() for lane, node in nodes.items()}
        count = max(1, min(self.run.worker_config.num_workers, len(nodes)))
        self._owner = {lane: number % count for number, lane in enumerate(nodes)}
        self._num_lanes = num_lanes
        self._begin(batch)

    def states(self) -> dict[int, State]:  # noqa: D102
        return dict(self._places)

    def rewind(self, batch: int) -> None:  # noqa: D102
        nodes = self.run.build(self._places, self._num_lanes)
        for lane, node in nodes.items():
            node.load_state_dict(self._places[lane])
            node.rewind()
        self._places = {lane: node.state_dict() for lane, node in nodes.items()}
        self._begin(batch)

    def take(self, lane: int, batch: int) -> Sequence[Any]:  # noqa: D102
        number = self._owner[lane]
        while True:
            try:
                worker = self._ready(number, batch)
                message = worker.receive(self.options.timeout_s)
            except WorkerGoneError:
                self._restart(number, batch, self._workers[number].fate())
                continue
            if message is None:
                self._report_silence(number, batch)
            elif message.generation != self._generation:
                if message.parcel is not None:
                    worker.arena.discard(message.parcel)
            else:
                return self._handed_over(number, lane, batch, message)

    def close(self) -> None:  # noqa: D102
        _stop_all(self._workers, os.getpid())
        self._stale = set(self._owner.values())

    def _begin(self, batch: int) -> None:
        self._batch, self._generation = batch, self._generation + 1
        self._stale = set(self._owner.values())

    def _ready(self, number: int, batch: int) -> WorkerProcess:
        """Return a worker that knows where to begin."""
        for other in sorted(self._stale):  # all of them at once: they start in parallel
            if other not in self._workers:
                self._workers[other] = self._start()
            self._tell(other, batch)
        return self._workers[number]

    def _start(self) -> WorkerProcess:
        options = self.options
        return WorkerProcess(
            self.run,
            start_method=options.start_method,
            prefetch=options.prefetch,
            arena_bytes=options.arena_bytes,
            inherited=tuple(worker.connection for worker in self._workers.values()),
            pin=options.pin,
        )

    def _tell(self, number: int, batch: int) -> None:
        mine = {lane: self._places[lane] for lane, owner in self._owner.items() if owner == number}
        died_at, _ = self._failures.get(number, (-1, 0))
        self._workers[number].send(
            Go(
                generation=self._generation,
                batch=batch,
                stride=self.run.worker_config.world_size,
                num_lanes=self._num_lanes,
                places=mine,
                traced=died_at >= batch,
            )
        )
        self._stale.discard(number)

    def _handed_over(self, number: int, lane: int, batch: int, message: Message) -> Sequence[Any]:
        assert message.batch == batch, f"worker {number} gave {message.batch}, {batch} was next"
        if message.kind in ("error", "full"):
            self._stale.add(number)  # it waits: the batch is made again if it is asked for again
            self._generation += 1
            self._stale.update(self._owner.values())
            raise _raised(message, number)
        self._failures.pop(number, None)
        self._places[lane] = message.state
        if message.kind == "end":
            raise StopIteration
        if message.parcel is None:
            return []
        return [self._workers[number].arena.read(message.parcel)]

    def _report_silence(self, number: int, batch: int) -> None:
        """Raise, or restart the worker, with the sample and the place in the code it is at."""
        worker = self._workers[number]
        if worker.process.exitcode is not None:
            self._restart(number, batch, worker.fate())
            return
        stack = worker.stack()
        sample = worker.status() or "a sample it did not name"
        what = (
            f"gave nothing for {self.options.timeout_s:g} s at micro-batch {batch}, working on "
            f"{sample}\n{stack}"
        )
        if self.options.on_timeout == "raise":
            worker.close(kill=True)
            del self._workers[number]
            self._stale.add(number)
            raise WorkerError(
                f"worker {number}: it {what}\nTake the sample out, or give it more time: timeout_s."
            )
        self._restart(number, batch, what)

    def _restart(self, number: int, batch: int, what: str) -> None:
        """Put a new process in the place of one that failed, at the last batch handed over."""
        worker = self._workers.pop(number)
        sample = worker.status()
        worker.close(kill=True)
        died_at, times = self._failures.get(number, (batch, 0))
        times = times + 1 if died_at == batch else 1
        self._failures[number] = batch, times
        named = f" The sample: {sample}." if sample else ""
        if times > self.options.max_restarts:
            del self._failures[number]
            self._stale.add(number)
            raise WorkerError(
                f"worker {number}: it failed {times} times at micro-batch {batch}, the last time "
                f"it {what}.{named} Take the sample out, or look at what the task encoder does to it."
            )
        log.warning(
            "worker %d %s at micro-batch %d;%s starting it again", number, what, batch, named
        )
        self._stale.add(number)


def _raised(message: Message, number: int) -> Exception:
    """Return the worker's exception, as we raise it."""
    assert message.error is not None
    pickled, text = message.error
    note = f"in worker {number}, micro-batch {message.batch}:\n{text}"
    if pickled is None:
        return WorkerError(note)
    error: Exception = pickle.loads(pickled)  # noqa: S301 - pickled by our own worker
    if isinstance(error, ArenaFullError):
        return error
    error.add_note(note)
    return error


def _stop_all(workers: dict[int, WorkerProcess], owner: int) -> None:
    """End the processes, if they are ours: a forked child of the trainer has them only by copy."""
    if os.getpid() == owner:
        for worker in workers.values():
            worker.connection.close()
        for worker in workers.values():
            worker.close()
    workers.clear()
