"""How worker processes are started, and what they are sent."""

from __future__ import annotations

import contextlib
import gc
import pickle
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from copy import copy
from multiprocessing import forkserver
from types import ModuleType
from typing import Any, Literal

from attrs import evolve

from energy_data.errors import EnergyDataError, SpecError
from energy_data.loading.run import Run
from energy_data.loading.worker import HELD_BACK, Setup

ProcessMethod = Literal["fork", "forkserver", "spawn"]

_START_LOCK = threading.Lock()

ADVICE = (
    "Define the functions and classes it uses in a module, not inside a function, as a lambda or "
    'in a notebook; or use start_method="fork", or num_workers=0.'
)


def portable_run(run: Run[Any], start_method: ProcessMethod) -> Run[Any] | bytes:
    """Return a run as a worker process gets it. SpecError if it cannot be sent."""
    if start_method == "fork":
        return run
    try:
        return pickle.dumps(_without_group(run))
    except Exception as error:
        raise SpecError(
            f"worker: the dataset cannot be sent to a worker process ({error}). {ADVICE}"
        ) from error


def _without_group(run: Run[Any]) -> Run[Any]:
    """Return what a worker needs of a run: process groups stay in the trainer."""
    if run.worker_config.data_parallel_group is None:
        return run
    lean = copy(run)  # not `evolve`, which would check, and warn, again
    object.__setattr__(lean, "worker_config", evolve(run.worker_config, data_parallel_group=None))
    return lean


def prepare(start_method: ProcessMethod) -> None:
    """Begin to start what processes are started from; does not wait for it, idempotent."""
    if start_method == "forkserver":
        with _START_LOCK, contextlib.suppress(ChildProcessError):  # `start` says what it means
            forkserver.set_forkserver_preload(["energy_data.loading.worker"])
            forkserver.ensure_running()


def collects() -> bool:
    """Return whether this process collects garbage."""
    with _START_LOCK:  # else it may be off for a moment, see `_started_in`
        return gc.isenabled()


def start(process: Any, setup: Setup, start_method: ProcessMethod) -> None:
    """Start a process; our copy of its end of the connection is closed, whatever happens.

    EnergyDataError if this process can start none in that way.
    """
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
