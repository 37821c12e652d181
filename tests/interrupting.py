"""Interrupts at a chosen place, for tests."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Container


def interrupted(number: int, files: Container[str], work: Callable[[], object]) -> bool:
    """Work, with an interrupt at the so-manieth place where one may come; whether it was reached.

    These are where a function of Python begins, and where one of C has returned, in some files, in
    this process alone.
    """
    places, process = 0, os.getpid()

    def interrupts(frame, event, _):
        nonlocal places
        looks_at = event in ("call", "c_return") and frame.f_code.co_filename in files
        if looks_at and os.getpid() == process:
            places += 1
            if places == number:
                raise KeyboardInterrupt

    try:
        sys.setprofile(interrupts)
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def take_among_interrupts(loader, expected: list, delay: Callable[[int], float]) -> None:
    """Take what is expected, while interrupts come; `delay` tells after how many seconds the next.

    It gets how many have come; at least one must.
    """
    given, interrupts, main = [], 0, threading.get_ident()
    while len(given) < len(expected):
        timer = threading.Timer(delay(interrupts), signal.pthread_kill, (main, signal.SIGINT))
        try:
            timer.start()
            batch = loader.next_batch()
            timer.cancel()
            timer.join()
            given.append(batch)
        except KeyboardInterrupt:
            interrupts += 1
            timer.join()
            if loader.last_batch == len(given):  # we had it, and then let it fall
                given.append(expected[len(given)])
    assert interrupts
    assert given == expected
