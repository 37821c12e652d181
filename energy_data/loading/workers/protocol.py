"""The messages between trainer and worker, and the connection that carries them to a process."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import struct
import traceback
from io import FileIO
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple, TypeVar

from energy_data.core.profiler import Usage
from energy_data.errors import EnergyDataError
from energy_data.loading.transport.arena import BatchHandle, Slot

M = TypeVar("M", "Message", "Ack")

Kind = Literal["batch", "skipped", "end", "error", "full", "unfit"]
"""Of a message. full: the arena is; unfit: the process cannot make the dataset."""

PEER_GONE = (EOFError, BrokenPipeError, ConnectionResetError)
"""What sending and receiving raise when the other end is closed."""

_LENGTH = struct.Struct("<Q")  # bytes of the message that follows


class Start(NamedTuple):
    """Start at a position. Messages of earlier generations are void."""

    batch: int
    stride: int  # the world size: the rank's micro-batches are batch, batch + stride, ...
    num_lanes: int
    places: dict[int, Any]  # lane -> state, for the lanes of the worker
    traced: bool  # report every sample before it is encoded, since one of them kills the process
    generation: int = 0  # counts the starts of a worker


class Ack(NamedTuple):
    """The trainer received messages, and these slots of the arena are free again."""

    messages: int
    slots: list[int]

    @classmethod
    def unpack(cls, fields: tuple[Any, ...]) -> Ack:
        """Return the order that `pack` packed."""
        return cls(*fields)

    def pack(self) -> tuple[Any, ...]:
        """Return plain data, which pickles several times as fast as classes."""
        return tuple(self)


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

    def send(self, message: Message | Ack | None) -> None:
        """Send a message.

        `Connection.send` takes three times the bytecodes, and if the other end is closed, Python
        3.13 prints an error about the buffer that it exports.
        """
        fields = None if message is None else message.pack()
        data = pickle.dumps(fields, pickle.HIGHEST_PROTOCOL)
        data = _LENGTH.pack(len(data)) + data
        sent = os.write(self.fd, data)
        while sent < len(data):
            sent += os.write(self.fd, memoryview(data)[sent:])

    def receive(self, kind: type[M]) -> M | None:
        """Return the next message, of that kind; wait for it. EOFError if the other end is gone."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        fields = pickle.loads(self._read(length))  # noqa: S301 - sent by our own process
        return None if fields is None else kind.unpack(fields)

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
        ack = self.receive(Ack)
        if ack is not None:
            return ack
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
        files = list(map(FileIO, descriptors))
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


def portable(error: BaseException) -> tuple[bytes | None, str]:
    """Return an error for another process: pickled if possible, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - some errors pickle, but cannot be unpickled
    except Exception:  # noqa: BLE001 - whatever goes wrong, the text is left
        return None, text
    return pickled, text
