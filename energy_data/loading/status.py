"""What a worker is at, for when it cannot say so itself: it hangs, or it is dead."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
from types import FrameType
from typing import Any, NamedTuple

from energy_data.core.sample import describe_source
from energy_data.core.user_call import Measure, UserCall, describe

_CALLS = frozenset(
    function.__code__
    for function in (UserCall.__call__, UserCall.each, UserCall.parts, Measure.__call__)
)
_SAID, _ANSWERED, _END = 8, 1536, 3072  # bytes of the page; both in words, ended by a zero


class Status:
    """Says what the worker is at, also after its death: in a page of shared memory, and a file.

    The page: how often we were asked (8 bytes), what we said unasked, and what we answered last.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._page = memory
        self.stacks = os.memfd_create("energy_data_stacks", os.MFD_CLOEXEC)
        # A crash in C writes here in which line of Python it was. When asked by signal: first where
        # every thread is (also one stuck in C), then which sample that is, which takes a Python
        # that still runs.
        faulthandler.enable(self.stacks)
        signal.signal(signal.SIGUSR1, self._asked)
        faulthandler.register(signal.SIGUSR1, file=self.stacks, all_threads=True, chain=True)

    def say(self, what: Any) -> None:
        """Write down what comes next."""
        self._write(what if isinstance(what, str) else describe_source(what), _SAID, _ANSWERED)

    def _write(self, text: str, begin: int, end: int) -> None:
        data = text.encode(errors="replace")[: end - begin - 1] + b"\0"
        self._page[begin : begin + len(data)] = data

    def _answer(self, text: str) -> None:
        self._write(text, _ANSWERED, _END)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self._answer("")
        with contextlib.suppress(Exception):  # this interrupts code of the user's
            self._answer(at_work_on(frame))
        count = int.from_bytes(self._page[:8], "little") + 1
        self._page[:8] = count.to_bytes(8, "little")


def at_work_on(frame: FrameType | None) -> str:
    """Return in words what the function of the user works on that runs in a frame, or below it.

    Empty if none runs.
    """
    while frame is not None:
        if frame.f_code in _CALLS:
            item = frame.f_locals.get("item", frame.f_locals.get("document"))
            return (
                f"what begins with {describe(item)}" if isinstance(item, list) else describe(item)
            )
        frame = frame.f_back
    return ""


class Said(NamedTuple):
    """What the page of a worker says."""

    times: int  # it answered
    said: str  # which sample it began with last, if it says so; else empty
    answered: str  # which sample it was at when asked last; empty if it could not tell


def read_status(page: bytes) -> Said:
    """Return what the page says."""
    said, answered = (
        page[begin:end].partition(b"\0")[0].decode(errors="replace")
        for begin, end in ((_SAID, _ANSWERED), (_ANSWERED, _END))
    )
    return Said(int.from_bytes(page[:8], "little"), said, answered)
