"""The worker's side: a process that runs some lanes ahead of the trainer.

The trainer sends commands, the worker messages; both are small. A worker is at most `prefetch`
messages ahead, and each carries the state of its lane after its batch, so that what was not taken
never matters: a worker that dies is started again from the places that were.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import os
import pickle
import select
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from energy_data.core.memory import MakingIn
from energy_data.core.profiler import HELD, SENDING
from energy_data.core.user_call import CALL
from energy_data.errors import add_note
from energy_data.loading.ahead import Ahead
from energy_data.loading.run import Run
from energy_data.loading.status import Status
from energy_data.loading.transport.arena import (
    ArenaFullError,
    ArenaWriter,
    BatchHandle,
    SlotAllocator,
)
from energy_data.loading.wire import (
    Go,
    Line,
    Message,
    Taken,
    portable,
    receive,
    receive_order,
    send,
    send_files,
)

_MOST_WITHOUT = 30  # batches in a row that get no draft
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h

HELD_BACK = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}  # until a new worker can deal with them


class Setup(NamedTuple):
    """What a worker is started with."""

    run: Run[Any] | bytes  # bytes: pickled
    connection: Connection
    prefetch: int  # messages ahead of the trainer, at most
    arena_bytes: int
    parent: int  # process id
    environ: dict[str, str] | None  # of the trainer, where ours is that of the fork server
    collects: bool  # whether the trainer collects garbage


class _AbandonedError(Exception):
    """The trainer said where to begin while a batch was waiting for room."""


def main(setup: Setup) -> None:
    """Run a worker until the trainer closes the connection."""
    # What a fork gave us is not ours to free: of a tensor of a GPU, that would take us down. So
    # whatever is there, garbage too, is never collected here.
    gc.freeze()
    if setup.collects:
        gc.enable()
    _prepare_process(setup)
    line = Line(setup.connection)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _Worker(setup, line).run()
    # At once: taking down an interpreter that has torch in it takes a second.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _Worker(Ahead[Message]):
    def __init__(self, setup: Setup, line: Line) -> None:
        super().__init__()
        self.line, self.prefetch = line, setup.prefetch
        self.told = select.poll()  # `Connection.poll` makes one each time
        self.told.register(line.fd, select.POLLIN)
        self.arena = ArenaWriter(setup.arena_bytes)
        self.status = Status(self.arena.memory)
        send_files(self.line, [self.arena.fd, self.status.stacks])
        self.facts = self._unpacked(setup.run)
        self.drafts = True  # batches are made where they will travel
        self.without = self.pause = 0  # batches without a draft: next, and since it was of no use

    def _unpacked(self, run: Run[Any] | bytes) -> Run[Any]:
        if not isinstance(run, bytes):
            return run
        try:
            unpacked: Run[Any] = pickle.loads(run)  # noqa: S301 - pickled by our own trainer
        except Exception as error:
            send(self.line, Message(-1, "unfit", 0, error=portable(error)))
            # The trainer may be about to send, and would take an end for a crash.
            while os.read(self.line.fd, select.PIPE_BUF):
                pass
            raise EOFError from error
        return unpacked

    def run(self) -> None:
        while True:
            while self.waiting or self.ahead >= self.prefetch or self.told.poll(0):
                self.obey(receive(self.line, Taken))
            with contextlib.suppress(_AbandonedError):
                self.produce()

    def obey(self, command: Taken | None) -> None:
        if command is None:
            self.begin(receive_order(self.line))
        else:
            self.ahead -= command.messages
            self.arena.free(command.slots)

    def begin(self, go: Go) -> None:
        trace = self.status.say if go.traced else None
        self.set_out(
            go,
            lambda: self.facts.build(go.places, go.num_lanes, trace=trace, profiler=self.profiler),
        )

    def hand_over(self, message: Message) -> None:
        send(self.line, message)

    def made(self, lane: int) -> Message:
        message = Message(self.go.generation, "batch", self.batch)
        node = self.nodes[lane]
        draft = self.draft()
        CALL.batch = self.batch
        try:
            with MakingIn(draft):
                items = list(node.take(1))
        except StopIteration:
            self.living.discard(lane)
            return message._replace(kind="end", state=node.state_dict())
        except Exception as error:  # noqa: BLE001 - it is the trainer's to raise, with our traceback
            return message._replace(kind="error", error=portable(error))
        state = node.state_dict()
        if not items:
            return message._replace(kind="left out", state=state)
        try:
            parcel = self.parcel(items, draft)
            return Message(self.go.generation, "batch", self.batch, parcel, state)
        except ArenaFullError as error:
            return message._replace(kind="full", error=portable(error))
        except _AbandonedError:
            raise
        except Exception as error:  # noqa: BLE001 - as above: a batch that cannot be pickled
            add_note(error, "while sending a batch to the trainer: it must be picklable")
            return message._replace(kind="error", error=portable(error))

    def draft(self) -> SlotAllocator | None:
        """Return where to make the next batch; None if it is hardly made there anyway."""
        if self.without:
            self.without -= 1
            return None
        return self.arena.allocator() if self.drafts else None

    def parcel(self, items: list[Any], draft: SlotAllocator | None) -> BatchHandle:
        """Return the one batch of `items` in the arena, and leave nothing of it in them."""
        if draft and draft.end:
            self.pause = 0
        elif draft:  # nothing was made in it
            draft.close()
            draft = None
            # An even number: so that each of two kinds of batches that come by turns has its turn.
            self.without = self.pause = min(2 * self.pause + 2, _MOST_WITHOUT)
        parcel = self.fitted(items, draft)
        if parcel is None:  # the draft is in the way of the whole
            items[0] = pickle.loads(pickle.dumps(items[0]))  # noqa: S301 - a copy of our own
            assert draft is not None
            draft.close()
            draft = None
            parcel = self.written(items[0], None)
        items.clear()
        if draft is None or draft.close() or parcel.slot != draft.slot:
            return parcel
        # The task encoder keeps something of its batches, which is not to change under its hands.
        self.drafts = False
        return self.written(self.arena.read(parcel), None)

    def fitted(self, items: list[Any], draft: SlotAllocator | None) -> BatchHandle | None:
        """Return the batch in the arena, None if it is too large beside its draft.

        A function of its own: while an error is handled, its traceback holds on to the batch.
        """
        try:
            return self.written(items[0], draft)
        except ArenaFullError:
            if draft is None:
                raise
        return None

    def written(self, batch: Any, draft: SlotAllocator | None) -> BatchHandle:
        """Return the batch in the arena. Waits for room as long as batches are on their way.

        When all are taken, the trainer has said which slots it still looks at: only then the arena
        is full through batches that the user keeps.
        """
        while True:
            began = time.perf_counter()
            try:
                parcel = self.arena.write(batch, draft)
            except ArenaFullError:
                if not self.ahead:
                    raise
            else:
                self.profiler.add(SENDING, time.perf_counter() - began)
                return parcel
            generation = self.go.generation
            self.obey(receive(self.line, Taken))
            self.profiler.add(HELD, time.perf_counter() - began)
            if self.go.generation != generation:
                raise _AbandonedError


def _keep_memory() -> None:
    """Tell glibc to keep what is freed: giving it back costs page faults with every batch."""
    with contextlib.suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def _prepare_process(setup: Setup) -> None:
    _keep_memory()
    # A trainer that is told to stop must still be able to save: it decides when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)  # a fork has the trainer's, and would wake its event loop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
    threading.Thread(
        target=end_with,
        args=(setup.parent,),
        name="energy_data: is the trainer alive",
        daemon=True,
    ).start()
    if setup.environ is not None:
        os.environ.clear()
        os.environ.update(setup.environ)
    torch.set_num_threads(1)


def end_with(process: int) -> None:
    """End this process when that one has ended, whoever else holds a copy of its connection."""
    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # a kernel without
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
