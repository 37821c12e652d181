"""Interrupts at a chosen place, for tests."""

from __future__ import annotations

import os
import sys
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
