"""What a worker is doing, readable even if it hangs or is dead; and whether its trainer lives."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import re
import select
import signal
import time
import traceback
from types import FrameType
from typing import Any, NamedTuple

from energy_data.core.sample import describe_source
from energy_data.core.user_call import Measure, UserCall

_CALLS = frozenset(
    function.__code__ for function in (UserCall.each, UserCall.parts, Measure.__call__)
)
_REPORTED, _ANSWERED, _END = 8, 1536, 3072  # bytes of the page; two texts that end with a zero
# Frames below the loop of a worker: how processes and threads are started, and in a forked process
# everything that the trainer was doing.
_LAST_FRAME = re.compile(r'\n  File "[^"]*loading/workers/worker\.py", line \d+ in main\n')


class Heartbeat:
    """Reports the current sample of a worker process in a page of shared memory, and its stacks.

    The page outlives the process. It contains the number of answers (8 bytes), the last sample that
    was reported, and the last answer.
    """

    def __init__(self, memory: mmap.mmap) -> None:
        self._page = memory
        self.stacks = os.memfd_create("energy_data_stacks", os.MFD_CLOEXEC)
        # A crash in C writes its line of Python to this file. SIGUSR1 first writes the stacks of
        # all threads, even of one that hangs in C, and then calls `_answer` in Python.
        faulthandler.enable(self.stacks)
        signal.signal(signal.SIGUSR1, self._answer)
        faulthandler.register(signal.SIGUSR1, file=self.stacks, all_threads=True, chain=True)

    def report(self, sample: Any) -> None:
        """Report the sample that comes next."""
        text = sample if isinstance(sample, str) else describe_source(sample)
        self._write(text, _REPORTED, _ANSWERED)

    def _write(self, text: str, begin: int, end: int) -> None:
        data = text.encode(errors="replace")[: end - begin - 1] + b"\0"
        self._page[begin : begin + len(data)] = data

    def _answer(self, number: int, frame: FrameType | None) -> None:
        self._write("", _ANSWERED, _END)
        with contextlib.suppress(Exception):  # the signal interrupts code of the user
            self._write(current_item(frame), _ANSWERED, _END)
        count = int.from_bytes(self._page[:8], "little") + 1
        self._page[:8] = count.to_bytes(8, "little")


class Report(NamedTuple):
    """The page of a worker."""

    answers: int  # how often it has answered
    reported: str  # the last sample that it reported unasked; may be empty
    answered: str  # the sample at the last answer; empty if it was at none


def read_report(page: bytes) -> Report:
    """Return the contents of the page."""
    reported, answered = (
        page[begin:end].partition(b"\0")[0].decode(errors="replace")
        for begin, end in ((_REPORTED, _ANSWERED), (_ANSWERED, _END))
    )
    return Report(int.from_bytes(page[:8], "little"), reported, answered)


def current_item(frame: FrameType | None) -> str:
    """Return a description of the item of the user function that runs in a frame or its callers.

    Empty if none runs.
    """
    while frame is not None:
        if frame.f_code in _CALLS:
            item = frame.f_locals.get("item", frame.f_locals.get("document"))
            begins = "what begins with " if isinstance(item, list) else ""
            return f"{begins}{describe_source(item)}"
        frame = frame.f_back
    return ""


def process_stacks(stacks: str) -> str:
    """Return what faulthandler wrote, without the frames that all workers have."""
    threads = stacks.partition("\nExtension modules:")[0].split("\n\n")
    shown = [_LAST_FRAME.split(one)[0] for one in threads if exit_with.__name__ not in one]
    return "\n\n".join(shown).strip()


def thread_stack(frame: FrameType) -> str:
    """Return the stack of a worker thread, without the frames of every worker."""
    stack = traceback.extract_stack(frame)
    ours = [n for n, line in enumerate(stack) if line.filename.endswith("workers/thread.py")]
    return "".join(traceback.format_list(stack[ours[-1] + 1 :] if ours else stack)).rstrip()


def exit_with(process: int) -> None:
    """Exit this process when `process` has ended, whoever else holds a copy of its connection."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # a kernel without it
        while _is_alive(process):
            time.sleep(1)
    else:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll()
    os._exit(1)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
