"""What a worker is at, for when it cannot say so itself: it hangs, or it is dead."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
from types import FrameType
from typing import Any, NamedTuple

from energy_data.nodes.batch import BatchNode
from energy_data.nodes.encode import EncodeNode
from energy_data.sample import describe_source

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
            while frame is not None and not self._found(frame):
                frame = frame.f_back
        count = int.from_bytes(self._page[:8], "little") + 1
        self._page[:8] = count.to_bytes(8, "little")

    def _found(self, frame: FrameType) -> bool:
        """Say what the function of this frame is at, if it is one that knows."""
        if frame.f_code is EncodeNode.draw.__code__ and "sample" in frame.f_locals:
            self._answer(describe_source(frame.f_locals["sample"]))
        elif frame.f_code is BatchNode.draw.__code__ and frame.f_locals.get("samples"):
            self._answer(
                f"in the batch that begins with {describe_source(frame.f_locals['samples'][0])}"
            )
        else:
            return False
        return True


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
