"""The worker's side: a process that runs some lanes ahead of the trainer.

The trainer sends commands, the worker messages; both are small. A worker is at most `prefetch`
messages ahead, and each carries the state of its lane after its batch, so that what was not taken
never matters: a worker that dies is started again from the places that were.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch

from energy_data.loader.arena import ArenaFullError, ArenaWriter, Parcel
from energy_data.loader.run import Run
from energy_data.nodes.encode import EncodeNode
from energy_data.sample import describe_source

STATUS_BYTES = mmap.PAGESIZE  # what the worker is at, in words, for when it cannot say so itself


class Go(NamedTuple):
    """Begin at a place; messages of earlier generations are void."""

    generation: int
    batch: int
    stride: int  # the world size: the rank's micro-batches are batch, batch + stride, ...
    num_lanes: int
    places: dict[int, Any]  # lane -> state, of the worker's lanes
    traced: bool  # say before each sample which it is: one of them kills the process


class Taken(NamedTuple):
    """The trainer took a message, and these slots are free again."""

    messages: int
    slots: list[int]


class Message(NamedTuple):
    """What a worker has to say about one micro-batch."""

    generation: int
    kind: Literal["batch", "left out", "end", "error", "full"]
    batch: int
    parcel: Parcel | None = None
    state: Any = None  # of the lane, after this batch
    error: tuple[bytes | None, str] | None = None  # pickled exception, traceback
    seconds: float = 0.0  # it took to make


class Setup(NamedTuple):
    """What a worker is started with."""

    run: Run[Any]
    connection: Connection
    prefetch: int  # messages ahead of the trainer, at most
    arena_bytes: int
    parent: int  # process id
    inherited: tuple[Connection, ...]  # ends of others that fork gave us too


def main(setup: Setup) -> None:
    """Run a worker until the trainer closes the connection."""
    for connection in setup.inherited:
        connection.close()
    _prepare_process(setup.parent)
    worker = _Worker(setup)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        worker.run()


class _Worker:
    def __init__(self, setup: Setup) -> None:
        self.facts, self.connection = setup.run, setup.connection
        self.prefetch = setup.prefetch
        self.arena = ArenaWriter(setup.arena_bytes)
        self.status = _Status(self.arena.fd)
        send_handle(setup.connection, self.arena.fd, setup.parent)
        send_handle(setup.connection, self.status.stacks, setup.parent)
        self.go = Go(-1, 0, 1, 1, {}, traced=False)
        self.nodes: dict[int, Any] = {}
        self.living: set[int] = set()
        self.ahead = 0  # messages sent and not taken
        self.waiting = True  # for a command, having nothing to do without one

    def run(self) -> None:
        while True:
            while self.waiting or self.ahead >= self.prefetch or self.connection.poll():
                self.obey(self.connection.recv())
            self.produce()

    def obey(self, command: Go | Taken) -> None:
        if isinstance(command, Taken):
            self.ahead -= command.messages
            self.arena.free(command.slots)
            return
        if set(command.places) != set(self.nodes) or command.traced != self.go.traced:
            trace = self.status.say if command.traced else None
            self.nodes = self.facts.build(command.places, command.num_lanes, trace=trace)
        for lane, state in command.places.items():
            self.nodes[lane].load_state_dict(state)
        self.go, self.batch = command, command.batch
        self.living, self.waiting = set(self.nodes), not self.nodes

    def produce(self) -> None:
        """Make the next micro-batch of our lanes, and send it."""
        lane = self.batch % self.go.num_lanes
        while lane not in self.living:
            self.batch += self.go.stride
            lane = self.batch % self.go.num_lanes
        began = time.perf_counter()
        message = self.made(lane)
        self.connection.send(message._replace(seconds=time.perf_counter() - began))
        self.ahead += 1
        self.waiting = not self.living or message.kind in ("error", "full")
        self.batch += self.go.stride

    def made(self, lane: int) -> Message:
        message = Message(self.go.generation, "batch", self.batch)
        node = self.nodes[lane]
        try:
            items = node.take(1)
        except StopIteration:
            self.living.discard(lane)
            return message._replace(kind="end", state=node.state_dict())
        except Exception as error:  # noqa: BLE001 - it is the trainer's to raise, with our traceback
            return message._replace(kind="error", error=_portable(error))
        state = node.state_dict()
        if not items:
            return message._replace(kind="left out", state=state)
        try:
            return message._replace(parcel=self.arena.write(items[0]), state=state)
        except ArenaFullError as error:
            return message._replace(kind="full", error=_portable(error))
        except Exception as error:  # noqa: BLE001 - as above: a batch that cannot be pickled
            error.add_note("while sending a batch to the trainer: it must be picklable")
            return message._replace(kind="error", error=_portable(error))


class _Status:
    """A page of shared memory that says what the worker is at, also after its death."""

    def __init__(self, arena: int) -> None:
        self.stacks = os.memfd_create("energy_data_stacks", os.MFD_CLOEXEC)
        self._page = mmap.mmap(arena, STATUS_BYTES)
        # When asked by signal: first where every thread is (also one stuck in C), then which
        # sample that is, which takes a Python that still runs.
        signal.signal(signal.SIGUSR1, self._asked)
        faulthandler.register(signal.SIGUSR1, file=self.stacks, all_threads=True, chain=True)

    def say(self, what: Any) -> None:
        """Write down what comes next."""
        text = what if isinstance(what, str) else describe_source(what)
        data = text.encode(errors="replace")[: STATUS_BYTES - 1]
        self._page[: len(data) + 1] = data + b"\0"

    def _asked(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code is EncodeNode.draw.__code__ and "sample" in frame.f_locals:
                self.say(frame.f_locals["sample"])
                return
            frame = frame.f_back


def _prepare_process(parent: int) -> None:
    torch.set_num_threads(1)
    # A trainer that is told to stop must still be able to save: it decides when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    original = os.getppid()

    def watch() -> None:
        while os.getppid() == original and _is_alive(parent):
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="energy_data: is the trainer alive", daemon=True).start()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _portable(error: Exception) -> tuple[bytes | None, str]:
    """Return an error as it can cross: pickled where it can be, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - some errors pickle, and then cannot be made again
    except Exception:  # noqa: BLE001 - whatever goes wrong, the text is left
        return None, text
    return pickled, text
