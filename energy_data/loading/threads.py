"""Worker threads that run the lanes of a rank ahead of the trainer, in its own process.

Each has a run of its own (specs, sources, task encoder), made by pickling, as a worker process has;
so functions of the user share nothing that they do not share by a global name. Batches are handed
over as they are. Queues alone connect a worker with the trainer, and none of their calls can be
left half done by a signal handler that raises.
"""

from __future__ import annotations

import atexit
import logging
import pickle
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

import torch

from energy_data.core.profiler import SENDING, STARTING, Usage
from energy_data.core.user_call import CALL
from energy_data.errors import SpecError, add_note
from energy_data.loading.ahead import Ahead
from energy_data.loading.crew import Crew, PoolOptions, WorkerError
from energy_data.loading.lanes import Nodes
from energy_data.loading.run import Run
from energy_data.loading.start import portable_run
from energy_data.loading.status import at_work_on
from energy_data.loading.transport.device import with_tensors
from energy_data.loading.wire import Go

log = logging.getLogger(__name__)

_STOP_S = 3.0  # seconds threads have to end; one that works on a batch finishes it first


class Made(NamedTuple):
    """What a worker has to say about one micro-batch."""

    kind: str  # "batch", "left out", "end", "error"; "again": it was interrupted
    batch: int
    items: list[Any]
    state: Any = None  # of the lane, after this batch
    error: BaseException | None = None
    spent: Usage | None = None  # on what, since the last message that says so


class _Begin(NamedTuple):
    """Begin at a place, and put what is made there."""

    go: Go
    made: SimpleQueue[Made]


class _Taken(NamedTuple):
    """A message was taken."""


Pin: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
_Order: TypeAlias = _Begin | _Taken | None  # None: end


class Threads(Crew["WorkerThread", Made]):
    """Runs lanes in threads of this process."""

    def __init__(self, run: Run[Any], options: PoolOptions) -> None:
        super().__init__(run, options)
        # Whoever forgets us closes us. This may happen in any thread, so nobody is waited for.
        weakref.finalize(self, _dismiss, self._workers).atexit = False

    def _start(self, number: int) -> WorkerThread:
        if self._portable is None:
            self._portable = portable_run(self.run, "spawn")
        assert isinstance(self._portable, bytes)
        pin = self.options.pin and self.options.pin()
        return WorkerThread(self._portable, number, self.options.prefetch, pin)

    def _begin(self, number: int, go: Go) -> bool:
        self._workers[number].begin(go)
        return True

    def _receive(self, number: int, batch: int) -> Made | None:
        made = self._workers[number].receive(self.options.timeout_s)
        if made is None:
            self._report_silence(number, batch)
        elif made.kind == "again":
            return None
        return made

    def _open(self, number: int, message: Made) -> list[Any]:
        if message.error is not None:
            add_note(message.error, f"in worker thread {number}, micro-batch {message.batch}")
            raise message.error
        return message.items

    def _stop(self, workers: Iterable[WorkerThread]) -> None:
        _end([worker.dismissed() for worker in workers])

    def _report_silence(self, number: int, batch: int) -> None:
        what = f"gave nothing for {self.options.timeout_s:g} s at micro-batch {batch}"
        worker = self._workers.pop(number)
        self._stale.add(number)
        sample, stack = worker.ask()
        worker.dismissed()
        raise WorkerError(
            f"worker {number}: it {what}, working on {sample or 'a sample it did not name'}\n"
            f"{stack}\nTake the sample out, or give it more time: timeout_s. The thread cannot be "
            f"ended, and goes on."
        )


class WorkerThread:
    """One thread, as the trainer sees it."""

    slots_in_use = 0

    def __init__(self, run: bytes, number: int, prefetch: int, pin: Pin | None) -> None:
        """Make a worker; its thread starts with the first order."""
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._made: SimpleQueue[Made] = SimpleQueue()
        self._work = _Work(run, self._orders, prefetch, pin)
        self._name = f"energy_data worker {number}"
        self._started = False

    def begin(self, go: Go) -> None:
        """Tell it to begin at a place; what it made until now is void."""
        self._made = SimpleQueue()
        self._orders.put(_Begin(go, self._made))
        if not self._started:
            # Two, if a signal handler raises in here: the second finds that there is a first.
            _Thread(self._work, self._name).start()
            self._started = True

    def receive(self, timeout_s: float | None) -> Made | None:
        """Return what it made next; None if there is nothing in time."""
        try:
            made = self._made.get(timeout=timeout_s)
        except Empty:
            return None
        self._orders.put(_Taken())
        return made

    @property
    def ident(self) -> int | None:
        """The number of its thread; None before it has begun."""
        thread = self._work.thread
        return thread.ident if thread else None

    def ask(self) -> tuple[str, str]:
        """Return which sample it works on, and where in the code it is."""
        frame = sys._current_frames().get(self.ident or 0)
        if frame is None:
            return "", "It has not begun."
        return at_work_on(frame), _users_part(traceback.extract_stack(frame))

    def dismissed(self) -> _Thread | None:
        """Tell it to end, and who waits for it; return its thread, None if it has none.

        Takes no lock.
        """
        self._orders.put(None)
        self._made.put(Made("again", -1, []))
        return self._work.thread


