"""The worker's side: the loop of a worker, and the process that runs it.

The trainer sends orders, the worker messages. A worker is at most `prefetch` messages ahead, and
each message carries the state of its lane after its batch. Batches that the trainer has not
received do not matter: a worker that dies is started again from the states of those that it has.
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
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from energy_data.core.batch_memory import Allocator, allocate_in
from energy_data.core.cursor import State, restore, save
from energy_data.core.profiler import HELD, STARTING, Profiler, Usage
from energy_data.core.user_call import CALL
from energy_data.errors import SpecError
from energy_data.loading.lanes import LanesStart, Nodes
from energy_data.loading.transport.arena import ArenaFullError, ArenaWriter, SlotAllocator
from energy_data.loading.transport.sender import BatchSender
from energy_data.loading.transport.unsendable import explain
from energy_data.loading.workers.protocol import (
    PEER_GONE,
    Ack,
    Channel,
    Heartbeat,
    Kind,
    Message,
    Start,
    exit_with,
    portable,
)
from energy_data.nodes.read_ahead import look_ahead

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

_REPORT_S = 0.2  # between two reports of the profiler
_IDLE = ("error", "full")  # after these, a worker waits for a new start
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of malloc.h
_KEPT_BYTES = 1 << 30  # of freed memory at the end of the heap

ADVICE = (
    "Define the functions and classes it uses in a module, not inside a function, as a lambda or "
    'in a notebook; or use start_method="fork", or num_workers=0.'
)

BLOCKED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
"""Blocked while a process starts, until it has its own handlers."""


class Superseded(Exception):  # noqa: N818 - a jump, not an error
    """The trainer sent a new start while a batch waited for room."""


class Prefetcher(ABC):
    """Makes the micro-batches of some lanes, in the order in which the rank needs them."""

    catches: type[BaseException] = Exception  # errors that are sent to the trainer

    def __init__(self, dataset: SavableDataset[Any] | bytes, prefetch: int) -> None:
        """dataset: from `process.portable_dataset`."""
        self._dataset, self.prefetch = dataset, prefetch
        self.start = Start(LanesStart(0, 0, {}, {}), 1, traced=False)
        self.nodes: Nodes = {}
        self.living: set[int] = set()  # lanes that have not ended
        self.batch = 0
        self.ahead = 0  # messages that the trainer has not received
        self.waiting = True  # for a start; there is nothing to do without one
        self.profiler, self._reported = Profiler(), 0.0

    @abstractmethod
    def has_order(self) -> bool:
        """Return whether an order has arrived."""

    @abstractmethod
    def next_order(self) -> Start | Ack | None:
        """Return the next order; wait for it. None: stop."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message to the trainer."""

    @abstractmethod
    def error(self, error: BaseException) -> Any:
        """Return an error as messages carry it."""

    @abstractmethod
    def packed(self, items: list[Any], allocator: Any) -> Any:
        """Return the only batch of `items` as messages carry it.

        allocator: what its tensors were made with.
        """

    def allocator(self) -> Allocator | None:
        """Return what the tensors of the next batch are made with; None: ordinary memory."""
        return None

    def report(self, sample: Any) -> None:  # noqa: B027 - threads cannot die of a sample
        """Report the sample that comes next."""

    def free(self, slots: Sequence[int]) -> None:  # noqa: B027 - threads have no arena
        """Free slots of the arena."""

    def run(self) -> None:
        """Make batches until the trainer sends the order to stop."""
        while True:
            while self.waiting or self.ahead >= self.prefetch or self.has_order():
                order = self.next_order()
                if order is None:
                    return
                self.obey(order)
            with contextlib.suppress(Superseded):
                self.produce()

    def obey(self, order: Start | Ack) -> None:
        """Carry out an order."""
        if isinstance(order, Ack):
            self.ahead -= order.messages
            self.free(order.slots)
            return
        before, self.start, self.batch = self.start, order, order.lanes.batch
        self.living = set(order.lanes.places)
        try:
            if not self.nodes or _tree_key(order) != _tree_key(before):
                self.nodes = {}
                self.nodes = self._built(order)
            else:
                for lane, state in order.lanes.places.items():
                    restore(self.nodes[lane], state)
            nexts = order.lanes.nexts(self.batch)
            look_ahead(self.nodes[lane] for lane in sorted(nexts, key=nexts.__getitem__))
        except self.catches as error:
            self._next_lane()
            self._finish(self.message("error", error=self.error(error)))
        else:
            self.waiting = not self.nodes

    def _built(self, start: Start) -> Nodes:
        """Return new nodes of the lanes, restored; SpecError if the dataset cannot be made here."""
        began = time.perf_counter()
        dataset = self._dataset
        if isinstance(dataset, bytes):
            try:
                unpickled: SavableDataset[Any] = pickle.loads(dataset)  # noqa: S301 - by our trainer
            except Exception as error:
                raise SpecError(
                    f"worker: the dataset cannot be made in the worker from its pickled form "
                    f"({error}). {ADVICE}"
                ) from error
            dataset = self._dataset = unpickled
        trace = self.report if start.traced else None
        lanes = start.lanes
        nodes = dataset.build(lanes.places, lanes.num_lanes, trace=trace, profiler=self.profiler)
        self.profiler.add(STARTING, time.perf_counter() - began)
        return nodes

    def produce(self) -> None:
        """Make the next micro-batch, and send it."""
        lane = self._next_lane()
        began, total_s = time.perf_counter(), self.profiler.total_s
        try:
            message = self._made(lane)
            self.profiler.add_rest(began, total_s)
            usage = self._usage(message.kind)
        except Superseded:
            raise
        except self.catches as error:
            message, usage = self.message("error", error=self.error(error)), None
        self._finish(message if usage is None else message._replace(usage=usage))

    def _made(self, lane: int) -> Message:
        """Return the outcome of micro-batch `batch`, the next of `lane`."""
        node, allocator = self.nodes[lane], self.allocator()
        CALL.batch = self.batch
        try:
            with allocate_in(allocator) if allocator else contextlib.nullcontext():
                items = list(node.take(1))
        except StopIteration:
            self.living.discard(lane)
            return self.message("end", state=save(node))
        state = save(node)
        if not items:
            return self.message("skipped", state=state)
        try:
            return self.message("batch", self.packed(items, allocator), state)
        except ArenaFullError as error:
            return self.message("full", error=self.error(error))

    def message(
        self, kind: Kind, content: Any = None, state: State | None = None, error: Any = None
    ) -> Message:
        """Return a message about the current micro-batch."""
        return Message(self.start.generation, kind, self.batch, content, state, error)

    def _next_lane(self) -> int:
        """Move to the next micro-batch of a lane that has not ended; return the lane."""
        lanes = self.start.lanes
        if self.batch % lanes.num_lanes not in self.living or not lanes.has(self.batch):
            self.batch = lanes.first_left(self.batch, lanes.places.keys() - self.living)
        return self.batch % lanes.num_lanes

    def _finish(self, message: Message) -> None:
        self.waiting = not self.living or message.kind in _IDLE
        self.ahead += 1
        self.batch += self.start.stride
        self.send(message)

    def _usage(self, kind: str) -> Usage | None:
        """Return what was spent, a few times a second."""
        now = time.perf_counter()
        if kind == "batch" and now < self._reported + _REPORT_S:
            return None
        self._reported = now
        return self.profiler.flush()


