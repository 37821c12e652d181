"""The trainer's side of one worker process: start it, exchange messages, notice when it is gone."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import select
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from copy import copy
from io import FileIO
from multiprocessing import forkserver
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from attrs import evolve

from energy_data.core.processes import without_main
from energy_data.errors import EnergyDataError, SpecError, add_note
from energy_data.loading.transport.arena import ArenaFullError, ArenaReader
from energy_data.loading.workers.protocol import (
    Channel,
    Message,
    Start,
    StartMethod,
    Worker,
    WorkerError,
    process_stacks,
    read_report,
)
from energy_data.loading.workers.worker import ADVICE, BLOCKED_SIGNALS, Setup, main

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset
    from energy_data.loading.transport.device import Cuda

_STOP_S = 1.0  # seconds workers have to end by themselves
_KILL_S = 5.0  # seconds the kernel has to end a killed process; one stuck in the kernel stays
_ANSWER_S = 1.0  # seconds a worker has to answer at which sample it is
_SERVER_GONE = 255  # exit code in multiprocessing of all children of a dead fork server
_NAME = "energy_data worker"
_UNGUARDED = 78  # exit code of a worker whose `__main__` starts workers

_START_LOCK = threading.Lock()


def portable_dataset(
    dataset: SavableDataset[Any], start_method: StartMethod
) -> SavableDataset[Any] | bytes:
    """Return a dataset as a worker gets it. SpecError if it cannot be sent."""
    if start_method == "fork":
        return dataset
    lean = copy(dataset)  # `replace` would check and warn again
    config = evolve(dataset.worker_config, data_parallel_group=None)  # it stays in the trainer
    object.__setattr__(lean, "worker_config", config)
    try:
        return pickle.dumps(lean)
    except Exception as error:
        raise SpecError(
            f"worker: the dataset cannot be sent to a worker process ({error}). {ADVICE}"
        ) from error


def prepare(start_method: StartMethod) -> None:
    """Begin to start the fork server, where one is used. Does not wait for it; idempotent."""
    if start_method == "forkserver" and not _imports_main():
        with _START_LOCK, contextlib.suppress(ChildProcessError):  # `_start` reports it
            forkserver.set_forkserver_preload([main.__module__, "energy_data.public"])
            forkserver.ensure_running()


class WorkerProcess(Worker):
    """One worker process and the memory that it shares with the trainer."""

    stop_s = 1.0

    def __init__(
        self,
        dataset: SavableDataset[Any] | bytes,
        number: int,
        *,
        start_method: StartMethod,
        prefetch: int,
        arena_bytes: int,
        cuda: Cuda | None = None,
    ) -> None:
        """Start the process; does not wait for it. dataset: from `portable_dataset`."""
        context: Any = multiprocessing.get_context(start_method)  # typeshed has no Process on it
        prepare(start_method)
        began = time.perf_counter()
        ours, theirs = context.Pipe()
        self._channel = Channel(ours)
        environ = dict(os.environ) if start_method == "forkserver" else None
        setup = Setup(dataset, theirs, prefetch, arena_bytes, os.getpid(), environ, _collects())
        self.process = context.Process(target=main, args=(setup,), daemon=True, name=_NAME)
        try:
            _start(self.process, setup, start_method)
        except BaseException:
            self._channel.close()
            raise
        # At exit, multiprocessing would wait for it; a fork of this process would, too, in vain.
        getattr(multiprocessing.process, "_children", set()).discard(self.process)
        self._events = select.poll()
        self._handle = _open_process(self.process.pid)
        self._events.register(self._sentinel, select.POLLIN)
        self._events.register(self._channel.fd, select.POLLIN)
        self._number, self._cuda = number, cuda
        # Until the worker sends them: its memory, and the file with its stacks.
        self._arena: ArenaReader | None = None
        self._stacks: FileIO | None = None
        _OPEN.add(self)
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
    def slots_in_use(self) -> int:  # type: ignore[override]  # of threads it is always 0
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
            message = Message.unpack(self._channel.receive())
            if message.content is not None:
                self.arena.expect(message.content)
            self._received += 1
            if message.generation == self._generation:
                return message

    def open(self, message: Message) -> list[Any]:  # noqa: D102
        if message.kind in ("error", "full"):
            raise _error_of(message, self._number)
        if message.content is None:
            return []
        try:
            return [self.arena.read(message.content)]
        except Exception as error:
            add_note(error, f"while unpickling a batch of worker {self._number} in the trainer")
            raise

    def has_freed(self) -> bool:
        """Return whether slots are free after garbage collection, and copies to the GPU."""
        gc.collect()
        return self.arena.has_freed

    def fate(self) -> str:
        """Return how the process ended, with its last sample and stacks.

        EnergyDataError if it ended by itself before it was a worker.
        """
        code = self._exit_code()
        if self._arena is None and code is not None and 0 <= code != _SERVER_GONE:
            problem = f"it ended while starting, exit code {code}. Its own message is above."
            if code == _UNGUARDED:
                problem = (
                    "it imports the script for its functions and classes, and the script starts "
                    'workers again. Put the code that does under `if __name__ == "__main__":`, or '
                    "move the functions and classes into a module."
                )
            raise EnergyDataError(f"worker: {problem}") from None
        if code is None:
            fate = "ended" if self.has_ended() else "closed its connection"
        elif code >= 0:
            fate = f"ended with exit code {code}"
        else:
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            fate = f"was killed by {_signal_name(-code)}{hint}"
        sample = read_report(self._arena.first_page).reported if self._arena else ""
        stacks = self._last_stacks()
        named = f", working on {sample}" if sample else ""
        return f"{fate}{named}" + (f"\n{stacks}" if stacks else "")

    def _exit_code(self) -> int | None:
        """Return the exit code; None if the process does not end soon, or it is unknown."""
        if self.has_ended(_STOP_S):
            self.process.join(_STOP_S)  # the fork server sees the end of its children after us
        code: int | None = self.process.exitcode
        return code

    def has_ended(self, timeout_s: float = 0) -> bool:
        """Return whether the process has ended, or does within the time."""
        return self._is_closed or bool(wait([self._sentinel], timeout_s))

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
                return report.reported, self._last_stacks()
            time.sleep(0.01)
        return report.answered or report.reported, self._last_stacks()

    def _last_stacks(self) -> str:
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
        """A descriptor that becomes readable when the process ends.

        That of multiprocessing also does when the fork server ends, which workers outlive.
        """
        sentinel: int = self.process.sentinel
        return sentinel if self._handle is None else self._handle.fileno()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle.fileno(), number)
            elif self.process.pid is not None and not self.has_ended():
                os.kill(self.process.pid, number)

    def _receive_arena(self, timeout_s: float | None) -> bool:
        """Receive the worker's memory, which it sends first; false if it does not in time."""
        began = time.perf_counter()
        ready = self._wait(timeout_s)
        self.starting_s += time.perf_counter() - began
        if not ready:
            return False
        memory, self._stacks = self._channel.receive_files(2)
        with memory:
            self._arena = ArenaReader(memory.fileno(), self._cuda)
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
            self._channel.send((self._received, freed))
            self._received = 0


