"""What a run reports: statistics, why the trainer waits, and transitions between stages."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from attrs import asdict, frozen

from energy_data.core.profiler import (
    FETCHING,
    HELD,
    READING,
    STARTING,
    Activity,
    Amounts,
    Fetched,
    Profiler,
    Usage,
)
from energy_data.loading.lanes import Nodes
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.leaf_history import held
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.run_plan import RULE, SHOWN_LEAVES, RunPlan, data_end_note
from energy_data.nodes.staged import StagedNode

log = logging.getLogger(__name__)

_SKIP_FIELDS = ("skipped", "skipped_batches", "excluded")  # of cursors

_WINDOW_S = 5.0  # a WaitReport describes the last 5 to 10 seconds
_DOMINANT = 2 / 3  # the share of the reading time at which one leaf is named as the reason
_LOG_S = 60.0  # between two lines of the log about a store
_NEGLIGIBLE = 0.05  # the share of the trainer's time below which it does not wait for batches


@frozen
class LeafStats:
    """Samples drawn from one leaf since the run began, and what this process has read of it."""

    drawn: int  # samples, including those skipped later; of windows, as long as in the last stage
    epochs: float
    # Read, also for batches not handed over yet; None: nothing, or the source does not count.
    bytes: int | None
    tokens: int | None
    # Of samples in an object store that were needed; None: the leaf is in none. See `Fetched`.
    fetched_bytes: int | None = None  # also those that were fetched ahead
    cached_bytes: int | None = None
    requests: int | None = None
    retries: int | None = None
    store_wait_s: float | None = None  # over all workers


@frozen(kw_only=True)
class Stats:
    """What this rank has done since this process began; `skipped` and `leaves` since the run began.

    Of a finite stream, `skipped` and `leaves` are of its pass: at its end, until the next begins.

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

    def scalars(self) -> dict[str, float]:
        """Return all numbers under flat names, for loggers.

        A number is `data/<field>`, one of a dict `data/<field>/<its key>`, and one of a leaf
        `data/<field of LeafStats>/<leaf id>`, if it is known. `data/share/<leaf id>` is the share
        of the leaf in the samples that were drawn of all.
        """
        found: dict[str, float | None] = {
            name: getattr(self, name)
            for name in ("batches", "wait_s", "wait_ms_per_batch", "slots_in_use")
        }
        for name in ("seconds", "skipped"):
            found |= {f"{name}/{key}": value for key, value in getattr(self, name).items()}
        total = sum(leaf.drawn for leaf in self.leaves.values())
        for leaf_id, leaf in self.leaves.items():
            found |= {f"{name}/{leaf_id}": value for name, value in asdict(leaf).items()}
            found[f"share/{leaf_id}"] = leaf.drawn / total if total else None
        return {f"data/{name}": value for name, value in found.items() if value is not None}


def leaf_stats(nodes: Nodes, usage: Usage) -> dict[str, LeafStats]:
    """Return the statistics of each leaf. Reads no data.

    nodes: of the lanes, at a position.
    """
    units: Counter[str] = Counter()
    leaves: dict[str, Leaf] = {}
    for node in nodes.values():
        counted: set[ReferencesNode] = set()  # order trees that the stages have counted
        for _, inner in node.walk():
            if isinstance(inner, ReferencesNode):
                leaves |= {leaf.id: leaf for leaf in inner.leaves}
                if inner not in counted:
                    units.update(inner.ledger())
            elif isinstance(inner, StagedNode):
                units.update(inner.history(len(inner.spec.stages)).drawn)
                counted.update(inner.continued_trees())
    return {
        name: LeafStats(
            units[name] // leaf.cut.stride,
            units[name] / leaf.num_units,
            usage.read.get((name, "bytes")),
            usage.read.get((name, "tokens")),
            **{what: usage.read.get((name, what)) for what in Fetched._fields[:-1]},
            store_wait_s=usage.seconds.get((FETCHING, name)),
        )
        for name, leaf in leaves.items()
    }


def skipped_items(nodes: Nodes) -> dict[str, int]:
    """Return how many items were skipped for which reason."""
    counts: Counter[str] = Counter()
    for node in nodes.values():
        for path, inner in node.walk():
            reasons = dict(inner.leaves_out)
            for name in _SKIP_FIELDS:
                counts[reasons.get(name, path)] += getattr(inner.cursor, name, 0)
    return dict(+counts)


def by_activity(seconds: Mapping[Activity, float]) -> dict[str, float]:
    """Return seconds by the names of activities."""
    return {
        what if isinstance(what, str) else f"{what[0]} leaf {what[1]}": spent
        for what, spent in seconds.items()
    }


def store_use(usage: Usage) -> str:
    """Return what was needed of each leaf in an object store, in words; the slowest leaf first."""
    waits = {what[1]: s for what, s in usage.seconds.items() if what[0] == FETCHING}
    slowest = sorted(waits, key=lambda leaf: -waits[leaf])
    parts = [
        f"leaf {leaf}: {usage.read[leaf, 'fetched_bytes']:,} bytes in "
        f"{usage.read[leaf, 'requests']:,} requests with {usage.read[leaf, 'retries']:,} retries, "
        f"{usage.read[leaf, 'cached_bytes']:,} bytes of the cache, {waits[leaf]:.1f} s waited"
        for leaf in slowest[:SHOWN_LEAVES]
    ]
    return "; ".join(parts)


