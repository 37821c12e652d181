"""What a run has done so far, and why the trainer waits: numbers and words for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attrs import frozen

from energy_data.core.cursor import State, restore
from energy_data.core.profiler import HELD, READING, STARTING, Activity, Profiler, ReadAmount
from energy_data.loading.lanes import Nodes
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.staged import StagedNode

if TYPE_CHECKING:
    from energy_data.loading.dataset import SavableDataset

_SKIP_FIELDS = ("skipped", "skipped_batches", "rejected", "excluded")  # of cursors

_WINDOW_S = 5.0  # a WaitReport describes the last 5 to 10 seconds
_DOMINANT = 2 / 3  # the share of the reading time at which one leaf is named as the reason
_NEGLIGIBLE = 0.05  # the share of the trainer's time below which it does not wait for batches


@frozen
class LeafStats:
    """Samples drawn from one leaf since the run began, and what this process has read of it."""

    drawn: int  # samples, including those skipped later
    epochs: float  # drawn / samples in the leaf
    bytes: int | None  # read, also for batches not handed over yet; None: the source does not count
    tokens: int | None  # as bytes


@frozen(kw_only=True)
class Stats:
    """What this rank has done since this process began; `skipped` and `leaves` since the run began.

    Workers report times and amounts a few times a second, so these lag a little. Two loaders over
    one dataset in one process (0 workers) share the amounts that its sources have read.
    """

    batches: int  # handed over
    wait_s: float  # seconds the trainer waited for them
    starvation: str  # the reason why the trainer waited in the last seconds
    slots_in_use: int  # live batches in memory shared with worker processes
    seconds: dict[str, float]  # activity -> time, over all worker processes
    skipped: dict[str, int]  # reason -> items; only reasons that occurred
    leaves: dict[str, LeafStats]  # leaf id -> over the lanes of this rank

    @property
    def wait_ms_per_batch(self) -> float:
        """Milliseconds the trainer waited per batch."""
        return 1000 * self.wait_s / self.batches if self.batches else 0.0


class Counting:
    """Counts what a run has drawn and skipped, from the states of its lanes."""

    def __init__(self, dataset: SavableDataset[Any]) -> None:
        self._dataset = dataset
        self._nodes: Nodes = {}

    def leaves(
        self, places: Mapping[int, State], num_lanes: int, read: Mapping[str, ReadAmount]
    ) -> dict[str, LeafStats]:
        """Return the statistics of each leaf. Reads no data.

        read: leaf id -> how much was read of it.
        """
        drawn: Counter[str] = Counter()
        sizes: dict[str, int] = {}
        for node in self.at(places, num_lanes).values():
            counted: set[ReferencesNode] = set()  # order trees that the stages have counted
            for _, inner in node.walk():
                if isinstance(inner, ReferencesNode):
                    sizes |= {leaf.id: leaf.num_samples for leaf in inner.leaves}
                    drawn.update({} if inner in counted else _drawn(inner))
                elif isinstance(inner, StagedNode):
                    drawn.update(inner.history(len(inner.spec.stages)).drawn)
                    counted.update(inner.continued_trees())
        return {
            name: LeafStats(drawn[name], drawn[name] / size, *read.get(name, (None, None)))
            for name, size in sizes.items()
        }

    def at(self, places: Mapping[int, State], num_lanes: int) -> Nodes:
        """Return nodes at some places, for inspection; not the nodes that make batches."""
        nodes = self._built(places, num_lanes)
        for lane, node in nodes.items():
            restore(node, places[lane])
        return nodes

    def skipped(self, places: Mapping[int, State], num_lanes: int) -> dict[str, int]:
        """Return how many items were skipped for which reason."""
        by_field: Counter[tuple[str, str]] = Counter()
        for state in places.values():
            for path, cursor in state.items():
                for name in _SKIP_FIELDS:
                    by_field[path, name] += cursor.get(name, 0)
        counts: Counter[str] = Counter()
        for node in list(self._built(places, num_lanes).values())[:1]:
            for path, inner in node.walk():
                reasons = dict(inner.leaves_out)
                for name in _SKIP_FIELDS:
                    counts[reasons.get(name, path)] += by_field[path, name]
        return dict(+counts)

    def _built(self, places: Mapping[int, State], num_lanes: int) -> Nodes:
        if set(self._nodes) != set(places):
            self._nodes = self._dataset.build(places, num_lanes)
        return self._nodes


def _drawn(node: ReferencesNode) -> dict[str, int]:
    """Return how often a lane has drawn each leaf."""
    ids = [leaf.id for leaf in node.leaves]
    return dict(zip(ids, node.ledger().tolist(), strict=True))


def by_activity(seconds: Mapping[Activity, float]) -> dict[str, float]:
    """Return seconds by the names of activities."""
    return {
        what if isinstance(what, str) else f"{what[0]} leaf {what[1]}": spent
        for what, spent in seconds.items()
    }


class _Mark(NamedTuple):
    at: float
    wait_s: float  # waited until then
    seconds: dict[Activity, float]  # spent until then


class WaitReport:
    """Why the trainer has waited for batches in the last seconds."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._marks: tuple[_Mark, _Mark] | None = None

    def update(self, now: float, wait_s: float) -> None:
        """Note that the trainer asks for a batch, having waited `wait_s` in total."""
        if self._marks is None:
            self._marks = (mark := _Mark(now, wait_s, dict(self._profiler.seconds))), mark
        elif now > self._marks[1].at + _WINDOW_S:
            self._marks = self._marks[1], _Mark(now, wait_s, dict(self._profiler.seconds))

    def reason(self, now: float, wait_s: float) -> str:
        """Return the reason. Changes nothing."""
        if self._marks is None:
            return "no batch was requested yet"
        mark = self._marks[0]
        spent = {
            what: seconds - mark.seconds.get(what, 0.0)
            for what, seconds in self._profiler.seconds.items()
        }
        return wait_reason(wait_s - mark.wait_s, now - mark.at, spent)


