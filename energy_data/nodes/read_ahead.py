"""Reading ahead: what a lane will draw is known, so its bytes are fetched before.

The ranges of whole sequences are fetched, in the order in which the lane draws of them, and those
of large sequences in pieces. Nothing here is state: after a restore it is looked up again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import finalize

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.core.context import Context
from energy_data.core.node import Node
from energy_data.core.references import References
from energy_data.errors import DataError, StructureError, shown
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.plan_cache import LanePlan, Offsets
from energy_data.nodes.references import DealtReferences, ReferencesNode
from energy_data.order.shares import epochs_mixed
from energy_data.remote.cache_space import Range
from energy_data.remote.client import FetchClient, client_of, covered, held
from energy_data.remote.mirror_paths import root_of

_LEAST, _WINDOWS = 1024, 2  # draws, or windows, that a lane looks ahead
_LOOKS = 4  # times that it looks in as many draws
_UNSHUFFLED = 64  # samples of a sequence where samples are read in the order of the files
_MOST_BYTES = 1 << 22  # of a piece of a sequence, unless it is one sample


class SequencePlace(NamedTuple):
    """A sequence of samples of a leaf, which are read together, or a piece of it."""

    entry: int  # of the leaf
    number: int  # counted over the epochs that have one order; negative: a part of a window


class ReadAhead:
    """Says what the lane of a node will read, and waits for what it reads now."""

    def __init__(self, node: ReferencesNode, leaves: Sequence[Leaf], context: Context) -> None:
        self._node, self._leaves = node, leaves
        shuffle = node.spec.shuffle
        self._remote = np.array([leaf.source.is_remote for leaf in leaves])
        self._lengths = np.array(
            [
                (shuffle.of(leaf).sequence_length or _UNSHUFFLED) * leaf.cut.samples
                for leaf in leaves
            ],
            np.int64,
        )
        self._pieces = np.zeros(len(leaves), np.int64)  # of a sequence; 0: it was not seen yet
        in_passes = bool(node.spec.deal)
        self._sizes = np.array([leaf.num_samples for leaf in leaves], np.int64)
        self._times = np.array(
            [
                epochs_mixed(1 if in_passes and leaf.epochs else leaf.epochs, leaf.num_samples)
                for leaf in leaves
            ],
            np.int64,
        )
        windows = [shuffle.of(leaf).window * leaf.cut.samples for leaf in leaves]
        self._ahead = max(_LEAST, _WINDOWS * max(windows))
        self._batch = node.spec.deal or node.spec.batch
        self.begin = 0  # the micro-batch of the lane that has the first draw of the node
        self.end: int | None = None  # the draw at which its stage ends; None: not known
        # Loaders of one process have equal lanes.
        self._owner = f"{'/'.join(context.path)} of lane {context.lane}, {uuid4().hex}"
        self._client: FetchClient | None = None
        self._profiler = context.profiler
        self._plan: LanePlan | None = None
        self._planned = range(0)  # draws that were looked up
        self._position: tuple[object, ...] = ()  # what else their order depends on
        self._sought: References | None = None  # what was looked up, and is not wanted yet
        self._ranges: dict[SequencePlace, Sequence[Range] | None] = {}

    @property
    def tree(self) -> ReferencesNode:
        """The order tree of the node."""
        return self._node

    @property
    def batches(self) -> int:
        """How many micro-batches before its first draw it is to look up what comes then."""
        return max(self._ahead // _LOOKS // self._batch, 1)

    def ends_after(self, left: int, taken: int) -> int:
        """Note that the lane has so many micro-batches left in this stage; return its last draw.

        It is an estimate where the number of draws in a micro-batch varies.

        taken: micro-batches of this stage that the lane has made.
        """
        draws = self._node.cursor.draws
        end = draws + (-(-left * draws // taken) if taken else left * self._batch)
        self.end = end if taken else None
        return end

    def look(self, count: int) -> None:
        """Look up what comes after the next `count` draws, now and then, and want it."""
        _look([self], count)

    def plan(self, count: int) -> list[Range]:
        """Look up what comes after the next `count` draws; return the indices of its samples."""
        self._sought = None
        at = self._node.cursor
        draws, position = at.draws, (at.epoch, at.offsets, at.since, self._node.before)
        if draws in self._planned and position == self._position:
            return []
        self._planned = range(draws, draws + max(self._ahead // _LOOKS - count, 1))
        self._position = position
        try:
            ahead = self._ahead if self.end is None else min(self._ahead, self.end - draws)
            coming = self._coming(max(ahead, count))
        except DataError:  # it is raised when the draws are made
            return []
        self._sought = coming
        firsts = defaultdict[int, list[int]](list)
        for place in self._places(coming)[0]:
            if place not in self._ranges and place.number >= 0:
                first = self._bounds(place)[0] % self._leaves[place.entry].num_samples
                firsts[place.entry] += (at for at, _ in self._samples(place.entry, first, 1))
        found = (
            self._leaves[entry].source.index_ranges(indices) for entry, indices in firsts.items()
        )
        return list(chain.from_iterable(found))

    def want(self) -> None:
        """Want what was looked up."""
        if self._sought is None:
            return
        places, firsts = self._places(self._sought)
        if self._divide(places):
            places, firsts = self._places(self._sought)
        draws = self._node.cursor.draws
        self._ranges = {
            place: self._ranges[place] if place in self._ranges else self._ranges_of(place)
            for place in places
        }
        wanted, when = list[Range](), list[int]()
        for place, first in zip(places, firsts, strict=True):
            ranges = self._ranges[place] or ()
            wanted += ranges
            when += [self.begin + (draws + first) // self._batch] * len(ranges)
        if wanted:
            self._connected(wanted[0][0]).want(self._owner, wanted, when)

    @contextmanager
    def waited(self, block: References) -> Iterator[bool]:
        """Wait for the samples of a block, which are there while the block of code runs.

        Yields whether sources wait for some of them when they are read.
        """
        places, _ = self._places(block)
        leaf_of = dict[Range, Leaf]()
        is_covered = bool(places)
        for place in places:
            found = self._ranges.get(place)
            if found is None:
                is_covered = False
            else:
                leaf_of |= dict.fromkeys(found, self._leaves[place.entry])
        if leaf_of:
            try:
                took = self._connected(next(iter(leaf_of))[0]).wait(self._owner, list(leaf_of))
            except StructureError as error:
                error.dataset = _dataset_of(error, leaf_of)
                raise
            for one, cost in took.items():
                self._profiler.add_fetched(leaf_of[one].id, cost)
        if is_covered:
            with covered():
                yield False
        else:
            yield bool(places)

    def _connected(self, path: str) -> FetchClient:
        """Return the client of this thread, which releases all ranges after this object."""
        found = client_of(root_of(path))
        if found is not self._client:
            self._client = found
            finalize(self, found.gone.append, self._owner).atexit = False
        return found

    def _places(self, block: References) -> tuple[list[SequencePlace], list[int]]:
        """Return the sequences that a block draws from, in order of use, and their first draws."""
        entries, indices = block.entries, block.indices
        there = np.flatnonzero(self._remote[entries])
        entry, index = entries[there], indices[there]
        sizes = self._sizes[entry]
        lengths, pieces = self._lengths[entry], np.maximum(self._pieces[entry], 1)
        table = self._node.plan.table
        for order, mine in table.in_run_orders(table.leaf_of_entry[entry]):
            index[mine] = order.places(index[mine])
        before = block.epochs[there] % self._times[entry] * sizes
        sequences, rest = np.divmod(before + index, lengths)
        numbers = np.where(index < sizes, sequences * pieces + rest * pieces // lengths, -1 - index)
        pairs = np.stack([entry, numbers], axis=1)
        _, first = np.unique(pairs, axis=0, return_index=True)
        first.sort()
        chosen = pairs[first].tolist()
        return [SequencePlace(*pair) for pair in chosen], there[first].tolist()

    def _bounds(self, place: SequencePlace) -> tuple[int, int]:
        """Return the first sample of a place and the one after its last, over the epochs."""
        length, pieces = int(self._lengths[place.entry]), max(int(self._pieces[place.entry]), 1)
        sequence, piece = divmod(place.number, pieces)
        first, end = (sequence * length - -one * length // pieces for one in (piece, piece + 1))
        return first, min(end, int(self._sizes[place.entry] * self._times[place.entry]))

    def _divide(self, places: Iterable[SequencePlace]) -> bool:
        """Divide the sequences of leaves that were not seen yet; return whether some are large.

        The first of a leaf decides for all. Runs are read whole.
        """
        is_any = False
        for place in places:
            if self._pieces[place.entry] or place.number < 0:
                continue
            length, pieces = int(self._lengths[place.entry]), 1
            if self._leaves[place.entry].source.run_length is None:
                first, end = self._bounds(place)
                size = sum(right - left for _, left, right in self._ranges_of(place) or ())
                while pieces < length and size * length > _MOST_BYTES * (end - first) * pieces:
                    pieces *= 2  # so that lanes agree, whose first sequences have other bytes
            self._pieces[place.entry] = min(pieces, length)
            is_any |= pieces > 1
        return is_any

    def _ranges_of(self, place: SequencePlace) -> Sequence[Range] | None:
        if place.number < 0:
            return None
        leaf, (first, end) = self._leaves[place.entry], self._bounds(place)
        # Where one epoch ends in a sequence, the next one begins.
        size, found = leaf.num_samples, list[Range]()
        while first < end:
            count = min(end - first, size - first % size)
            for at, length in self._samples(place.entry, first % size, count):
                try:
                    ranges = leaf.source.ranges(at, length)
                except DataError:  # it is raised when these samples are read
                    return None
                if ranges is None:
                    return None
                found += ranges
            first += count
        return found

    def _samples(self, entry: int, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield the samples at places of the order of a leaf, as first ones and their numbers."""
        table = self._node.plan.table
        order = table.run_orders.get(int(table.leaf_of_entry[entry]))
        if order is None:
            yield first, count
            return
        samples = order.samples(np.arange(first, first + count))
        for part in np.split(samples, np.flatnonzero(np.diff(samples) != 1) + 1):
            yield int(part[0]), len(part)

    def _coming(self, count: int) -> References:
        """Return the next `count` draws of the node, or the rest of its pass; draw none."""
        node, at = self._node, self._node.cursor
        plan = self._plan
        if plan is None or plan.order is not node.plan.order:
            # With a cache of its own: that of the node has the draws that come first.
            plan = self._plan = LanePlan(node.plan.order, node.plan.table)
        if isinstance(node, DealtReferences):
            return _joined(list(self._dealt(node, plan, count)))
        before = node.before
        block = plan.block(at.draws, count, before.offsets(at.offsets, at.since), most=count)
        if before.returned:
            block = plan.with_returned(block, at.draws, at.since, before.returned)
        return block

    def _dealt(self, node: DealtReferences, plan: LanePlan, count: int) -> Iterator[References]:
        """Yield the next groups of a finite stream that are dealt to the lane."""
        at, deal = node.cursor, node.spec.deal
        first, end = node.spec.bounds(node.plan.order, at.epoch)
        draws, last = at.draws, at.draws + count
        while draws < last:
            start = first + node.place(draws)
            size = min(deal - draws % deal, end - start)
            if size <= 0:
                return
            yield plan.block(start, size, Offsets(), most=size)
            draws += size


