"""What trainer and worker exchange: messages, and the connection that carries them to a process.

And a page of shared memory in which a worker process reports what it is doing, readable even if it
hangs or is dead.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import re
import select
import signal
import socket
import struct
import time
import traceback
from abc import ABC, abstractmethod
from io import FileIO
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, Literal, NamedTuple

from energy_data.core.profiler import Usage
from energy_data.core.sample import describe_source
from energy_data.core.user_call import Measure, UserCall
from energy_data.errors import EnergyDataError
from energy_data.loading.lanes import LanesStart
from energy_data.loading.transport.arena import BatchHandle, Slot

StartMethod = Literal["fork", "forkserver", "spawn", "thread"]

Kind = Literal["batch", "skipped", "end", "error", "full"]
"""Of a message. full: the arena is."""

PEER_GONE = (EOFError, BrokenPipeError, ConnectionResetError)
"""What sending and receiving raise when the other end is closed."""

_LENGTH = struct.Struct("<Q")  # bytes of the message that follows
_CALLS = frozenset(
    function.__code__ for function in (UserCall.each, UserCall.parts, Measure.__call__)
)
_REPORTED, _ANSWERED, _END = 8, 1536, 3072  # bytes of the page; two texts that end with a zero
# Frames below the loop of a worker: how processes and threads are started, and in a forked process
# everything that the trainer was doing.
_LAST_FRAME = re.compile(r'\n  File "[^"]*loading/workers/worker\.py", line \d+ in main\n')


class Start(NamedTuple):
    """Start at a position. Messages of earlier generations are void."""

    lanes: LanesStart  # of the worker
    stride: int  # the world size: the rank's micro-batches are batch, batch + stride, ...
    traced: bool  # report every sample before it is encoded, since one of them kills the process
    generation: int = 0  # counts the starts of a worker


class Ack(NamedTuple):
    """The trainer received messages, and these slots of the arena are free again."""

    messages: int
    slots: list[int]


class Message(NamedTuple):
    """The outcome of one micro-batch."""

    generation: int
    kind: Kind
    batch: int
    # Of kind "batch": its handle in the arena of a process, or a thread's batch itself.
    content: Any = None
    state: Any = None  # of the lane, after this batch
    # Of a process: the pickled exception (None if it cannot be pickled), and its traceback.
    error: BaseException | tuple[bytes | None, str] | None = None
    usage: Usage | None = None  # since the last message that has it

    @classmethod
    def unpack(cls, fields: tuple[Any, ...]) -> Message:
        """Return the message that `pack` packed."""
        generation, kind, batch, content, *others = fields
        if content is not None:
            pickled, slot, *rest = content
            content = BatchHandle(pickled, Slot(*slot), *rest)
        return cls(generation, kind, batch, content, *others)

    def pack(self) -> tuple[Any, ...]:
        """Return plain data, which pickles several times as fast as classes."""
        generation, kind, batch, content, *others = self
        if content is None:
            return tuple(self)
        pickled, slot, *rest = content
        return generation, kind, batch, (pickled, tuple(slot), *rest), *others


class WorkerError(EnergyDataError):
    """A worker failed for good: it died or hung repeatedly, or its error cannot be unpickled."""


class Worker(ABC):
    """One worker, as the trainer sees it. Processes that end raise one of `PEER_GONE`."""

    stop_s: float  # seconds it has to end by itself
    starting_s = 0.0  # seconds that the trainer waited for its start
    slots_in_use = 0  # live batches in memory that it shares with the trainer

    @abstractmethod
    def begin(self, start: Start) -> None:
        """Let the worker start at a position; what it has sent until now is void."""

    @abstractmethod
    def receive(self, timeout_s: float | None) -> Message | None:
        """Return the next message; None if there is none in time."""

    @abstractmethod
    def open(self, message: Message) -> list[Any]:
        """Return the micro-batch of a message, nothing if it was skipped; or raise its error."""

    @abstractmethod
    def ask(self) -> tuple[str, str]:
        """Return the current sample of the worker, and its stacks, even if it hangs."""

    @abstractmethod
    def hang_up(self) -> None:
        """Let the worker end after its batch. Does not wait."""

    @abstractmethod
    def close(self, grace_s: float = 0) -> None:
        """End the worker: wait `grace_s`, then kill a process, and leave a thread. Idempotent."""

    def has_freed(self) -> bool:
        """Return whether memory that was full has room again."""
        return False

    def fate(self) -> str:
        """Return how the worker ended. EnergyDataError if it cannot start."""
        raise NotImplementedError


class Channel:
    """One end of the connection between the trainer and a worker process."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.fd = connection.fileno()
        self._files = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM, fileno=os.dup(connection.fileno())
        )
        self._process = os.getpid()

    def close(self) -> None:
        """Close the connection, also for processes that inherited a copy; idempotent.

        A forked child closes its own copy only.
        """
        if os.getpid() == self._process:
            with contextlib.suppress(OSError):
                self._files.shutdown(socket.SHUT_RDWR)
        self.fd = -1  # the number may soon belong to another file
        self._files.close()
        self.connection.close()

    def __del__(self) -> None:
        # Of a worker that an interrupt discards: it has a copy of this end, and would wait forever.
        with contextlib.suppress(AttributeError):  # __init__ failed
            self.close()

    def send(self, fields: tuple[Any, ...] | None) -> None:
        """Send plain data, which pickles several times as fast as classes.

        `Connection.send` takes three times the bytecodes, and if the other end is closed, Python
        3.13 prints an error about the buffer that it exports.
        """
        data = pickle.dumps(fields, pickle.HIGHEST_PROTOCOL)
        data = _LENGTH.pack(len(data)) + data
        sent = os.write(self.fd, data)
        while sent < len(data):
            sent += os.write(self.fd, memoryview(data)[sent:])

    def receive(self) -> Any:
        """Return the next data; wait for it. EOFError if the other end is gone."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))  # noqa: S301 - sent by our own process

    def _read(self, length: int) -> bytes | bytearray:
        data = os.read(self.fd, length)
        if len(data) == length:
            return data
        parts = bytearray(data)
        while len(parts) < length:
            part = os.read(self.fd, length - len(parts))
            if not part:
                raise EOFError
            parts += part
        return parts

    def send_start(self, start: Start) -> None:
        """Send where to start. Never waits for the worker, which may wait for us to read."""
        with os.fdopen(os.memfd_create("energy_data_start", os.MFD_CLOEXEC), "wb") as file:
            pickle.dump(start, file)
            file.flush()
            self.send(None)
            self.send_files([file.fileno()])

    def receive_order(self) -> Ack | Start:
        """Return the next order of the trainer; wait for it."""
        fields = self.receive()
        if fields is not None:
            return Ack(*fields)
        (file,) = self.receive_files(1)
        with file:
            file.seek(0)
            start: Start = pickle.loads(file.read())  # noqa: S301 - written by our own trainer
        return start

    def send_files(self, descriptors: list[int]) -> None:
        """Send open files to the process at the other end."""
        socket.send_fds(self._files, [b"f"], descriptors)

    def receive_files(self, count: int) -> list[FileIO]:
        """Return the open files that the other end sent. EOFError if it is gone."""
        data, descriptors, _, _ = socket.recv_fds(self._files, 1, count, socket.MSG_CMSG_CLOEXEC)
        files: list[FileIO] = list(map(_ReceivedFile, descriptors))
        if not data:
            raise EOFError
        if len(files) < count:
            for file in files:
                file.close()
            raise EnergyDataError(
                "worker: its memory cannot be shared, because too many files are open. Raise the "
                "limit: ulimit -n."
            )
        return files


class _ReceivedFile(FileIO):
    """A file that closes without a warning also where an interrupt discards it."""

    def __del__(self) -> None:
        self.close()


def portable(error: BaseException) -> tuple[bytes | None, str]:
    """Return an error for another process: pickled if possible, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - some errors pickle, but cannot be unpickled
    except Exception:  # noqa: BLE001 - whatever goes wrong, the text is left
        return None, text
    return pickled, text


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
    ours = [n for n, line in enumerate(stack) if line.filename.endswith("workers/worker.py")]
    return "".join(traceback.format_list(stack[ours[-1] + 1 :] if ours else stack)).rstrip()


def exit_with(process: int) -> None:
    """Exit this process when `process` has ended, whoever else holds a copy of its connection."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # an old kernel, or a container that does not allow it
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
    except PermissionError:  # of another user
        return True
    return True
