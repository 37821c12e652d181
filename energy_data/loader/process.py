"""The trainer's side of one worker process: start it, talk to it, notice when it is gone."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import re
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from copy import copy
from multiprocessing import forkserver
from types import ModuleType
from typing import Any, Literal

from attrs import evolve

from energy_data.errors import EnergyDataError, SpecError
from energy_data.loader.arena import ArenaReader
from energy_data.loader.run import Run
from energy_data.loader.status import read_status
from energy_data.loader.wire import Go, Message, Taken, receive, receive_files, send, send_order
from energy_data.loader.worker import HELD_BACK, Setup, end_with, main

ProcessMethod = Literal["fork", "forkserver", "spawn"]

_STOP_S = 1.0  # seconds workers have to end by themselves
_KILL_S = 5.0  # seconds the kernel has to end one that was killed; one stuck in the kernel stays
_START_S = 120.0  # seconds a new process has to import what it needs, if `timeout_s` is shorter
_ANSWER_S = 1.0  # seconds a worker has to say at which sample it is
_SERVER_GONE = 255  # what multiprocessing says of all children of a fork server that is dead
_MAX_POLL_MS = (1 << 31) - 1
# Below it is how processes are started, and in a fork all that the trainer was doing.
_LAST_FRAME = re.compile(rf'\n  File "{re.escape(main.__code__.co_filename)}", line \d+ in main\n')
_START_LOCK = threading.Lock()


class WorkerGoneError(Exception):
    """The process has ended; not for users: it is started again."""


class WorkerProcess:
    """One worker process and the memory it shares with us."""

    def __init__(
        self,
        run: Run[Any] | bytes,
        *,
        start_method: ProcessMethod,
        prefetch: int,
        arena_bytes: int,
        siblings: Iterable[WorkerProcess] = (),
        pin: Any = None,
    ) -> None:
        """Start the process; does not wait for it. `run` is as `portable_run` returned it."""
        context: Any = multiprocessing.get_context(start_method)  # typeshed knows no Process on it
        prepare(start_method)
        self.connection, theirs = context.Pipe()
        others = [sibling.connection for sibling in siblings]
        setup = Setup(
            run,
            theirs,
            prefetch,
            arena_bytes,
            os.getpid(),
            (*others, self.connection) if start_method == "fork" else (),
            dict(os.environ) if start_method == "forkserver" else None,
            _collects(),
        )
        self.process = context.Process(target=main, args=(setup,), daemon=True)
        _start(self.process, setup, start_method)
        # At exit, multiprocessing would wait for it; so would a fork of this process, in vain.
        getattr(multiprocessing.process, "_children", set()).discard(self.process)
        self._handle = _open_process(self.process.pid)
        self._ended = select.poll()
        self._ended.register(self._watched, select.POLLIN)
        self._news = select.poll()
        self._news.register(self._watched, select.POLLIN)
        self._news.register(self.connection.fileno(), select.POLLIN)
        self._pin = pin
        self._arena: ArenaReader | None = None  # until it sends it
        self._stacks = -1
        self._generation = 0
        self._untold = 0  # messages taken since we last said so
        self.starting_s = 0.0  # that somebody waited for the process to be there
        self.interrupted = False  # in the middle of a message: what comes next makes no sense

    @property
    def arena(self) -> ArenaReader:
        """The memory of the worker, once it has sent a message."""
        assert self._arena is not None, "the worker has not sent its memory yet"
        return self._arena

    @property
    def slots_in_use(self) -> int:
        """The number of batches in the memory of the worker that somebody looks at."""
        return self._arena.in_use if self._arena else 0

    def begin(self, place: Go) -> None:
        """Tell the worker to begin at a place; what it sent until now is void."""
        self._generation += 1
        with self._whole():
            self._tell_taken()
            send_order(self.connection, place._replace(generation=self._generation))

    def receive(self, timeout_s: float | None) -> Message | None:
        """Return the next message, None if there is none in time. WorkerGoneError if it died."""
        while True:
            if self._arena is None and not self._met(timeout_s):
                return None
            with self._whole():
                self._tell_taken()
            if not self._wait(timeout_s):
                return None
            with self._whole():
                message: Message = receive(self.connection)
            self._untold += 1
            if message.kind == "unfit":
                raise _unfit(message)
            if message.generation == self._generation:
                return message
            if message.parcel is not None:
                self.arena.discard(message.parcel)

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
        """Return in words how the process ended."""
        code = self._exit_code()
        if code is None:
            return "ended" if self.has_ended() else "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return f"was killed by {_signal_name(-code)}{hint}"

    def _exit_code(self) -> int | None:
        """Return how the process ended; None if it does not soon, or nobody says so."""
        if self.has_ended(_STOP_S):
            self.process.join(_STOP_S)  # the fork server sees the end of its children after us
        code: int | None = self.process.exitcode
        return code

    def has_ended(self, timeout_s: float = 0) -> bool:
        """Return whether the process has ended, or does within the time."""
        return bool(self._ended.poll(timeout_s * 1000))

    def status(self) -> str:
        """Return which sample the worker said it begins with; empty if it said nothing."""
        return read_status(self._arena.first_page).said if self._arena else ""

    def ask(self) -> tuple[str, str]:
        """Return which sample the worker is at, and where; it need not be responsive."""
        if self._arena is None:
            return "", ""
        os.ftruncate(self._stacks, 0)
        os.lseek(self._stacks, 0, os.SEEK_SET)
        times = read_status(self._arena.first_page).times
        self._signal(signal.SIGUSR1)
        deadline = time.monotonic() + _ANSWER_S
        while (answer := read_status(self._arena.first_page)).times == times:
            if time.monotonic() > deadline:
                return answer.said, self.last_words()
            time.sleep(0.01)
        return answer.answered or answer.said, self.last_words()

    def last_words(self) -> str:
        """Return where a worker was that crashed in C, or that was asked; else empty."""
        if self._arena is None:
            return ""
        text = os.pread(self._stacks, 1 << 14, 0).decode(errors="replace")
        return _our_part(text)

    def hang_up(self) -> None:
        """Close the connection, for all processes that hold a copy: the worker then ends."""
        if not self.connection.closed:
            with (
                contextlib.suppress(OSError),
                socket.socket(fileno=os.dup(self.connection.fileno())) as end,
            ):
                end.shutdown(socket.SHUT_RDWR)
            self.connection.close()

    def close(self, grace_s: float = 0) -> None:
        """End the process; it has `grace_s` to do so by itself. Views of batches stay valid."""
        self.hang_up()
        if not self.has_ended(grace_s):
            self._signal(signal.SIGKILL)
        if self.has_ended(_KILL_S):
            self.process.join(_STOP_S)
        with contextlib.suppress(
            ValueError
        ):  # it runs on: nothing ends it while it is in the kernel
            self.process.close()
        if self._handle is not None:
            os.close(self._handle)
        if self._arena is not None:
            os.close(self._stacks)
        self._arena = None

    @property
    def _watched(self) -> int:
        """What becomes readable when the process ends."""
        sentinel: int = self.process.sentinel
        return sentinel if self._handle is None else self._handle

    def _met(self, timeout_s: float | None) -> bool:
        """Take over the worker's memory, which it sends first; false if it does not in time."""
        began = time.perf_counter()
        ready = self._wait(None if timeout_s is None else max(timeout_s, _START_S))
        self.starting_s += time.perf_counter() - began
        if not ready:
            return False
        with self._whole():
            memory, self._stacks = receive_files(self.connection, 2)
            self._arena = ArenaReader(memory, self._pin)
        return True

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a message. WorkerGoneError if the process has ended and there is none."""
        milliseconds = None if timeout_s is None else min(timeout_s * 1000, _MAX_POLL_MS)
        ready = self._news.poll(milliseconds)
        if ready and self.connection.fileno() not in dict(ready):
            raise WorkerGoneError
        return bool(ready)

    def _tell_taken(self) -> None:
        freed = self._arena.freed() if self._arena else []
        if freed or self._untold:
            send(self.connection, Taken(self._untold, freed))
            self._untold = 0

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Whatever ends this half-way, a signal handler that raises too, ends the conversation."""
        if self.interrupted:
            raise WorkerGoneError
        self.interrupted = True
        try:
            yield
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self.interrupted = False
            raise WorkerGoneError from error
        except (WorkerGoneError, EnergyDataError):
            self.interrupted = False
            raise
        self.interrupted = False

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, number)
            elif self.process.pid is not None and not self.has_ended():
                os.kill(self.process.pid, number)


