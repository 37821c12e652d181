"""What a run has done so far, in numbers for people; from its place, so it survives a resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from energy_data.loader.host import Nodes
from energy_data.loader.run import Run
from energy_data.node import State
from energy_data.references import ReferencesNode

_LEFT_OUT = ("skipped", "rejected")  # fields of cursors that count what was left out


@frozen
class LeafStats:
    """How much of one leaf was drawn."""

    drawn: int  # samples, those left out afterwards among them
    epochs: float  # drawn / samples in the leaf


@frozen(kw_only=True)
class Stats:
    """What this rank has done since the run began; the first two since this process began."""

    batches: int  # handed over
    wait_s: float  # seconds the trainer waited for them
    left_out: dict[str, int]  # path of the node -> items it left out
    leaves: dict[str, LeafStats]  # leaf id -> drawn by this rank's lanes

    @property
    def wait_ms_per_batch(self) -> float:
        """Milliseconds the trainer waited per batch."""
        return 1000 * self.wait_s / self.batches if self.batches else 0.0


class Counting:
    """Counts what a run has drawn, from the states of its lanes."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self._nodes: Nodes = {}

    def leaves(self, places: Mapping[int, State], num_lanes: int) -> dict[str, LeafStats]:
        """Return how much was drawn of each leaf. Reads no data."""
        if set(self._nodes) != set(places):
            self._nodes = self._run.build(places, num_lanes)
        drawn: Counter[str] = Counter()
        sizes: dict[str, int] = {}
        for lane, node in self._nodes.items():
            node.load_state_dict(places[lane])
            for _, inner in node.walk():
                if isinstance(inner, ReferencesNode):
                    sizes |= {leaf.id: leaf.num_samples for leaf in inner.leaves}
                    drawn.update(_drawn(inner))
        return {name: LeafStats(drawn[name], drawn[name] / size) for name, size in sizes.items()}


def _drawn(node: ReferencesNode) -> dict[str, int]:
    """Return how often a lane has drawn each leaf."""
    ids = [leaf.id for leaf in node.leaves]
    return dict(zip(ids, node.ledger().tolist(), strict=True))


def left_out(places: Mapping[int, State]) -> dict[str, int]:
    """Return how many items each node has left out, over the lanes."""
    counts: Counter[str] = Counter()
    for state in places.values():
        for path, cursor in state.items():
            counts[path] += sum(cursor.get(name, 0) for name in _LEFT_OUT)
    return dict(counts)
