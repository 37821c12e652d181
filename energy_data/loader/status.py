"""What a worker is at, for when it cannot say so itself: it hangs, or it is dead."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
from types import FrameType
from typing import Any

from energy_data.nodes.batch import BatchNode
from energy_data.nodes.encode import EncodeNode
from energy_data.sample import describe_source

STATUS_BYTES = mmap.PAGESIZE


class Status:
    """Says what the worker is at, also after its death: in a page of shared memory, and a file.

    The page: how often we were asked (8 bytes), then the sample, in words.
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
        text = what if isinstance(what, str) else describe_source(what)
        data = text.encode(errors="replace")[: STATUS_BYTES - 9]
        self._page[8 : 9 + len(data)] = data + b"\0"

    def _asked(self, number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(Exception):  # this interrupts code of the user's
            while frame is not None and not self._found(frame):
                frame = frame.f_back
        count = int.from_bytes(self._page[:8], "little") + 1
        self._page[:8] = count.to_bytes(8, "little")

    def _found(self, frame: FrameType) -> bool:
        """Say what the function of this frame is at, if it is one that knows."""
        if frame.f_code is EncodeNode.draw.__code__ and "sample" in frame.f_locals:
            self.say(frame.f_locals["sample"])
        elif frame.f_code is BatchNode.draw.__code__ and frame.f_locals.get("samples"):
            self.say(
                f"in the batch that begins with {describe_source(frame.f_locals['samples'][0])}"
            )
        else:
            return False
        return True


def read_status(page: bytes) -> tuple[int, str]:
    """Return how often a worker was asked, and what it says it is at; empty if it never said."""
    return int.from_bytes(page[:8], "little"), page[8:].partition(b"\0")[0].decode(errors="replace")
