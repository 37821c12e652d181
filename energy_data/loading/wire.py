"""What trainer and worker say to each other, over one connection; all messages are small."""

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

M = TypeVar("M", "Message", "Taken")

_LENGTH = struct.Struct("<Q")  # bytes of the message that follows


class Go(NamedTuple):
    """Begin at a place; messages of earlier generations are void."""

    batch: int
    stride: int  # the world size: the rank's micro-batches are batch, batch + stride, ...
    num_lanes: int
    places: dict[int, Any]  # lane -> state, of the worker's lanes
    traced: bool  # say before each sample which it is: one of them kills the process
    generation: int = -1  # counts the orders a worker got


class Taken(NamedTuple):
    """The trainer took messages, and these slots are free again."""

    messages: int
    slots: list[int]

    @classmethod
    def of(cls, plain: tuple[Any, ...]) -> Taken:
        """Return what crossed as plain data."""
        return cls(*plain)

    @property
    def plain(self) -> tuple[Any, ...]:
        """The same as plain data, which pickles several times as fast as classes do."""
        return tuple(self)


class Message(NamedTuple):
    """What a worker has to say about one micro-batch."""

    generation: int
    kind: Literal["batch", "left out", "end", "error", "full", "unfit"]
    batch: int
    parcel: BatchHandle | None = None
    state: Any = None  # of the lane, after this batch
    error: tuple[bytes | None, str] | None = None  # pickled exception, traceback
    spent: Usage | None = None  # on what, since the last message that says so

    @classmethod
    def of(cls, plain: tuple[Any, ...]) -> Message:
        """Return what crossed as plain data."""
        generation, kind, batch, parcel, *others = plain
        if parcel is not None:
            pickled, slot, *rest = parcel
            parcel = BatchHandle(pickled, Slot(*slot), *rest)
        return cls(generation, kind, batch, parcel, *others)

    @property
    def plain(self) -> tuple[Any, ...]:
        """The same as plain data, as far as it is said every time."""
        generation, kind, batch, parcel, *others = self
        if parcel is None:
            return tuple(self)
        pickled, slot, *rest = parcel
        return generation, kind, batch, (pickled, tuple(slot), *rest), *others


class Line:
    """One end of the connection between trainer and worker."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.fd = connection.fileno()  # -1 as soon as it is closed: the number may become another's
        self.files = socket.socket(
            socket.AF_UNIX, socket.SOCK_STREAM, fileno=os.dup(connection.fileno())
        )
        self._process = os.getpid()

    def hang_up(self) -> None:
        """Close the connection, for all processes that hold a copy; idempotent.

        In a process that is a copy of ours, its copy only is closed.
        """
        if os.getpid() == self._process:
            with contextlib.suppress(OSError):
                self.files.shutdown(socket.SHUT_RDWR)
        self.fd = -1
        self.files.close()
        self.connection.close()


def send(line: Line, message: Message | Taken | None) -> None:
    """Send a message.

    As `Connection.send` does, in a third of the bytecodes. And that lends out its buffer: if the
    other end is gone, Python 3.13 says so on stderr when the error is collected.
    """
    plain = None if message is None else message.plain
    data = pickle.dumps(plain, pickle.HIGHEST_PROTOCOL)
    data = _LENGTH.pack(len(data)) + data
    sent = os.write(line.fd, data)
    while sent < len(data):
        sent += os.write(line.fd, memoryview(data)[sent:])


def receive(line: Line, kind: type[M]) -> M | None:
    """Return the next message, of that kind; wait for it. EOFError if the other end is gone."""
    head = os.read(line.fd, _LENGTH.size)
    if len(head) < _LENGTH.size:
        head = _rest(line, head, _LENGTH.size)
    (length,) = _LENGTH.unpack(head)
    data = os.read(line.fd, length)
    if len(data) < length:
        data = _rest(line, data, length)
    plain = pickle.loads(data)  # noqa: S301 - sent by our own process
    return None if plain is None else kind.of(plain)


def _rest(line: Line, part: bytes, length: int) -> bytes:
    """Return so many bytes of a message of which a part was read."""
    parts = [part]
    while part and (length := length - len(part)):
        parts.append(part := os.read(line.fd, length))
    if not part:
        raise EOFError
    return b"".join(parts)


def send_order(line: Line, go: Go) -> None:
    """Send where to begin. Never waits for the worker, which may be waiting for us to read."""
    with os.fdopen(os.memfd_create("energy_data_order", os.MFD_CLOEXEC), "wb") as order:
        pickle.dump(go, order)
        order.flush()
        send(line, None)
        send_files(line, [order.fileno()])


def receive_order(line: Line) -> Go:
    """Return what `send_order` sent; its notice has been received."""
    (order,) = receive_files(line, 1)
    with order:
        order.seek(0)
        go: Go = pickle.loads(order.read())  # noqa: S301 - written by our own trainer
    return go


def send_files(line: Line, descriptors: list[int]) -> None:
    """Hand open files to the process at the other end."""
    socket.send_fds(line.files, [b"f"], descriptors)


def receive_files(line: Line, count: int) -> list[FileIO]:
    """Return the open files the other end sent. EOFError if it is gone."""
    data, descriptors, _, _ = socket.recv_fds(line.files, 1, count, socket.MSG_CMSG_CLOEXEC)
    files = list(map(FileIO, descriptors))  # closed with these, however they are lost
    if not data:
        raise EOFError
    if len(files) < count:
        for file in files:
            file.close()
        raise EnergyDataError(
            "worker: its memory cannot be shared, too many files are open. Raise the limit: "
            "ulimit -n."
        )
    return files


def portable(error: Exception) -> tuple[bytes | None, str]:
    """Return an error as it can cross: pickled where it can be, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - some errors pickle, and then cannot be made again
    except Exception:  # noqa: BLE001 - whatever goes wrong, the text is left
        return None, text
    return pickled, text