class _Thread(threading.Thread):
    def __init__(self, work: _Work, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.work = work

    def run(self) -> None:
        if self.work.claim.acquire(blocking=False):
            self.work.thread = self
            self.work.run()


class _Work(Ahead[Made]):
    """What a thread does."""

    def __init__(
        self,
        run: bytes,
        orders: SimpleQueue[_Order],
        prefetch: int,
        pin: Pin | None,
    ) -> None:
        super().__init__()
        self.packed, self.orders, self.prefetch, self.pin = run, orders, prefetch, pin
        self.claim = threading.Lock()
        self.thread: _Thread | None = None
        self.facts: Run[Any] | None = None

    def run(self) -> None:
        """Make batches until told to end."""
        CALL.in_worker_thread = True
        while True:
            while self.waiting or self.ahead >= self.prefetch or not self.orders.empty():
                order = self.orders.get()
                if order is None:
                    return
                self.obey(order)
            go, batch, living = self.go, self.batch, set(self.living)
            try:
                self.produce()
            except BaseException as error:  # noqa: BLE001 - of what counts; the trainer's to raise
                self.failed(error, go._replace(batch=batch), living)

    def obey(self, order: _Begin | _Taken) -> None:
        if isinstance(order, _Taken):
            self.ahead -= 1
            return
        self.given, self.ahead, self.waiting = order.made, 0, False
        try:
            self.set_out(order.go, lambda: self.built(order.go))
        except BaseException as error:  # noqa: BLE001 - it is the trainer's to raise
            self.failed(error, order.go, set(order.go.places))

    def failed(self, error: BaseException, go: Go, lanes: set[int]) -> None:
        """Let the trainer have an error in the place of the next micro-batch of some lanes."""
        batch = go.batch
        while batch % go.num_lanes not in lanes:
            batch += go.stride
        self.given.put(Made("error", batch, [], error=error))
        self.waiting = True

    def built(self, go: Go) -> Nodes:
        began = time.perf_counter()
        if self.facts is None:
            self.facts = _unpacked(self.packed)
        nodes = self.facts.build(go.places, go.num_lanes, profiler=self.profiler)
        self.profiler.add(STARTING, time.perf_counter() - began)
        return nodes

    def hand_over(self, message: Made) -> None:
        self.given.put(message)

    def made(self, lane: int) -> Made:
        node = self.nodes[lane]
        CALL.batch = self.batch
        try:
            items = list(node.take(1))
            if items and self.pin is not None:
                began = time.perf_counter()
                items[0] = with_tensors(items[0], self.pin)
                self.profiler.add(SENDING, time.perf_counter() - began)
        except StopIteration:
            self.living.discard(lane)
            return Made("end", self.batch, [], node.state_dict())
        except BaseException as error:  # noqa: BLE001 - as above; what would end us, too
            return Made("error", self.batch, [], error=error)
        return Made("batch" if items else "left out", self.batch, items, node.state_dict())


def _unpacked(packed: bytes) -> Run[Any]:
    try:
        run: Run[Any] = pickle.loads(packed)  # noqa: S301 - pickled by this process
    except Exception as error:
        raise SpecError(
            f"worker: each thread has a dataset of its own, and what it gets cannot be made from "
            f"its pickled form ({error}). Mend that, or use num_workers=0."
        ) from error
    return run


def _users_part(stack: traceback.StackSummary) -> str:
    """Return where a thread is in the code, without what every worker has below it."""
    ours = [n for n, line in enumerate(stack) if line.filename == __file__]
    return "".join(traceback.format_list(stack[ours[-1] + 1 :] if ours else stack)).rstrip()


def _dismiss(workers: dict[int, WorkerThread]) -> None:
    """Tell threads to end that nobody will ask for anything."""
    for worker in list(workers.values()):
        worker.dismissed()
    workers.clear()


def _end(threads: Iterable[_Thread | None]) -> None:
    """Wait for threads to end that were told to. One that hangs is left to itself, and named."""
    deadline = time.monotonic() + _STOP_S
    for thread in threads:
        if thread is None or thread is threading.current_thread():
            continue
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            log.warning("%s is still at work, and ends when it is through", thread.name)


def _end_all() -> None:
    """End what is left at the exit of the interpreter, which would cut threads off anywhere."""
    threads = [thread for thread in threading.enumerate() if isinstance(thread, _Thread)]
    for thread in threads:
        thread.work.orders.put(None)
    _end(threads)


atexit.register(_end_all)
