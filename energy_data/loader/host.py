"""Who runs lanes: this process, or worker processes (`energy_data.loader.pool`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from energy_data.node import Node, State

Nodes = Mapping[int, Node[Any, Any]]
"""Lane -> the root of its tree."""


class Host(ABC):
    """Runs the lanes of one rank, and knows their places after the last item handed over."""

    @abstractmethod
    def adopt(self, nodes: Nodes, num_lanes: int, batch: int) -> None:
        """Go on with these lanes of `num_lanes`; the rank's next micro-batch is `batch`."""

    @abstractmethod
    def take(self, lane: int, batch: int) -> Sequence[Any]:
        """Return micro-batch `batch` of the run, the next of `lane`; empty if it is left out.

        Raises StopIteration if the lane has ended, or what the lane raised; then nothing moved.
        """

    @abstractmethod
    def states(self) -> dict[int, State]:
        """Return the place of each lane."""

    def state(self, lane: int) -> State:
        """Return the place of one lane."""
        return self.states()[lane]

    @abstractmethod
    def rewind(self, batch: int) -> None:
        """Begin the next pass in all lanes, with micro-batch `batch`."""

    def close(self) -> None:  # noqa: B027 - a host without processes has nothing to close
        """Stop; idempotent."""


class InProcess(Host):
    """Runs lanes where they are asked for."""

    def __init__(self) -> None:
        self._nodes: Nodes = {}

    def adopt(self, nodes: Nodes, num_lanes: int, batch: int) -> None:  # noqa: D102
        self._nodes = nodes

    def take(self, lane: int, batch: int) -> Sequence[Any]:  # noqa: D102
        return self._nodes[lane].take(1)

    def states(self) -> dict[int, State]:  # noqa: D102
        return {lane: node.state_dict() for lane, node in self._nodes.items()}

    def state(self, lane: int) -> State:  # noqa: D102
        return self._nodes[lane].state_dict()

    def rewind(self, batch: int) -> None:  # noqa: D102
        for node in self._nodes.values():
            node.rewind()
