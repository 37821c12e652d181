"""What a run has done so far, in numbers for people; from its place, so it survives a resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from energy_data.core.node import State
from energy_data.core.profiler import Activity, ReadAmount
from energy_data.loading.lanes import Nodes
from energy_data.loading.run import Run
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.staged import StagedNode

# Fields of cursors that count what was left out.
_LEFT_OUT = ("skipped", "skipped_batches", "rejected", "excluded")


@frozen
class LeafStats:
    """How much of one leaf was drawn since the run began, and read since this process began."""

    drawn: int  # samples, those left out afterwards among them
    epochs: float  # drawn / samples in the leaf
    bytes: int | None  # read, for batches not handed over yet too; None: its source does not count
    tokens: int | None  # as bytes


@frozen(kw_only=True)
class Stats:
    """What this rank has done: since this process began, and, where it says so, since the run did.

    What workers spend and read they report a few times a second, so those numbers lag a little.
    Two loaders over one dataset in one process (0 workers) share what its sources have read.
    """

    batches: int  # handed over
    wait_s: float  # seconds the trainer waited for them
    starvation: str  # what has held up the trainer in the last seconds, in words
    slots_in_use: int  # batches that are alive in memory shared with worker processes
    seconds: dict[str, float]  # what making batches was spent on, over all worker processes
    left_out: dict[str, int]  # path of the node -> items it left out since the run began
    skipped: dict[str, int]  # the same by reason, in words; only what occurred
    leaves: dict[str, LeafStats]  # leaf id -> of this rank's lanes

    @property
    def wait_ms_per_batch(self) -> float:
        """Milliseconds the trainer waited per batch."""
        return 1000 * self.wait_s / self.batches if self.batches else 0.0


class Counting:
    """Counts what a run has drawn and left out, from the states of its lanes."""

    def __init__(self, run: Run[Any]) -> None:
        self._run = run
        self._nodes: Nodes = {}

    def leaves(
        self, places: Mapping[int, State], num_lanes: int, read: Mapping[str, ReadAmount]
    ) -> dict[str, LeafStats]:
        """Return how much was drawn of each leaf. Reads no data.

        read: leaf id -> how much was read of it.
        """
        drawn: Counter[str] = Counter()
        sizes: dict[str, int] = {}
        for node in self.at(places, num_lanes).values():
            told: set[ReferencesNode] = set()  # order trees whose draws the stages have told
            for _, inner in node.walk():
                if isinstance(inner, ReferencesNode):
                    sizes |= {leaf.id: leaf.num_samples for leaf in inner.leaves}
                    drawn.update({} if inner in told else _drawn(inner))
                elif isinstance(inner, StagedNode):
                    drawn.update(inner.history(len(inner.spec.stages)).drawn)
                    told.update(inner.trees_that_go_on())
        return {
            name: LeafStats(drawn[name], drawn[name] / size, *read.get(name, (None, None)))
            for name, size in sizes.items()
        }

    def at(self, places: Mapping[int, State], num_lanes: int) -> Nodes:
        """Return nodes at some places, to look at; not those that give batches."""
        nodes = self._built(places, num_lanes)
        for lane, node in nodes.items():
            node.load_state_dict(places[lane])
        return nodes

    def skipped(self, places: Mapping[int, State], num_lanes: int) -> dict[str, int]:
        """Return how many items were left out for which reason."""
        counts: Counter[str] = Counter()
        by_field = _by_field(places)
        for node in list(self._built(places, num_lanes).values())[:1]:
            for path, inner in node.walk():
                words = dict(inner.leaves_out)
                for name in _LEFT_OUT:
                    counts[words.get(name, path)] += by_field[path, name]
        return dict(+counts)

    def _built(self, places: Mapping[int, State], num_lanes: int) -> Nodes:
        if set(self._nodes) != set(places):
            self._nodes = self._run.build(places, num_lanes)
        return self._nodes


def _drawn(node: ReferencesNode) -> dict[str, int]:
    """Return how often a lane has drawn each leaf."""
    ids = [leaf.id for leaf in node.leaves]
    return dict(zip(ids, node.ledger().tolist(), strict=True))


def by_activity(seconds: Mapping[Activity, float]) -> dict[str, float]:
    """Return seconds by what they were spent on, in words."""
    return {
        what if isinstance(what, str) else f"{what[0]} leaf {what[1]}": spent
        for what, spent in seconds.items()
    }


def left_out(places: Mapping[int, State]) -> dict[str, int]:
    """Return how many items each node has left out, over the lanes."""
    counts: Counter[str] = Counter()
    for (path, _), count in _by_field(places).items():
        counts[path] += count
    return dict(counts)


def _by_field(places: Mapping[int, State]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for state in places.values():
        for path, cursor in state.items():
            for name in _LEFT_OUT:
                counts[path, name] += cursor.get(name, 0)
    return counts