def prepare(start_method: ProcessMethod) -> None:
    """Begin to start what processes are started from; does not wait for it, idempotent."""
    if start_method == "forkserver":
        with _START_LOCK, contextlib.suppress(ChildProcessError):  # `_start` says what it means
            forkserver.set_forkserver_preload(["energy_data.loader.worker"])
            forkserver.ensure_running()


def _collects() -> bool:
    with _START_LOCK:  # else it may be off for a moment, see `_started_in`
        return gc.isenabled()


def _start(process: Any, setup: Setup, start_method: ProcessMethod) -> None:
    try:
        with _START_LOCK, _started_in(start_method, setup.run):
            process.start()
    except ChildProcessError as error:
        raise EnergyDataError(
            "worker: this process was forked from one that has a fork server, and cannot have "
            'one itself. Use start_method="fork" or "spawn".'
        ) from error
    finally:
        setup.connection.close()


def stop(workers: Iterable[WorkerProcess]) -> None:
    """End some processes, all at once; whoever does not end in time is killed."""
    workers = list(workers)
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + _STOP_S
    for worker in workers:
        worker.close(max(0.0, deadline - time.monotonic()))


def portable_run(run: Run[Any], start_method: ProcessMethod) -> Run[Any] | bytes:
    """Return a run as a worker process gets it. SpecError if it cannot be sent."""
    if start_method == "fork":
        return run
    try:
        return pickle.dumps(_without_group(run))
    except Exception as error:
        raise SpecError(
            f"worker: the dataset cannot be sent to a worker process ({error}). {_ADVICE}"
        ) from error


