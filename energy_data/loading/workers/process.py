"""The trainer's side of one worker process: start it, exchange messages, notice when it is gone."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from copy import copy
from io import FileIO
from multiprocessing import forkserver
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

from attrs import evolve

from energy_data.errors import EnergyDataError, SpecError
from energy_data.loading.transport.arena import ArenaReader
from energy_data.loading.workers.protocol import Ack, Channel, Message, Start
from energy_data.loading.workers.watchdog import process_stacks, read_report
from energy_data.loading.workers.worker import BLOCKED_SIGNALS, Setup, main

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

ProcessMethod = Literal["fork", "forkserver", "spawn"]

_STOP_S = 1.0  # seconds workers have to end by themselves
_KILL_S = 5.0  # seconds the kernel has to end a killed process; one stuck in the kernel stays
_START_S = 120.0  # seconds a new process has to import what it needs, if `timeout_s` is shorter
_ANSWER_S = 1.0  # seconds a worker has to answer at which sample it is
_SERVER_GONE = 255  # exit code in multiprocessing of all children of a dead fork server

_START_LOCK = threading.Lock()

_ADVICE = (
    "Define the functions and classes it uses in a module, not inside a function, as a lambda or "
    'in a notebook; or use start_method="fork", or num_workers=0.'
)


def portable_dataset(
    dataset: SavableDataset[Any], start_method: ProcessMethod
) -> SavableDataset[Any] | bytes:
    """Return a dataset as a worker gets it. SpecError if it cannot be sent."""
    if start_method == "fork":
        return dataset
    try:
        return pickle.dumps(_without_group(dataset))
    except Exception as error:
        raise SpecError(
            f"worker: the dataset cannot be sent to a worker process ({error}). {_ADVICE}"
        ) from error


def _without_group(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    """Return the dataset without its process group, which stays in the trainer."""
    if dataset.worker_config.data_parallel_group is None:
        return dataset
    lean = copy(dataset)  # `replace` would check and warn again
    object.__setattr__(
        lean, "worker_config", evolve(dataset.worker_config, data_parallel_group=None)
    )
    return lean


def prepare(start_method: ProcessMethod) -> None:
    """Begin to start the fork server, where one is used. Does not wait for it; idempotent."""
    if start_method == "forkserver":
        with _START_LOCK, contextlib.suppress(ChildProcessError):  # `_start` reports it
            forkserver.set_forkserver_preload(["energy_data.loading.workers.worker"])
            forkserver.ensure_running()


class WorkerProcess:
    """One worker process and the memory that it shares with the trainer.

    If the process has ended, sending and receiving raise one of `protocol.PEER_GONE`.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any] | bytes,
        *,
        start_method: ProcessMethod,
        prefetch: int,
        arena_bytes: int,
        pin: Any = None,
    ) -> None:
        """Start the process; does not wait for it. dataset: from `portable_dataset`."""
        context: Any = multiprocessing.get_context(start_method)  # typeshed has no Process on it
        prepare(start_method)
        began = time.perf_counter()
        ours, theirs = context.Pipe()
        self._channel = Channel(ours)
        self._handle: FileIO | None = None
        self._stacks: FileIO | None = None
        _OPEN.add(self)
        environ = dict(os.environ) if start_method == "forkserver" else None
        setup = Setup(dataset, theirs, prefetch, arena_bytes, os.getpid(), environ, _collects())
        self.process = context.Process(target=main, args=(setup,), daemon=True)
        try:
            _start(self.process, setup, start_method)
        except BaseException:
            self._channel.close()
            raise
        # At exit, multiprocessing would wait for it; a fork of this process would, too, in vain.
        getattr(multiprocessing.process, "_children", set()).discard(self.process)
        self._handle = _open_process(self.process.pid)
        self._events = select.poll()
        self._events.register(self._sentinel, select.POLLIN)
        self._events.register(ours.fileno(), select.POLLIN)
        self._pin = pin
        self._arena: ArenaReader | None = None  # until the worker sends it
        self._is_closed = False
        self._generation = 0
        self._received = 0  # messages since the last Ack
        # Seconds that the trainer waited for the process to start.
        self.starting_s = time.perf_counter() - began

    @property
    def arena(self) -> ArenaReader:
        """The memory of the worker, once it has sent a message."""
        assert self._arena is not None, "the worker has not sent its memory yet"
        return self._arena

    @property
    def slots_in_use(self) -> int:
        """The number of batches in the memory of the worker that are alive."""
        return self._arena.in_use if self._arena else 0

    def begin(self, start: Start) -> None:
        """Let the worker start at a position; what it has sent until now is void."""
        self._generation += 1
        self._acknowledge()
        self._channel.send_start(start._replace(generation=self._generation))

    def receive(self, timeout_s: float | None) -> Message | None:
        """Return the next message, None if there is none in time."""
        while True:
            if self._arena is None and not self._receive_arena(timeout_s):
                return None
            self._acknowledge()
            if not self._wait(timeout_s):
                return None
            message = self._channel.receive(Message)
            assert message is not None, "workers send no orders"
            if message.content is not None:
                self.arena.expect(message.content)
            self._received += 1
            if message.kind == "unfit":
                raise _unfit(message)
            if message.generation == self._generation:
                return message

    def check_start(self) -> None:
        """Raise EnergyDataError if the process ended by itself before it was a worker."""
        code = self._exit_code()
        if self._arena is None and code is not None and 0 <= code != _SERVER_GONE:
            raise EnergyDataError(
                f"worker: it ended while starting, exit code {code}. Its own message is above. If "
                f'the script has no `if __name__ == "__main__":`, put the code that starts '
                f"workers under one, or move the classes it uses into a module."
            )

    def fate(self) -> str:
        """Return how the process ended."""
        code = self._exit_code()
        if code is None:
            return "ended" if self.has_ended() else "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"was killed by {_signal_name(-code)}{hint}"

    def _exit_code(self) -> int | None:
        """Return the exit code; None if the process does not end soon, or it is unknown."""
        if self.has_ended(_STOP_S):
            self.process.join(_STOP_S)  # the fork server sees the end of its children after us
        code: int | None = self.process.exitcode
        return code

    def has_ended(self, timeout_s: float = 0) -> bool:
        """Return whether the process has ended, or does within the time."""
        if self._is_closed:
            return True
        ended = select.poll()
        ended.register(self._sentinel, select.POLLIN)
        return bool(ended.poll(timeout_s * 1000))

    def last_sample(self) -> str:
        """Return the last sample that the worker reported; may be empty."""
        return read_report(self._arena.first_page).reported if self._arena else ""

    def ask(self) -> tuple[str, str]:
        """Return the current sample of the worker, and its stacks, even if it hangs."""
        if self._arena is None or self._stacks is None:
            return "", ""
        os.ftruncate(self._stacks.fileno(), 0)
        self._stacks.seek(0)
        answers = read_report(self._arena.first_page).answers
        self._signal(signal.SIGUSR1)
        deadline = time.monotonic() + _ANSWER_S
        while (report := read_report(self._arena.first_page)).answers == answers:
            if time.monotonic() > deadline:
                return report.reported, self.last_stacks()
            time.sleep(0.01)
        return report.answered or report.reported, self.last_stacks()

    def last_stacks(self) -> str:
        """Return the stacks of a worker that crashed in C, or that was asked; else empty."""
        if self._stacks is None:
            return ""
        text = os.pread(self._stacks.fileno(), 1 << 14, 0).decode(errors="replace")
        return process_stacks(text)

    def hang_up(self) -> None:
        """Close the connection, which ends the worker after its batch."""
        self._channel.close()

    def close(self, grace_s: float = 0) -> None:
        """End the process; kill it after `grace_s`. Views of batches stay valid. Idempotent."""
        self.hang_up()
        if not self.has_ended(grace_s):
            self._signal(signal.SIGKILL)
        with contextlib.suppress(ValueError):  # closed before; or stuck in the kernel
            if self.has_ended(_KILL_S):
                self.process.join(_STOP_S)
            self.process.close()
        self._is_closed = True
        self.close_files()
        self._arena = self._stacks = None

    def close_files(self) -> None:
        """Close the files that this process has open for the worker."""
        _OPEN.discard(self)
        self.hang_up()
        for file in (self._handle, self._stacks):
            if file is not None:
                file.close()

    @property
    def _sentinel(self) -> int:
        """A descriptor that becomes readable when the process ends."""
        sentinel: int = self.process.sentinel
        return sentinel if self._handle is None else self._handle.fileno()

    def _receive_arena(self, timeout_s: float | None) -> bool:
        """Receive the worker's memory, which it sends first; false if it does not in time."""
        began = time.perf_counter()
        ready = self._wait(None if timeout_s is None else max(timeout_s, _START_S))
        self.starting_s += time.perf_counter() - began
        if not ready:
            return False
        memory, self._stacks = self._channel.receive_files(2)
        with memory:
            self._arena = ArenaReader(memory.fileno(), self._pin)
        return True

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a message. EOFError if the process has ended and there is none."""
        if self._channel.fd < 0:
            raise EOFError
        ready = dict(self._events.poll(None if timeout_s is None else timeout_s * 1000))
        if ready and self._channel.fd not in ready:
            raise EOFError
        return bool(ready)

    def _acknowledge(self) -> None:
        freed = self._arena.freed() if self._arena else []
        if freed or self._received:
            self._channel.send(Ack(self._received, freed))
            self._received = 0

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle.fileno(), number)
            elif self.process.pid is not None and not self.has_ended():
                os.kill(self.process.pid, number)


def _leave_to_parent() -> None:
    """In a forked child, close its copies of the files of workers."""
    for worker in list(_OPEN):
        worker.close_files()


_OPEN: WeakSet[WorkerProcess] = WeakSet()  # in this process
os.register_at_fork(after_in_child=_leave_to_parent)


def stop(workers: Iterable[WorkerProcess]) -> None:
    """End some processes, all at once; whichever does not end in time is killed."""
    workers = list(workers)
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + _STOP_S
    for worker in workers:
        worker.close(max(0.0, deadline - time.monotonic()))


def _collects() -> bool:
    """Return whether this process collects garbage."""
    with _START_LOCK:  # `_starting` disables it for a moment
        return gc.isenabled()


def _start(process: Any, setup: Setup, start_method: ProcessMethod) -> None:
    """Start a process, and close our copy of its end of the connection.

    EnergyDataError if this process cannot start one by this method.
    """
    try:
        with _START_LOCK, _starting(start_method, setup.dataset):
            process.start()
    except ChildProcessError as error:
        raise EnergyDataError(
            "worker: this process was forked from one that has a fork server, and cannot have "
            'one itself. Use start_method="fork" or "spawn".'
        ) from error
    finally:
        setup.connection.close()


@contextlib.contextmanager
def _starting(start_method: ProcessMethod, dataset: SavableDataset[Any] | bytes) -> Iterator[None]:
    """Prepare this process for the start of another.

    The child imports the user's `__main__` only if something in the dataset comes from there, so a
    script usually needs no `if __name__ == "__main__":`.
    """
    main_module = sys.modules["__main__"]
    if isinstance(dataset, bytes) and b"_main__" not in dataset:  # also `__mp_main__`
        sys.modules["__main__"] = ModuleType("__main__")
    mask: Iterable[int] = ()
    if start_method != "forkserver":  # its children inherit the signals of the server, not ours
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    collects = gc.isenabled()
    gc.disable()  # a forked child must not collect objects of the parent, see `worker.main`
    try:
        yield
    finally:
        if collects:
            gc.enable()
        if start_method != "forkserver":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.modules["__main__"] = main_module


def _unfit(message: Message) -> SpecError:
    assert isinstance(message.error, tuple)
    return SpecError(
        f"worker: the dataset arrived in the worker process, but cannot be made there. "
        f"{_ADVICE} In the worker:\n{message.error[1]}"
    )


def _open_process(process: int) -> FileIO | None:
    """Return a handle that never refers to another process; None if there is no such thing."""
    try:
        return FileIO(os.pidfd_open(process))
    except OSError:  # a kernel without it; or the process has ended, and was waited for
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
