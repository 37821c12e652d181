"""Starting processes that need nothing of the user's `__main__`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from types import ModuleType
from typing import TypeVar

from energy_data.errors import EnergyDataError

A = TypeVar("A")
B = TypeVar("B")
_LOCK = threading.Lock()
_WAITING = 16  # calls and results per process that wait in memory


@contextmanager
def without_main() -> Iterator[None]:
    """Hide `__main__`: processes started in the block do not import it.

    So the script needs no `if __name__ == "__main__":`, and does not run again in each process.
    """
    with _LOCK:
        main_module = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main_module


def _begin(environ: dict[str, str]) -> None:
    """Prepare a process: Ctrl-C ends it at once. By default, it would print a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environ)


def num_processes(asked: int | None, worth: int) -> int:
    """Return the number of processes that is asked for; of None, `worth`, at most one per CPU."""
    if asked is not None:
        return asked
    # Slurm and containers give a process some of the CPUs; macOS cannot say which.
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(own or 1, worth)


def map_in_processes(
    call: Callable[[A], B], items: Iterable[A], *, workers: int, preload: Sequence[str]
) -> Generator[B, None, None]:
    """Yield `call(item)` for each item, in order, from processes; with one worker, from this one.

    The first error ends the others. The calls must leave nothing half-made: Ctrl-C ends the
    processes at once. preload: modules that are imported once for all processes.
    """
    if workers <= 1:
        yield from map(call, items)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    # The server may run since before the environment was changed.
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=_begin, initargs=(dict(os.environ),)
    )
    waiting: deque[Future[B]] = deque()
    try:
        for item in items:
            with without_main():  # a call may start a process
                waiting.append(pool.submit(call, item))
            if len(waiting) == _WAITING * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise EnergyDataError(
            f"one of {workers} processes was ended, such as for lack of memory. "
            "Use fewer (--num-workers)."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
