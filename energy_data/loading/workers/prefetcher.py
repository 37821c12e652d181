"""The loop of a worker: which of its lanes is next, and how far it is ahead of the trainer.

The trainer sends orders, the worker messages. A worker is at most `prefetch` messages ahead, and
each message carries the state of its lane after its batch. Batches that the trainer has not
received do not matter: a worker that dies is started again from the states of those that it has.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from energy_data.core.cursor import restore
from energy_data.core.profiler import Profiler, Usage
from energy_data.loading.lanes import Nodes
from energy_data.loading.workers.protocol import Ack, Kind, Message, Start

_REPORT_S = 0.2  # between two reports of the profiler
_IDLE = ("error", "full")  # after these, a worker waits for a new start


class Superseded(Exception):  # noqa: N818 - a jump, not an error
    """The trainer sent a new start while a batch waited for room."""


class Prefetcher(ABC):
    """Makes the micro-batches of some lanes, in the order in which the rank needs them."""

    catches: type[BaseException] = Exception  # errors that are sent to the trainer

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.start = Start(0, 1, 0, {}, traced=False)
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
    def build(self, start: Start) -> Nodes:
        """Return new nodes of the lanes."""

    @abstractmethod
    def make(self, lane: int) -> Message:
        """Return the outcome of micro-batch `batch`, the next of `lane`."""

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message to the trainer."""

    @abstractmethod
    def error(self, error: BaseException) -> Any:
        """Return an error as messages carry it."""

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
        before, self.start, self.batch = self.start, order, order.batch
        self.living = set(order.places)
        try:
            if not self.nodes or _tree_key(order) != _tree_key(before):
                self.nodes = {}
                self.nodes = self.build(order)
            for lane, state in order.places.items():
                restore(self.nodes[lane], state)
        except self.catches as error:
            self._next_lane()
            self._finish(self.message("error", error=self.error(error)))
        else:
            self.waiting = not self.nodes

    def produce(self) -> None:
        """Make the next micro-batch, and send it."""
        lane = self._next_lane()
        began, total_s = time.perf_counter(), self.profiler.total_s
        try:
            message = self.make(lane)
            self.profiler.add_rest(began, total_s)
            usage = self._usage(message.kind)
        except Superseded:
            raise
        except self.catches as error:
            message, usage = self.message("error", error=self.error(error)), None
        self._finish(message if usage is None else message._replace(usage=usage))

    def message(
        self, kind: Kind, content: Any = None, state: Any = None, error: Any = None
    ) -> Message:
        """Return a message about the current micro-batch."""
        return Message(self.start.generation, kind, self.batch, content, state, error)

    def _next_lane(self) -> int:
        """Move to the next micro-batch of a lane that has not ended; return the lane."""
        while (lane := self.batch % self.start.num_lanes) not in self.living:
            self.batch += self.start.stride
        return lane

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
    return set(start.places), start.num_lanes, start.traced
