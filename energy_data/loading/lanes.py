"""Who runs lanes: this process, or worker processes (`energy_data.loading.pool`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from energy_data.core.node import Node, State, places
from energy_data.core.profiler import Profiler
from energy_data.core.user_call import CALL

Nodes = Mapping[int, Node[Any, Any]]
"""Lane -> the root of its tree."""


class Host(ABC):
    """Runs the lanes of one rank, and knows their places after the last item handed over."""

    @property
    @abstractmethod
    def profiler(self) -> Profiler:
        """What time was spent on, and how much was read."""

    @property
    def slots_in_use(self) -> int:
        """The number of batches that are alive in memory shared with worker processes."""
        return 0

    @abstractmethod
    def adopt(self, nodes: Nodes, num_lanes: int, batch: int) -> None:
        """Go on with these lanes of `num_lanes`; the rank's next micro-batch is `batch`.

        Interrupted, it is done again, with the same.
        """

    @abstractmethod
    def take(self, lane: int, batch: int) -> Sequence[Any]:
        """Return micro-batch `batch` of the run, the next of `lane`; empty if it is left out.

        Raises StopIteration if the lane has ended, or what the lane raised; then nothing moved. If
        it was taken before, an exception has kept it from the trainer, and it is given again.
        """

    @abstractmethod
    def states(self, batch: int | None = None) -> dict[int, State]:
        """Return the place of each lane before the rank's micro-batch `batch`; None: where it is.

        It is the next one; but a signal handler may ask while it is taken, or just was.
        """

    @abstractmethod
    def keep(self, batch: int) -> None:
        """Remember the places of lanes from micro-batch `batch` on, so that `states` can tell them.

        For who hands batches over later than they are taken.
        """

    def close(self) -> None:  # noqa: B027 - a host without processes has nothing to close
        """Stop; idempotent."""


class Step(NamedTuple):
    """A micro-batch that was taken, or is being taken."""

    batch: int
    lane: int
    before: Any  # the place of the lane


class Steps:
    """The last steps, to go back by.

    A signal handler runs between any two instructions. If it asks for the state, or raises, what
    the trainer has not got is not to count.
    """

    def __init__(self) -> None:
        self._steps: deque[Step] = deque()
        self._kept: int | None = None

    def add(self, step: Step) -> None:
        """Remember a step; before the lane moves."""
        self._steps.append(step)
        # The last, and one that is copied ahead to a device; more if they are asked for.
        while len(self._steps) > 2 and (self._kept is None or self._steps[0].batch < self._kept):
            self._steps.popleft()

    def keep(self, batch: int) -> None:
        """Remember all steps from `batch` on."""
        self._kept = batch

    def since(self, batch: int | None) -> list[Step]:
        """Return the steps from `batch` on, the last first; None: none."""
        if batch is None or not self._steps or self._steps[-1].batch < batch:
            return []
        return [step for step in reversed(self._steps) if step.batch >= batch]

    def clear(self) -> None:
        """Forget all steps: the lanes have gone elsewhere."""
        self._steps.clear()


class InProcess(Host):
    """Runs lanes where they are asked for."""

    def __init__(self) -> None:
        self._nodes: Nodes = {}
        self._steps = Steps()
        self._profiler = Profiler()

    @property
    def profiler(self) -> Profiler:  # noqa: D102
        return self._profiler

    def adopt(self, nodes: Nodes, num_lanes: int, batch: int) -> None:  # noqa: D102
        self._steps.clear()
        self._nodes = nodes

    def take(self, lane: int, batch: int) -> Sequence[Any]:  # noqa: D102
        for step in self._steps.since(batch):
            self._nodes[step.lane].rollback(step.before)
        root = self._nodes[lane]
        before = root.snapshot()
        self._steps.add(Step(batch, lane, before))
        began, total_s = time.perf_counter(), self._profiler.total_s
        try:
            CALL.batch = batch
            return root.draw(1).values
        except BaseException:
            root.rollback(before)
            raise
        finally:
            self._profiler.add_rest(began, total_s)

    def keep(self, batch: int) -> None:  # noqa: D102
        self._steps.keep(batch)

    def states(self, batch: int | None = None) -> dict[int, State]:  # noqa: D102
        states = {lane: node.state_dict() for lane, node in self._nodes.items()}
        for step in self._steps.since(batch):
            states[step.lane] = places(self._nodes[step.lane].tree(), step.before)
        return states