def _tree_key(start: Start) -> tuple[set[int], int, bool]:
    """Return the facts that nodes are built for."""
    return set(start.lanes.places), start.lanes.num_lanes, start.traced


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
    """The loop of a worker process. Batches are written to an arena of shared memory."""

    def __init__(self, setup: Setup, channel: Channel) -> None:
        super().__init__(setup.dataset, setup.prefetch)
        self.channel = channel
        self._events = select.poll()  # `Connection.poll` would make one for every call
        self._events.register(channel.fd, select.POLLIN)
        self.arena = ArenaWriter(setup.arena_bytes)
        self.heartbeat = Heartbeat(self.arena.memory)
        channel.send_files([self.arena.fd, self.heartbeat.stacks])
        self._sender = BatchSender(self.arena, self._wait_for_room, self.profiler)

    def has_order(self) -> bool:
        return bool(self._events.poll(0))

    def next_order(self) -> Start | Ack | None:
        return self.channel.receive_order()

    def send(self, message: Message) -> None:
        self.channel.send(message.pack())

    def error(self, error: BaseException) -> Any:
        return portable(error)

    def report(self, sample: Any) -> None:
        self.heartbeat.report(sample)

    def free(self, slots: Sequence[int]) -> None:
        self.arena.free(slots)

    def allocator(self) -> SlotAllocator | None:
        return self._sender.allocator()

    def packed(self, items: list[Any], allocator: SlotAllocator | None) -> Any:
        try:
            return self._sender.write(items, allocator)
        except (ArenaFullError, Superseded):
            raise
        except Exception as error:
            explain(error, items[0])
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
    """Make glibc keep freed memory: to return it costs page faults with every batch.

    By default it maps and unmaps each block of more than 32 MiB. Settings of the user remain.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):  # another libc
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _prepare_process(setup: Setup) -> None:
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
    _keep_memory()
    torch.set_num_threads(1)
