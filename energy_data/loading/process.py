"""The trainer's side of one worker process: start it, talk to it, notice when it is gone."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import re
import select
import signal
import time
from collections.abc import Iterable
from io import FileIO
from types import TracebackType
from typing import Any
from weakref import ref

from energy_data.errors import EnergyDataError, SpecError
from energy_data.loading.run import Run
from energy_data.loading.start import ADVICE, ProcessMethod, collects, prepare, start
from energy_data.loading.status import read_status
from energy_data.loading.transport.arena import ArenaReader
from energy_data.loading.wire import (
    Go,
    Line,
    Message,
    Taken,
    receive,
    receive_files,
    send,
    send_order,
)
from energy_data.loading.worker import Setup, end_with, main

_STOP_S = 1.0  # seconds workers have to end by themselves
_KILL_S = 5.0  # seconds the kernel has to end one that was killed; one stuck in the kernel stays
_START_S = 120.0  # seconds a new process has to import what it needs, if `timeout_s` is shorter
_ANSWER_S = 1.0  # seconds a worker has to say at which sample it is
_SERVER_GONE = 255  # what multiprocessing says of all children of a fork server that is dead
_LOOK_S = 0.5  # between two looks whether somebody, perhaps a signal handler, has closed it
# Below it is how processes are started, and in a fork all that the trainer was doing.
_LAST_FRAME = re.compile(rf'\n  File "{re.escape(main.__code__.co_filename)}", line \d+ in main\n')


class WorkerGoneError(Exception):
    """The process has ended; not for users: it is started again."""


class _Conversation:
    """Whatever ends a part of it half-way, a signal handler that raises too, ends all of it.

    (`contextlib.contextmanager` takes five times as long, several times per batch.)
    """

    def __init__(self) -> None:
        self.is_broken = False  # in the middle of a message: what comes next makes no sense
        self.is_over = False  # for good; a signal handler may say so in the middle of a part

    def __enter__(self) -> None:
        if self.is_broken or self.is_over:
            raise WorkerGoneError
        self.is_broken = True

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if error is None:
            self.is_broken = False
        elif isinstance(error, EOFError | BrokenPipeError | ConnectionResetError):
            self.is_broken = False
            raise WorkerGoneError from error
        elif isinstance(error, WorkerGoneError | EnergyDataError):
            self.is_broken = False


class WorkerProcess:
    """One worker process and the memory it shares with us."""

    def __init__(
        self,
        run: Run[Any] | bytes,
        *,
        start_method: ProcessMethod,
        prefetch: int,
        arena_bytes: int,
        pin: Any = None,
    ) -> None:
        """Start the process; does not wait for it. `run` is as `portable_run` returned it."""
        context: Any = multiprocessing.get_context(start_method)  # typeshed knows no Process on it
        prepare(start_method)
        began = time.perf_counter()
        self._talk = _Conversation()
        ours, theirs = context.Pipe()
        self._line = Line(ours)
        self._handle: FileIO | None = None
        self._stacks: FileIO | None = None
        _OPEN.add(ref(self, _OPEN.discard))
        environ = dict(os.environ) if start_method == "forkserver" else None
        setup = Setup(run, theirs, prefetch, arena_bytes, os.getpid(), environ, collects())
        self.process = context.Process(target=main, args=(setup,), daemon=True)
        try:
            start(self.process, setup, start_method)
        except BaseException:
            self.hang_up()
            raise
        # At exit, multiprocessing would wait for it; so would a fork of this process, in vain.
        getattr(multiprocessing.process, "_children", set()).discard(self.process)
        self._handle = _open_process(self.process.pid)
        self._news = select.poll()
        self._news.register(self._watched, select.POLLIN)
        self._news.register(ours.fileno(), select.POLLIN)
        self._pin = pin
        self._arena: ArenaReader | None = None  # until it sends it
        self._is_closed = False
        self._generation = 0
        self._untold = 0  # messages taken since we last said so
        # Seconds that somebody waited for the process to be there.
        self.starting_s = time.perf_counter() - began

    @property
    def arena(self) -> ArenaReader:
        """The memory of the worker, once it has sent a message."""
        assert self._arena is not None, "the worker has not sent its memory yet"
        return self._arena

    @property
    def interrupted(self) -> bool:
        """Whether an exception in this process ended the conversation, or we did."""
        return self._talk.is_broken or self._talk.is_over

    @property
    def slots_in_use(self) -> int:
        """The number of batches in the memory of the worker that somebody looks at."""
        return self._arena.in_use if self._arena else 0

    def begin(self, place: Go) -> None:
        """Tell the worker to begin at a place; what it sent until now is void."""
        self._generation += 1
        with self._talk:
            self._tell_taken()
            send_order(self._line, place._replace(generation=self._generation))

    def receive(self, timeout_s: float | None) -> Message | None:
        """Return the next message, None if there is none in time. WorkerGoneError if it died."""
        while True:
            if self._arena is None and not self._met(timeout_s):
                return None
            with self._talk:
                self._tell_taken()
            if not self._wait(timeout_s):
                return None
            with self._talk:
                message = receive(self._line, Message)
                assert message is not None
                if message.parcel is not None:
                    self.arena.expect(message.parcel)
            self._untold += 1
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
        if self._is_closed:
            return True
        ended = select.poll()  # one each time: a thread that closes the loader may ask too
        ended.register(self._watched, select.POLLIN)
        return bool(ended.poll(timeout_s * 1000))

    def status(self) -> str:
        """Return which sample the worker said it begins with; empty if it said nothing."""
        return read_status(self._arena.first_page).said if self._arena else ""

    def ask(self) -> tuple[str, str]:
        """Return which sample the worker is at, and where; it need not be responsive."""
        if self._arena is None or self._stacks is None:
            return "", ""
        os.ftruncate(self._stacks.fileno(), 0)
        self._stacks.seek(0)
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
        if self._stacks is None:
            return ""
        text = os.pread(self._stacks.fileno(), 1 << 14, 0).decode(errors="replace")
        return _our_part(text)

    def hang_up(self) -> None:
        """Close the connection: the worker then ends. It is as if it had been interrupted."""
        self._talk.is_over = True
        # First: from the moment that it is closed, its number may be that of another open file.
        _OPEN.discard(ref(self))
        self._line.hang_up()

    def close(self, grace_s: float = 0) -> None:
        """End the process; it has `grace_s` to do so by itself. Views of batches stay valid.

        Interrupted, it may be done again.
        """
        self.hang_up()
        if not self.has_ended(grace_s):
            self._signal(signal.SIGKILL)
        # Closed before; or it runs on: nothing ends it while it is in the kernel.
        with contextlib.suppress(ValueError):
            if self.has_ended(_KILL_S):
                self.process.join(_STOP_S)
            self.process.close()
        self._is_closed = True
        self.close_files()
        self._arena = self._stacks = None

    def close_files(self) -> None:
        """Close what this process has open of the worker, but for the memory that is shared."""
        self.hang_up()
        for file in (self._handle, self._stacks):
            if file is not None:
                file.close()

    @property
    def _watched(self) -> int:
        """What becomes readable when the process ends."""
        sentinel: int = self.process.sentinel
        return sentinel if self._handle is None else self._handle.fileno()

    def _met(self, timeout_s: float | None) -> bool:
        """Take over the worker's memory, which it sends first; false if it does not in time."""
        began = time.perf_counter()
        ready = self._wait(None if timeout_s is None else max(timeout_s, _START_S))
        self.starting_s += time.perf_counter() - began
        if not ready:
            return False
        with self._talk:
            memory, self._stacks = receive_files(self._line, 2)
            with memory:
                self._arena = ArenaReader(memory.fileno(), self._pin)
        return True

    def _wait(self, timeout_s: float | None) -> bool:
        """Wait for a message. WorkerGoneError if the process has ended and there is none."""
        left_s = math.inf if timeout_s is None else timeout_s
        while True:
            if self._talk.is_over:  # what is polled may be open again, as something else
                raise WorkerGoneError
            ready = self._news.poll(min(left_s, _LOOK_S) * 1000)
            if ready and self._line.fd not in dict(ready):
                raise WorkerGoneError
            left_s -= _LOOK_S
            if ready or left_s <= 0:
                return bool(ready)

    def _tell_taken(self) -> None:
        freed = self._arena.freed() if self._arena else []
        if freed or self._untold:
            send(self._line, Taken(self._untold, freed))
            self._untold = 0

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle.fileno(), number)
            elif self.process.pid is not None and not self.has_ended():
                os.kill(self.process.pid, number)


