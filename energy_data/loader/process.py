"""The trainer's side of one worker process: start it, talk to it, notice when it is gone."""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, Literal

from energy_data.errors import EnergyDataError, SpecError
from energy_data.loader.arena import ArenaReader
from energy_data.loader.run import Run
from energy_data.loader.worker import STATUS_BYTES, Go, Message, Setup, Taken, main

StartMethod = Literal["fork", "forkserver", "spawn"]

_STOP_S = 1.0  # seconds a worker has to end by itself
_START_LOCK = threading.Lock()


class WorkerGoneError(Exception):
    """The process has ended; not for users: it is started again."""


class WorkerProcess:
    """One worker process and the memory it shares with us."""

    def __init__(
        self,
        run: Run[Any],
        *,
        start_method: StartMethod,
        prefetch: int,
        arena_bytes: int,
        inherited: tuple[Connection, ...],
        pin: Any = None,
    ) -> None:
        context: Any = multiprocessing.get_context(start_method)  # typeshed knows no Process on it
        if start_method == "forkserver":
            context.set_forkserver_preload(["energy_data.loader.worker"])
        self.connection, theirs = context.Pipe()
        forked = start_method == "fork"
        setup = Setup(
            run,
            theirs,
            prefetch,
            arena_bytes,
            os.getpid(),
            (*inherited, self.connection) if forked else (),
        )
        self.process = context.Process(target=main, args=(setup,), daemon=True)
        with _START_LOCK, _started_in(start_method, setup):
            self.process.start()
        theirs.close()
        try:
            self.arena = ArenaReader(recv_handle(self.connection), pin)
            self._stacks = recv_handle(self.connection)
        except (EOFError, OSError) as error:
            self.process.join(_STOP_S)
            raise EnergyDataError(
                f"worker: it ended while starting, exit code {self.process.exitcode}. Its own "
                f"message is above; common causes are a task encoder that cannot be imported in a "
                f"new process, and too little memory."
            ) from error
        self._status = mmap.mmap(self.arena.fd, STATUS_BYTES)
        self.untold = 0  # messages taken since we last said so

    def send(self, go: Go) -> None:
        """Tell the worker to begin at a place."""
        self._send(go)

    def receive(self, timeout_s: float | None) -> Message | None:
        """Return the next message, None if there is none in time. WorkerGoneError if it died."""
        freed = self.arena.freed()
        if freed or self.untold:
            self._send(Taken(self.untold, freed))
            self.untold = 0
        try:
            if not self.connection.poll(timeout_s):
                return None
            message: Message = self.connection.recv()
        except (EOFError, OSError) as error:
            raise WorkerGoneError from error
        self.untold += 1
        return message

    def _send(self, command: Go | Taken) -> None:
        try:
            self.connection.send(command)
        except OSError as error:
            raise WorkerGoneError from error

    def fate(self) -> str:
        """Return in words how the process ended."""
        self.process.join(_STOP_S)
        code = self.process.exitcode
        if code is None:
            return "closed its connection"
        if code >= 0:
            return f"ended with exit code {code}"
        name = signal.Signals(-code).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    def status(self) -> str:
        """Return what the worker last said it is at; empty if it said nothing."""
        return bytes(self._status).partition(b"\0")[0].decode(errors="replace")

    def stack(self) -> str:
        """Return where the worker is now, by asking it with a signal; it need not be responsive."""
        os.ftruncate(self._stacks, 0)
        os.lseek(self._stacks, 0, os.SEEK_SET)
        with contextlib.suppress(OSError):
            os.kill(self.process.pid or 0, signal.SIGUSR1)
        time.sleep(0.2)
        return os.pread(self._stacks, 1 << 16, 0).decode(errors="replace")

    def close(self, *, kill: bool = False) -> None:
        """End the process: it sees the connection close; whoever does not is killed."""
        self.connection.close()
        if not kill:
            self.process.join(_STOP_S)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process.close()
        self._status.close()
        self.arena.close()
        os.close(self._stacks)


@contextlib.contextmanager
def _started_in(start_method: StartMethod, setup: Setup) -> Iterator[None]:
    """Prepare for the start of a process that gets `setup` by pickling.

    The child imports the user's `__main__` only if something in it comes from there: so a script
    needs no `if __name__ == "__main__":` for the usual case.
    """
    if start_method == "fork":
        yield
        return
    try:
        data = pickle.dumps(setup.run)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise SpecError(
            f"worker: the dataset cannot be sent to a worker process ({error}). Define the "
            f"functions and classes it uses in a module, not inside a function, as a lambda or in "
            f'a notebook; or use start_method="fork", or num_workers=0.'
        ) from error
    main_module = sys.modules["__main__"]
    if b"__main__" in data:
        yield
        return
    facts: dict[str, Any] = vars(main_module)
    hidden: dict[str, Any] = {
        name: facts.pop(name) for name in ("__spec__", "__file__") if name in facts
    }
    facts["__spec__"] = None
    try:
        yield
    finally:
        facts.update(hidden)