class _Mark(NamedTuple):
    at: float
    wait_s: float  # waited until then
    seconds: dict[Activity, float]  # spent until then


class WaitReport:
    """Why the trainer has waited for batches in the last seconds."""

    def __init__(self, profiler: Profiler) -> None:
        self.wait_s = 0.0  # seconds the trainer has waited in total
        self._profiler = profiler
        self._marks: tuple[_Mark, _Mark] | None = None
        self._logged = -_LOG_S

    def update(self, now: float) -> None:
        """Note that the trainer asks for a batch. Log now and then that it waits for a store."""
        if self._marks is None or now > self._marks[1].at + _WINDOW_S:
            mark = _Mark(now, self.wait_s, dict(self._profiler.seconds))
            self._marks = (self._marks or (mark, mark))[1], mark
            if now > self._logged + _LOG_S and (reason := self.reason()).startswith(FETCHING):
                self._logged = now
                log.info("%s; so far %s", reason, store_use(self._profiler.usage))

    def reason(self) -> str:
        """Return the reason. Changes nothing."""
        if self._marks is None:
            return "no batch was requested yet"
        mark = self._marks[0]
        spent = {
            what: seconds - mark.seconds.get(what, 0.0)
            for what, seconds in self._profiler.seconds.items()
        }
        return wait_reason(self.wait_s - mark.wait_s, time.perf_counter() - mark.at, spent)


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
    if what in (READING, FETCHING):
        what = _of_leaves(what, spent)
    elif what == HELD:
        what += "; keep copies (tensor.clone()), or raise `arena_bytes`"
    return f"{what} ({part}): {waits}"


def _of_leaves(group: str, spent: Mapping[Activity, float]) -> str:
    """Return which leaf takes most of the time of an activity, where blocks and probes show it."""
    by_leaf = {
        what[1]: seconds
        for what, seconds in spent.items()
        if isinstance(what, tuple) and what[0] == group
    }
    total = sum(by_leaf.values())
    if not total:
        return group
    leaf, seconds = max(by_leaf.items(), key=lambda item: item[1])
    share = seconds / total
    if share > _DOMINANT:
        return f"{group} leaf {leaf}"
    return f"{group}, leaf {leaf} taking {share:.0%} of it"


class StageLog:
    """Logs the plan of stages at the start of a run, and each transition, on rank 0."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        self._current: int | None = None  # number of the stage that was logged last

    def restart(self) -> None:
        """Log the plan again with the next batch, because the position was restored."""
        self._current = None

    def passed(self, batch: int, number: int, nodes: Callable[[], Nodes]) -> None:
        """Log the transition if micro-batch `batch` of the run is the first of stage `number`.

        nodes: returns the lanes of this rank as they were before the micro-batch.
        """
        if number == self._current or not log.isEnabledFor(logging.INFO):
            return
        if self._current is None:
            name = self._plan.stages[number].name
            where = f"micro-batch {batch:,} is of stage {name!r} ({number + 1})"
            lines: Iterable[str] = chain(self._plan.lines(), [where])
        else:
            lines = _transition(self._plan, batch, self._current, number, nodes())
        for line in lines:
            log.info("%s", line)
        self._current = number


def _transition(plan: RunPlan, batch: int, before: int, number: int, nodes: Nodes) -> Iterator[str]:
    """Yield the lines about the transition from stage `before` to stage `number`."""
    left, now = plan.stages[before], plan.stages[number]
    step = "" if (first := plan.first_steps[number]) is None else f"Step {first:,}, "
    yield from (RULE, "STAGE TRANSITION", RULE)
    yield f"{step}micro-batch {batch:,}: {left.name!r} -> {now.name!r}"
    if text := data_end_note(left):
        yield f"  {left.name!r} {text}"
    for change in plan.changes(number):
        yield f"  {change}"
    if now.on_enter == "continue":
        known = leaf_stats(nodes, Usage({}, Amounts()))
        ids = [planned.leaf.id for planned in plan.leaves[number]]
        drawn = [(leaf_id, known[leaf_id]) for leaf_id in ids if leaf_id in known]
        for leaf_id, stats in [pair for pair in drawn if pair[1].drawn][:SHOWN_LEAVES]:
            yield (
                f"  leaf {leaf_id} continues after {stats.drawn:,} samples of this rank "
                f"({stats.epochs:.3g} of an epoch)"
            )
    stages = (inner for root in nodes.values() for _, inner in root.walk())
    pending = [held(s.children[left.name]) for s in stages if isinstance(s, StagedNode)]
    if count := sum(1 for of_lane in pending for _ in of_lane):
        what = "are lost" if left.on_enter == "restart" else "return to their leaves"
        yield f"  {count:,} samples of this rank were drawn and not used: they {what}"
    yield RULE
