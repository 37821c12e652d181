"""The worker's side of a worker process."""

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
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from energy_data.core.batch_memory import allocate_in
from energy_data.core.cursor import save
from energy_data.core.profiler import HELD
from energy_data.core.user_call import CALL
from energy_data.errors import add_note
from energy_data.loading.lanes import Nodes
from energy_data.loading.transport.arena import ArenaFullError, ArenaWriter, BatchSender
from energy_data.loading.workers.prefetcher import Prefetcher, Superseded
from energy_data.loading.workers.protocol import (
    PEER_GONE,
    Ack,
    Channel,
    Message,
    Start,
    portable,
)
from energy_data.loading.workers.watchdog import Heartbeat, exit_with

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h

BLOCKED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
"""Blocked while a process starts, until it has its own handlers."""


class Setup(NamedTuple):
    """What a worker process is started with."""

    dataset: SavableDataset[Any] | bytes  # bytes: pickled
    connection: Connection
    prefetch: int  # messages ahead of the trainer, at most
    arena_bytes: int
    parent: int  # process id
    environ: dict[str, str] | None  # of the trainer; None: the process inherits it
    collects: bool  # whether the trainer collects garbage


def main(setup: Setup) -> None:
    """Run a worker process until the trainer closes the connection."""
    # A forked child must not free objects inherited from the parent: to free a tensor of a GPU
    # would crash it. So nothing that exists now is ever collected.
    gc.freeze()
    if setup.collects:
        gc.enable()
    _prepare_process(setup)
    channel = Channel(setup.connection)
    with contextlib.suppress(*PEER_GONE):
        _ProcessPrefetcher(setup, channel).run()
    # Immediately: to shut down an interpreter with torch takes a second.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _ProcessPrefetcher(Prefetcher):
    """The work of a worker process. Batches are written to an arena of shared memory."""

    def __init__(self, setup: Setup, channel: Channel) -> None:
        super().__init__(setup.prefetch)
        self.channel = channel
        self._events = select.poll()  # `Connection.poll` would make one for every call
        self._events.register(channel.fd, select.POLLIN)
        self.arena = ArenaWriter(setup.arena_bytes)
        self.heartbeat = Heartbeat(self.arena.memory)
        channel.send_files([self.arena.fd, self.heartbeat.stacks])
        self._dataset = self._unpickled(setup.dataset)
        self._sender = BatchSender(self.arena, self._wait_for_room, self.profiler)

    def _unpickled(self, dataset: SavableDataset[Any] | bytes) -> SavableDataset[Any]:
        if not isinstance(dataset, bytes):
            return dataset
        try:
            unpickled: SavableDataset[Any] = pickle.loads(dataset)  # noqa: S301 - our own trainer
        except Exception as error:
            self.send(Message(-1, "unfit", 0, error=portable(error)))
            # The trainer may be about to send, and would take the end of the process for a crash.
            while os.read(self.channel.fd, select.PIPE_BUF):
                pass
            raise EOFError from error
        return unpickled

    def has_order(self) -> bool:
        return bool(self._events.poll(0))

    def next_order(self) -> Start | Ack | None:
        return self.channel.receive_order()

    def send(self, message: Message) -> None:
        self.channel.send(message)

    def error(self, error: BaseException) -> Any:
        return portable(error)

    def free(self, slots: Sequence[int]) -> None:
        self.arena.free(slots)

    def build(self, start: Start) -> Nodes:
        trace = self.heartbeat.report if start.traced else None
        return self._dataset.build(
            start.places, start.num_lanes, trace=trace, profiler=self.profiler
        )

    def make(self, lane: int) -> Message:
        node = self.nodes[lane]
        allocator = self._sender.allocator()
        CALL.batch = self.batch
        try:
            with allocate_in(allocator):
                items = list(node.take(1))
        except StopIteration:
            self.living.discard(lane)
            return self.message("end", state=save(node))
        state = save(node)
        if not items:
            return self.message("skipped", state=state)
        try:
            return self.message("batch", self._sender.write(items, allocator), state)
        except ArenaFullError as error:
            return self.message("full", error=portable(error))
        except Superseded:
            raise
        except Exception as error:
            add_note(error, "while sending a batch to the trainer: it must be picklable")
            raise

    def _wait_for_room(self) -> bool:
        """Wait until the trainer receives a message; return False if it has received all.

        It then has sent all free slots, so the arena is full only because of batches that the user
        keeps.
        """
        if not self.ahead:
            return False
        began, generation = time.perf_counter(), self.start.generation
        self.obey(self.channel.receive_order())
        self.profiler.add(HELD, time.perf_counter() - began)
        if self.start.generation != generation:
            raise Superseded
        return True


def _keep_memory() -> None:
    """Make glibc keep freed memory: to return it costs page faults with every batch."""
    with contextlib.suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_M_TRIM_THRESHOLD, 256 << 20)


def _prepare_process(setup: Setup) -> None:
    _keep_memory()
    # The trainer decides when workers end: on a signal to stop it must still be able to save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)  # a forked child would wake the event loop of the trainer
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED_SIGNALS)
    threading.Thread(
        target=exit_with,
        args=(setup.parent,),
        name="energy_data: watch the trainer",
        daemon=True,
    ).start()
    if setup.environ is not None:
        os.environ.clear()
        os.environ.update(setup.environ)
    torch.set_num_threads(1)
