"""Why the trainer waits for batches, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from energy_data.core.profiler import HELD, READING, STARTING, Activity, Profiler

_WINDOW_S = 5.0  # the words are about the last 5 to 10 seconds of the run
_MOST = 2 / 3  # of the time of reading; then it is that leaf
_LITTLE = 0.05  # of the trainer's time; a trainer that waits less is not held up by batches


class _Mark(NamedTuple):
    at: float
    wait_s: float  # waited until then
    seconds: dict[Activity, float]  # spent until then


class Recent:
    """What was spent lately."""

    def __init__(self, profiler: Profiler) -> None:
        self._profiler = profiler
        self._marks: tuple[_Mark, _Mark] | None = None

    def asked(self, now: float, wait_s: float) -> None:
        """Say that the trainer asks for a batch, having waited `wait_s` in all."""
        if self._marks is None:
            self._marks = (mark := _Mark(now, wait_s, dict(self._profiler.seconds))), mark
        elif now > self._marks[1].at + _WINDOW_S:
            self._marks = self._marks[1], _Mark(now, wait_s, dict(self._profiler.seconds))

    def in_words(self, now: float, wait_s: float) -> str:
        """Return what has held up the trainer lately. Changes nothing."""
        if self._marks is None:
            return "no batch was asked for yet"
        mark = self._marks[0]
        spent = {
            what: seconds - mark.seconds.get(what, 0.0)
            for what, seconds in self._profiler.seconds.items()
        }
        return in_words(wait_s - mark.wait_s, now - mark.at, spent)


def in_words(wait_s: float, lasted_s: float, spent: Mapping[Activity, float]) -> str:
    """Return what holds up a trainer that waited `wait_s` of `lasted_s` seconds.

    spent: seconds on each activity, of all worker processes together; on STARTING, the trainer's.
    """
    share = wait_s / lasted_s if lasted_s > 0 else 0.0
    waits = f"the trainer waits {share:.0%} of its time for batches"
    if share < _LITTLE:
        return f"none, the trainer is the bottleneck: {waits}"
    if spent.get(STARTING, 0.0) > wait_s / 2:
        return f"{STARTING}: {waits}"
    groups: dict[str, float] = {}
    for activity, seconds in spent.items():
        group = activity if isinstance(activity, str) else activity[0]
        if group != STARTING:
            groups[group] = groups.get(group, 0.0) + seconds
    worked_s = sum(groups.values())
    if not worked_s:
        return f"nothing that is known yet: {waits}"
    what, seconds = max(groups.items(), key=lambda group: group[1])
    part = f"{seconds / worked_s:.0%} of the work"
    if what == READING:
        what = _reading(spent)
    elif what == HELD:
        what += "; keep copies (tensor.clone()), or raise `arena_bytes`"
    return f"{what} ({part}): {waits}"


def _reading(spent: Mapping[Activity, float]) -> str:
    """Return which leaf takes most of the reading: known of blocks of one leaf, and of probes."""
    by_leaf = {what[1]: seconds for what, seconds in spent.items() if isinstance(what, tuple)}
    total = sum(by_leaf.values())
    if not total:
        return READING
    leaf, seconds = max(by_leaf.items(), key=lambda item: item[1])
    share = seconds / total
    if share > _MOST:
        return f"{READING} leaf {leaf}"
    return f"{READING}, leaf {leaf} taking {share:.0%} of it"
