"""A worker's way ahead of the trainer: which of its lanes is next, and how far it has come."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from energy_data.core.profiler import Profiler, Usage
from energy_data.loading.lanes import Nodes
from energy_data.loading.wire import Go

_REPORT_S = 0.2  # between two reports of what time is spent on
_IDLE = ("error", "full", "again")  # after these, a worker waits to be told where to go on


class Said(Protocol):
    """What a worker says about one micro-batch: a named tuple."""

    @property
    def kind(self) -> str:
        """What came of it; "batch" of a good one."""
        ...

    def _replace(self, *, spent: Usage | None) -> Self: ...


M = TypeVar("M", bound=Said)


class Ahead(ABC, Generic[M]):
    """Makes the micro-batches of some lanes, in the order in which the rank needs them."""

    def __init__(self) -> None:
        self.go = Go(0, 1, 0, {}, traced=False)
        self.nodes: Nodes = {}
        self.living: set[int] = set()
        self.profiler, self._reported = Profiler(), 0.0
        self.batch = 0
        self.ahead = 0  # messages that the trainer has not taken
        self.waiting = True  # for an order, having nothing to do without one

    @abstractmethod
    def made(self, lane: int) -> M:
        """Return what comes of micro-batch `batch`, the next of `lane`."""

    @abstractmethod
    def hand_over(self, message: M) -> None:
        """Let the trainer have it."""

    def set_out(self, go: Go, build: Callable[[], Nodes]) -> None:
        """Begin at a place. build: makes the nodes of its lanes, if these are others."""
        if _lanes(go) != _lanes(self.go):
            self.nodes = build()
        self.go, self.batch = go, go.batch
        for lane, state in go.places.items():
            self.nodes[lane].load_state_dict(state)
        self.living, self.waiting = set(self.nodes), not self.nodes

    def produce(self) -> None:
        """Make the next micro-batch of our lanes, and hand it over."""
        lane = self.batch % self.go.num_lanes
        while lane not in self.living:
            self.batch += self.go.stride
            lane = self.batch % self.go.num_lanes
        began, total_s = time.perf_counter(), self.profiler.total_s
        message = self.made(lane)
        self.profiler.add_rest(began, total_s)
        self.waiting = not self.living or message.kind in _IDLE
        self.ahead += 1
        self.batch += self.go.stride
        spent = self._spent(message.kind)
        self.hand_over(message if spent is None else message._replace(spent=spent))

    def _spent(self, kind: str) -> Usage | None:
        """Return what was spent, from time to time."""
        now = time.perf_counter()
        if kind == "batch" and now < self._reported + _REPORT_S:
            return None
        self._reported = now
        return self.profiler.flush()


def _lanes(go: Go) -> tuple[set[int], int, bool]:
    """Return what nodes are built for."""
    return set(go.places), go.num_lanes, go.traced
