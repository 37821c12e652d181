"""Runs the lanes of a rank: the interface, and running them in this process."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from energy_data.core.context import Context
from energy_data.core.cursor import State, restore, save
from energy_data.core.node import Node
from energy_data.core.profiler import Profiler
from energy_data.core.user_call import CALL
from energy_data.nodes.leaf import leaves_of
from energy_data.nodes.read_ahead import look_ahead

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

Nodes = Mapping[int, Node[Any]]
"""Lane -> the root of its tree."""


class RunPosition(NamedTuple):
    """The position of a rank in the run. Micro-batches are counted over all ranks."""

    epoch: int = 0  # number of finished iterations
    epoch_start: int = 0  # the first micro-batch of this epoch
    batch: int = 0  # the next micro-batch; each rank continues with its first one from here on
    # The first micro-batch of this round, if none had been left out. In a round, each rank returns
    # one batch, so it is the same on all ranks, even if some have left out more than others.
    clock: int = 0

    def after(self, batch: int, round_size: int = 0) -> RunPosition:
        """Return the position after a micro-batch, and after the round if it was returned."""
        # Faster than `_replace`; called per batch.
        return RunPosition(self.epoch, self.epoch_start, batch + 1, self.clock + round_size)

    def next_of(self, rank: int, ranks: int) -> int:
        """Return the number of a rank's next micro-batch."""
        return self.batch + (rank - self.batch) % ranks


class LanesStart(NamedTuple):
    """Where the lanes of a rank continue."""

    batch: int  # the next micro-batch of the rank
    num_lanes: int  # of the run
    places: Mapping[int, State]  # lane -> its state
    # Lane -> its first micro-batch. Those before it, from `batch` on, were returned already.
    firsts: Mapping[int, int]

    def nexts(self, batch: int) -> dict[int, int]:
        """Return the next micro-batch of each lane if that of the rank is `batch`."""
        lanes, firsts = self.num_lanes, self.firsts
        return {
            lane: max(batch + (lane - batch) % lanes, firsts.get(lane, 0)) for lane in self.places
        }

    def first_left(self, batch: int, ended: Container[int]) -> int:
        """Return the first micro-batch from `batch` on of a lane that has not ended.

        Costs the same however far apart the lanes are. `batch` if all lanes have ended.
        """
        nexts = self.nexts(batch).items()
        return min((first for lane, first in nexts if lane not in ended), default=batch)

    def has(self, batch: int) -> bool:
        """Return whether a micro-batch of these lanes was not returned before."""
        return batch >= self.firsts.get(batch % self.num_lanes, 0)


class LaneRunner(ABC):
    """Runs the lanes of one rank, and knows their states after the last batch handed over."""

    profiler: Profiler
    """What time was spent on, and how much was read."""

    @property
    def slots_in_use(self) -> int:
        """The number of live batches in memory shared with worker processes."""
        return 0

    @abstractmethod
    def adopt(self, start: LanesStart) -> None:
        """Continue from a position. The tree of the run has been restored from it before."""

    @abstractmethod
    def take(self, lane: int, batch: int) -> Sequence[Any]:
        """Return micro-batch `batch` of the run, the next of `lane`; empty if it is skipped.

        Raises StopIteration if the lane has ended, and the errors of the lane; then nothing moves.
        A batch that was taken before, but not handed over, is made again.
        """

    @abstractmethod
    def states(self, batch: int | None = None) -> dict[int, State]:
        """Return the state of each lane before the rank's micro-batch `batch`.

        None: after the last batch taken, which may not be handed over yet.
        """

    @abstractmethod
    def keep(self, batch: int) -> None:
        """Keep the states of lanes from micro-batch `batch` on, for `states`.

        For callers that hand batches over later than they take them.
        """

    def close(self) -> None:  # noqa: B027 - without workers there is nothing to close
        """Stop the workers; idempotent. `take` starts them again."""


class Taken(NamedTuple):
    """A micro-batch that was taken."""

    batch: int
    lane: int
    before: Any  # the state of the lane


class Journal:
    """The last micro-batches taken. Those that were not handed over are taken again."""

    def __init__(self) -> None:
        self._taken: deque[Taken] = deque()
        self._kept: int | None = None

    def add(self, taken: Taken) -> None:
        """Add a micro-batch, before its lane moves."""
        self._taken.append(taken)
        # Keeps the last, one that is copied ahead to a device, and more if `keep` asks for them.
        while len(self._taken) > 2 and (self._kept is None or self._taken[0].batch < self._kept):
            self._taken.popleft()

    def keep(self, batch: int) -> None:
        """Keep all micro-batches from `batch` on."""
        self._kept = batch

    def since(self, batch: int | None) -> list[Taken]:
        """Return the micro-batches from `batch` on, the last first; None: none."""
        if batch is None or not self._taken or self._taken[-1].batch < batch:
            return []
        return [taken for taken in reversed(self._taken) if taken.batch >= batch]

    def clear(self) -> None:
        """Forget all micro-batches, because the lanes have moved elsewhere."""
        self._taken.clear()


class InProcess(LaneRunner):
    """Runs lanes in the calling thread.

    The nodes of a lane are built for its first batch. If data are in a store, those of all lanes
    are built at once, and look ahead.
    """

    def __init__(self, dataset: SavableDataset[Any]) -> None:
        self.profiler = Profiler()
        self._dataset, self._context = dataset, Context()
        self._is_remote = any(leaf.source.is_remote for leaf in leaves_of(dataset.spec))
        self._places: dict[int, State] = {}  # of lanes without nodes
        self._nodes: dict[int, Node[Any]] = {}
        self._journal = Journal()

    def adopt(self, start: LanesStart) -> None:  # noqa: D102
        self._journal.clear()
        self._context = self._dataset.context(start.num_lanes, profiler=self.profiler)
        self._places, self._nodes = dict(start.places), {}

    def take(self, lane: int, batch: int) -> Sequence[Any]:  # noqa: D102
        for taken in self._journal.since(batch):
            self._nodes[taken.lane].rollback(taken.before)
        if lane in self._places:
            self._build(lane)
        root = self._nodes[lane]
        before = root.snapshot()
        self._journal.add(Taken(batch, lane, before))
        began, total_s = time.perf_counter(), self.profiler.total_s
        try:
            CALL.batch = batch
            return root.draw(1).values
        except BaseException:
            root.rollback(before)
            raise
        finally:
            self.profiler.add_rest(began, total_s)

    def _build(self, lane: int) -> None:
        lanes, count = [lane], self._context.lanes
        if self._is_remote:
            lanes = sorted(self._places, key=lambda other: (other - lane) % count)
        for each in lanes:
            root = self._dataset.spec.build(self._context.in_lane(each))
            restore(root, self._places[each])
            self._nodes[each] = root
            del self._places[each]
        look_ahead(self._nodes[each] for each in lanes)

    def keep(self, batch: int) -> None:  # noqa: D102
        self._journal.keep(batch)

    def states(self, batch: int | None = None) -> dict[int, State]:  # noqa: D102
        states = {**self._places, **{lane: save(node) for lane, node in self._nodes.items()}}
        for taken in self._journal.since(batch):
            states[taken.lane] = save(self._nodes[taken.lane], taken.before)
        return states
