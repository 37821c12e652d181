"""Workers that run the lanes of a rank ahead of the trainer, whatever they are.

Of each worker there is a place to begin at, and what it has made since. Both may be thrown away at
any time: a worker that begins again makes the same again.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, Generic, Literal, Protocol, TypeVar

from attrs import field, frozen

from energy_data.core.node import State
from energy_data.core.profiler import Profiler, Usage
from energy_data.errors import EnergyDataError, SpecError
from energy_data.loading.lanes import Host, Nodes, Step, Steps
from energy_data.loading.run import Run
from energy_data.loading.start import ProcessMethod
from energy_data.loading.wire import Go

StartMethod = ProcessMethod | Literal["thread"]


class WorkerError(EnergyDataError):
    """A worker failed for good: it died or hung again and again, or raised what cannot cross."""


@frozen(kw_only=True)
class PoolOptions:
    """How workers are run."""

    start_method: StartMethod = "forkserver"
    prefetch: int = 2  # batches each worker is ahead, at most
    arena_bytes: int = 4 << 30  # of shared memory per worker process, at most
    timeout_s: float | None = 300.0  # a worker silent for so long is reported; None: wait for ever
    on_timeout: Literal["raise", "restart"] = "raise"
    max_restarts: int = 3  # at one micro-batch
    # Called with the memory of each new slot; with threads, it returns what pins a tensor.
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


class Message(Protocol):
    """What a worker has to say about one micro-batch."""

    @property
    def kind(self) -> str:
        """What it is: "batch", "left out", "end" of the lane, or "error"."""

    @property
    def batch(self) -> int:
        """The number of the micro-batch in the run."""

    @property
    def state(self) -> Any:
        """The place of the lane after it."""

    @property
    def spent(self) -> Usage | None:
        """On what time was spent since the last message that says so."""


class Worker(Protocol):
    """One worker, as the trainer sees it."""

    @property
    def slots_in_use(self) -> int:
        """The number of batches in memory it shares with us that somebody looks at."""


W = TypeVar("W", bound=Worker)
M = TypeVar("M", bound=Message)


class Crew(Host, Generic[W, M]):
    """Runs lanes in workers; a worker has every so-manieth lane of the rank."""

    def __init__(self, run: Run[Any], options: PoolOptions) -> None:
        self.run, self.options = run, options
        self._portable: Run[Any] | bytes | None = None
        self._places: dict[int, State] = {}
        self._steps = Steps()
        self._num_lanes = 1
        self._owner: dict[int, int] = {}  # lane -> worker
        self._workers: dict[int, W] = {}
        self._stale: set[int] = set()  # workers that must be told where to begin
        self._process = os.getpid()
        self._closings = 0  # times it was closed
        self._profiler = Profiler()

    @abstractmethod
    def _start(self, number: int) -> W:
        """Return a new worker. Does not wait for it."""

    @abstractmethod
    def _begin(self, number: int, go: Go) -> bool:
        """Tell a worker where to begin; false if it is gone, and another must be started."""

    @abstractmethod
    def _receive(self, number: int, batch: int) -> M | None:
        """Return the next message of a worker; None if it must be told again where to begin."""

    @abstractmethod
    def _open(self, number: int, message: M) -> list[Any]:
        """Return the micro-batch in a message, nothing if it was left out; or raise its error."""

    @abstractmethod
    def _stop(self, workers: Iterable[W]) -> None:
        """End some workers, all at once."""

    @property
    def profiler(self) -> Profiler:  # noqa: D102
        return self._profiler

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
            self._stop(idle)

    def keep(self, batch: int) -> None:  # noqa: D102
        self._steps.keep(batch)

    def states(self, batch: int | None = None) -> dict[int, State]:  # noqa: D102
        before = {step.lane: step.before for step in self._steps.since(batch)}
        return {**self._places, **before}

    def take(self, lane: int, batch: int) -> Sequence[Any]:  # noqa: D102
        while True:
            closings = self._closings
            try:
                return self._taken(lane, batch)
            except Exception:
                if closings == self._closings:
                    raise
                # Closed in the middle of it, by a signal handler: whatever comes of that, the
                # micro-batch is made again, as after any other time.

    def _taken(self, lane: int, batch: int) -> Sequence[Any]:
        if self._process != os.getpid():
            self._leave_to_parent()
        for step in self._steps.since(batch):
            self._stale.add(self._owner[step.lane])
            self._places[step.lane] = step.before
        number = self._owner[lane]
        while True:
            if number not in self._workers:
                self._stale.add(number)
            self._ready(batch)
            self._stale.add(number)  # until we are through: then whatever is raised loses no batch
            message = self._receive(number, batch)
            if message is None:
                continue
            if message.spent is not None:
                self._profiler.merge(message.spent)
            if message.kind != "end" or message.batch == batch:
                return self._handed_over(number, lane, batch, message)
            self._stale.discard(number)  # a lane that had ended before it began says so again

    def close(self) -> None:  # noqa: D102
        self._closings += 1
        workers = [self._workers.pop(number) for number in list(self._workers)]
        self._closings += 1
        if self._process == os.getpid():
            self._stop(workers)
        self._stale = set(self._owner.values())

    def _leave_to_parent(self) -> None:
        """Forget workers we have only because this process was forked: they are our parent's."""
        self._workers.clear()
        self._process = os.getpid()
        self._stale = set(self._owner.values())

    def _ready(self, batch: int) -> None:
        """Tell all workers where to begin that do not know; none of them is waited for."""
        for other in sorted(self._stale):  # all of them at once: they start in parallel
            if other not in self._workers:
                self._workers[other] = self._start(other)
        while self._stale:
            other = min(self._stale)
            if other not in self._workers:
                self._workers[other] = self._start(other)
            places = {n: self._places[n] for n, owner in self._owner.items() if owner == other}
            stride = self.run.worker_config.world_size
            if self._begin(other, Go(batch, stride, self._num_lanes, places, traced=False)):
                self._stale.discard(other)

    def _handed_over(self, number: int, lane: int, batch: int, message: M) -> Sequence[Any]:
        assert message.batch == batch, f"worker {number} gave {message.batch}, {batch} was next"
        items = self._open(number, message)
        self._steps.add(Step(batch, lane, self._places[lane]))
        self._places[lane] = message.state
        self._stale.discard(number)
        if message.kind == "end":
            raise StopIteration
        return items