def _leave_to_parent() -> None:
    """In a forked child, close its copies of the files of workers."""
    for worker in list(_OPEN):
        worker.close_files()


_OPEN: WeakSet[WorkerProcess] = WeakSet()  # in this process
os.register_at_fork(after_in_child=_leave_to_parent)


def _open_process(process: int) -> FileIO | None:
    """Return a handle that never refers to another process; None if there is no such thing."""
    try:
        return FileIO(os.pidfd_open(process))
    except OSError:  # a kernel without it; or the process has ended, and was waited for
        return None


def _collects() -> bool:
    """Return whether this process collects garbage."""
    with _START_LOCK:  # `_starting` disables it for a moment
        return gc.isenabled()


def _imports_main() -> str:
    """Return the name of this process if it is new and imports its `__main__`, else empty."""
    process = multiprocessing.current_process()
    return process.name if getattr(process, "_inheriting", False) else ""


def _start(process: Any, setup: Setup, start_method: StartMethod) -> None:
    """Start a process, and close our copy of its end of the connection.

    EnergyDataError if this process cannot start one by this method. If it is a worker that imports
    its `__main__`, it ends: the trainer reports that the script needs a guard.
    """
    if start_method != "fork" and _imports_main() == _NAME:
        os._exit(_UNGUARDED)
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
def _starting(start_method: StartMethod, dataset: SavableDataset[Any] | bytes) -> Iterator[None]:
    """Prepare this process for the start of another.

    The child imports the user's `__main__` only if something in the dataset comes from there, so a
    script usually needs no `if __name__ == "__main__":`.
    """
    needs_main = not isinstance(dataset, bytes) or b"_main__" in dataset  # also `__mp_main__`
    mask: Iterable[int] = ()
    if start_method != "forkserver":  # its children inherit the signals of the server, not ours
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED_SIGNALS)
    collects = gc.isenabled()
    gc.disable()  # a forked child must not collect objects of the parent, see `worker.main`
    try:
        with contextlib.nullcontext() if needs_main else without_main():
            yield
    finally:
        if collects:
            gc.enable()
        if start_method != "forkserver":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