def _leave_to_parent() -> None:
    """In a forked process, close its copies: workers live as long as nobody has the trainer's."""
    for worker in filter(None, [one() for one in list(_OPEN)]):
        worker.close_files()
    _OPEN.clear()


_OPEN: set[ref[WorkerProcess]] = set()  # in this process
os.register_at_fork(after_in_child=_leave_to_parent)


def stop(workers: Iterable[WorkerProcess]) -> None:
    """End some processes, all at once; whoever does not end in time is killed."""
    workers = list(workers)
    for worker in workers:
        worker.hang_up()
    deadline = time.monotonic() + _STOP_S
    for worker in workers:
        worker.close(max(0.0, deadline - time.monotonic()))


def _unfit(message: Message) -> SpecError:
    assert message.error is not None
    text = message.error[1]
    return SpecError(
        f"worker: the dataset arrived in the worker process, but cannot be made there. "
        f"{ADVICE} In the worker:\n{text}"
    )


def _our_part(stacks: str) -> str:
    """Return what faulthandler wrote, without the thread and the frames every worker has."""
    threads = stacks.partition("\nExtension modules:")[0].split("\n\n")
    shown = [_LAST_FRAME.split(thread)[0] for thread in threads if end_with.__name__ not in thread]
    return "\n\n".join(shown).strip()


def _open_process(process: int) -> FileIO | None:
    """Return a handle of a process, which never means another one; None if that is impossible."""
    try:
        return FileIO(os.pidfd_open(process))
    except OSError:  # a kernel without; or it has ended already, and was waited for
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