def _without_group(run: Run[Any]) -> Run[Any]:
    """Return what a worker needs of a run: process groups stay in the trainer."""
    if run.worker_config.data_parallel_group is None:
        return run
    lean = copy(run)  # not `evolve`, which would check, and warn, again
    object.__setattr__(lean, "worker_config", evolve(run.worker_config, data_parallel_group=None))
    return lean


_ADVICE = (
    "Define the functions and classes it uses in a module, not inside a function, as a lambda or "
    'in a notebook; or use start_method="fork", or num_workers=0.'
)


def _unfit(message: Message) -> SpecError:
    assert message.error is not None
    text = message.error[1]
    return SpecError(
        f"worker: the dataset arrived in the worker process, but cannot be made there. "
        f"{_ADVICE} In the worker:\n{text}"
    )


def _our_part(stacks: str) -> str:
    """Return what faulthandler wrote, without the thread and the frames every worker has."""
    threads = stacks.partition("\nExtension modules:")[0].split("\n\n")
    shown = [_LAST_FRAME.split(thread)[0] for thread in threads if end_with.__name__ not in thread]
    return "\n\n".join(shown).strip()


def _open_process(process: int) -> int | None:
    """Return a handle of a process, which never means another one; None if that is impossible."""
    try:
        return os.pidfd_open(process)
    except OSError:  # a kernel without; or it has ended already, and was waited for
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@contextlib.contextmanager
def _started_in(start_method: ProcessMethod, run: Run[Any] | bytes) -> Iterator[None]:
    """Prepare for the start of a process.

    The child imports the user's `__main__` only if something in the run comes from there: so a
    script needs no `if __name__ == "__main__":` for the usual case.
    """
    main_module = sys.modules["__main__"]
    if isinstance(run, bytes) and b"_main__" not in run:  # `__mp_main__` is one that was started
        sys.modules["__main__"] = ModuleType("__main__")
    mask: Iterable[int] = ()
    if start_method != "forkserver":  # its children have the signals of the server, not ours
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    collects = gc.isenabled()
    gc.disable()  # a child that was forked has to keep its hands off our garbage, see `worker.main`
    try:
        yield
    finally:
        if collects:
            gc.enable()
        if start_method != "forkserver":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        sys.modules["__main__"] = main_module