def wait_reason(wait_s: float, duration_s: float, spent: Mapping[Activity, float]) -> str:
    """Return why a trainer waited `wait_s` of `duration_s` seconds for batches.

    spent: seconds of each activity, over all worker processes; of STARTING, of the trainer.
    """
    share = wait_s / duration_s if duration_s > 0 else 0.0
    waits = f"the trainer waits {share:.0%} of its time for batches"
    if share < _NEGLIGIBLE:
        return f"none, the trainer is the bottleneck: {waits}"
    if spent.get(STARTING, 0.0) > wait_s / 2:
        return f"{STARTING}: {waits}"
    groups: dict[str, float] = {}
    for activity, seconds in spent.items():
        group = activity if isinstance(activity, str) else activity[0]
        groups[group] = groups.get(group, 0.0) + seconds
    groups.pop(STARTING, None)
    worked_s = sum(groups.values())
    if not worked_s:
        return f"an unknown reason: {waits}"
    what, seconds = max(groups.items(), key=lambda group: group[1])
    part = f"{seconds / worked_s:.0%} of the work"
    if what == READING:
        what = _reading(spent)
    elif what == HELD:
        what += "; keep copies (tensor.clone()), or raise `arena_bytes`"
    return f"{what} ({part}): {waits}"


def _reading(spent: Mapping[Activity, float]) -> str:
    """Return which leaf takes most of the time of reading, where blocks and probes show it."""
    by_leaf = {what[1]: seconds for what, seconds in spent.items() if isinstance(what, tuple)}
    total = sum(by_leaf.values())
    if not total:
        return READING
    leaf, seconds = max(by_leaf.items(), key=lambda item: item[1])
    share = seconds / total
    if share > _DOMINANT:
        return f"{READING} leaf {leaf}"
    return f"{READING}, leaf {leaf} taking {share:.0%} of it"