def look_ahead(roots: Iterable[Node[Any]]) -> None:
    """Look up what lanes draw first, and want it, before one of them waits for its part."""
    _look([ahead for root in roots for ahead in aheads_of(root.active())], 1)


def _look(aheads: Sequence[ReadAhead], count: int) -> None:
    indices = [one for ahead in aheads for one in ahead.plan(count)]
    with ExitStack() as stack:
        with suppress(DataError):  # it is raised when these samples are read
            stack.enter_context(held(indices))
        for ahead in aheads:
            ahead.want()


def _dataset_of(error: StructureError, leaf_of: Mapping[Range, Leaf]) -> str | None:
    """Return the dataset of the object whose URL an error begins with."""
    for (path, _, _), leaf in leaf_of.items():
        if str(error).startswith(f"{shown(path)}:"):
            return getattr(leaf.source, "path", None)
    return None


def aheads_of(nodes: Iterable[Node[Any]]) -> list[ReadAhead]:
    """Return what reads ahead for nodes; empty: their files are local."""
    found = (getattr(node, "ahead", None) for node in nodes)
    return [ahead for ahead in found if isinstance(ahead, ReadAhead)]


def _joined(blocks: Sequence[References]) -> References:
    empty: Int64s = np.empty(0, np.int64)
    columns = [
        np.concatenate([empty, *(getattr(block, name) for block in blocks)])
        for name in ("entries", "epochs", "indices")
    ]
    return References(*columns)
