"""Group: batches of samples that belong together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Problem
from energy_data.core.node import Change, EmptyGuard, ItemRef, Items
from energy_data.core.profiler import COLLATING
from energy_data.core.recipe import check_whole
from energy_data.core.sample import describe_source
from energy_data.core.spec import ItemKind
from energy_data.core.user_call import MAKING_BATCH, SKIPPED, ErrorPolicy, UserCall
from energy_data.errors import DataError
from energy_data.nodes.buffered import BufferedCursor, PackingNode, require_replayable
from energy_data.nodes.unary import UnarySpec


@frozen(kw_only=True)
class GroupSpec(UnarySpec):
    """Return `collate(samples)` of `batch_size` samples with equal keys, once a group is full.

    criterion: Returns (key, batch size) of a sample: any hashable, and None for the usual size. It
        must depend on the sample alone. The size of a group is that of its latest sample. If it
        raises `SkipSample`, the sample is skipped.

    Each lane has its own groups. Samples whose group is not full are in the state as references. At
    the end of a finite stream, partial groups are returned, the oldest first (`drop_last` drops
    them). More than `max_pending` pending samples are an error: there are too many keys.
    """

    kind = "group"
    unsaved = ("max_pending", "on_failure")
    batch_size: int | None  # None: the criterion returns it
    criterion: Callable[[Any], tuple[Hashable, int | None]]
    collate: Callable[[list[Any]], Any]
    drop_last: bool = False
    max_pending: int = 10_000
    on_failure: ErrorPolicy | None = None  # None: errors are raised

    def __attrs_post_init__(self) -> None:
        if self.batch_size is not None:
            check_whole("batch_size", self.batch_size, 1)
        require_replayable(self, self.of)

    @property
    def item_kind(self) -> ItemKind:
        return "batches"

    def replay_blocker(self) -> str:
        return self.kind

    def build(self, context: Context) -> GroupNode:
        return GroupNode(self, context)


@dataclass
class GroupCursor(BufferedCursor):
    skipped: int = 0  # samples skipped by the criterion
    skipped_batches: int = 0  # batches skipped by `collate`
    unseen: int = 0  # the latest pending samples, whose keys are not known yet
    key_failures: int = 0  # consecutive failures of each function
    failures: int = 0


_NO_GROUP = object()


class Waiting(NamedTuple):
    """A sample that waits for others of its group."""

    number: int  # in the order of arrival
    sample: Any


class Groups:
    """Pending samples by group. A cache: it follows from the references in the cursor."""

    def __init__(self) -> None:
        self.refs: dict[int, ItemRef] = {}  # of all that is pending, by number
        self.unseen: list[Waiting] = []  # the latest of them, last first: not in a group yet
        self.by_key: dict[Hashable, list[Waiting]] = {}  # the rest; the oldest group first
        self._next = 0

    def add(self, samples: Sequence[Any], refs: Sequence[ItemRef]) -> None:
        waiting = [Waiting(self._next + n, sample) for n, sample in enumerate(samples)]
        self.refs |= {one.number: ref for one, ref in zip(waiting, refs, strict=True)}
        self.unseen = [*reversed(waiting), *self.unseen]
        self._next += len(samples)

    def give(self, key: Hashable, most: int | None) -> list[Any]:
        waiting = self.by_key.pop(key)
        if most is not None and waiting[most:]:
            self.by_key[key] = waiting[most:]
        return self.let_go(waiting[:most])

    def let_go(self, waiting: Sequence[Waiting]) -> list[Any]:
        for one in waiting:
            del self.refs[one.number]
        return [one.sample for one in waiting]


class GroupNode(PackingNode[GroupCursor]):
    """Groups of one lane."""

    leaves_out = (
        ("skipped", "SkipSample or error in batch_group_criterion"),
        ("skipped_batches", "SkipSample or error while making batches"),
    )

    def __init__(self, spec: GroupSpec, context: Context) -> None:
        super().__init__(GroupCursor(), spec, context)
        self.spec, policy = spec, spec.on_failure
        self.criterion = UserCall(
            spec.criterion, context, "grouping", on_failure=policy, counter="key_failures"
        )
        self.collate = UserCall(spec.collate, context, MAKING_BATCH, COLLATING, on_failure=policy)
        self.groups = Groups()

    def own_faults(self, at: GroupCursor) -> Iterator[Problem]:
        if at.unseen > len(at.pending):
            yield (
                "unseen",
                f"must be at most the {len(at.pending)} pending samples, got {at.unseen}",
            )

    def move(self, change: Change) -> None:
        at = self.cursor
        unseen = self.remap_pending(at.pending, change)[len(at.pending) - at.unseen :]
        at.unseen -= unseen.count(None)
        super().move(change)

    def draw(self, count: int, *, within: int | None = None) -> Items:
        groups, batches, ended = self._pending_groups(), list[Any](), False
        self.cached, self.drawn_docs = None, 0  # until the cursor has the references of the groups
        while len(batches) < count and not ended:
            samples = self._next_group(groups, within)
            ended = not samples
            batch = self.collate(samples, self.cursor) if samples else SKIPPED
            if batch is not SKIPPED:
                batches.append(batch)
                self.drawn_docs += len(samples)
            elif samples:
                self.cursor.skipped_batches += 1
                break  # a short block: a function that skips every batch must not loop forever
        self.cursor.pending = self.cached = tuple(groups.refs.values())
        self.cursor.unseen = len(groups.unseen)
        if ended and not batches:
            raise StopIteration
        return Items(batches, [None] * len(batches))

    def _pending_groups(self) -> Groups:
        """Return the groups of the pending samples of the cursor."""
        if not self.is_cached:
            pending, self.groups = self.cursor.pending, Groups()
            self.groups.add(self.child.replay(pending) if pending else (), pending)
            aside = copy(self.cursor)  # replayed samples are not counted
            while len(self.groups.unseen) > self.cursor.unseen:
                self._group(self.groups, aside)
        return self.groups

    def _next_group(self, groups: Groups, most: int | None = None) -> list[Any]:
        """Return the samples of the next full group; at the end of the stream the oldest, or [].

        most: The number of samples to return; the others stay pending in the same group.
        """
        guard = EmptyGuard()
        while True:
            while groups.unseen:
                key, size = self._group(groups, self.cursor)
                guard.count(() if key is _NO_GROUP else (key,))
                if len(groups.by_key.get(key, ())) >= size:
                    return groups.give(key, most)
            self._check(groups)
            try:
                groups.add(*self.child.draw_some(self.spec.batch_size or 1))
            except StopIteration:
                if not groups.by_key or self.spec.drop_last:
                    return []
                return groups.give(next(iter(groups.by_key)), most)

    def _group(self, groups: Groups, cursor: GroupCursor) -> tuple[Hashable, int]:
        """Put the first unseen sample in its group. Return the key and full size of the group."""
        one = groups.unseen.pop()
        found = self.criterion(one.sample, cursor, groups.refs[one.number])
        if found is SKIPPED:
            groups.let_go([one])
            cursor.skipped += 1
            return _NO_GROUP, 1
        key, size = self._key(one.sample, found)
        groups.by_key.setdefault(key, []).append(one)
        return key, size

    def _key(self, sample: Any, found: Any) -> tuple[Hashable, int]:
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], int | None):
            size = found[1] or self.spec.batch_size
            if size is not None:
                return found[0], size
        raise DataError(
            f"batch_group_criterion: it must return a key and a batch size (None for the usual "
            f"size, which is {self.spec.batch_size}), got {found!r} for {describe_source(sample)}. "
            f"Return (key, None)."
        )

    def _check(self, groups: Groups) -> None:
        if len(groups.refs) > self.spec.max_pending:
            raise DataError(
                f"group: {len(groups.refs)} samples are pending in {len(groups.by_key)} groups, "
                f"none of them full. Make the keys of `batch_group_criterion` coarser, or raise "
                f"max_pending."
            )
