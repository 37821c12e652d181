"""Leaves: the datasets that samples are drawn from, and how they are shuffled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from fractions import Fraction
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen

from energy_data.core.arrays import Int64s
from energy_data.core.context import Context
from energy_data.core.cut import Cut
from energy_data.core.keys import key
from energy_data.core.spec import Spec
from energy_data.data.files.stores import FileStore
from energy_data.data.runs import RunOrder
from energy_data.data.source import Source
from energy_data.errors import SpecError
from energy_data.order.schedule import Clock
from energy_data.order.shares import Shares
from energy_data.order.tree import Choice
from energy_data.order.weighted import Place
from energy_data.remote.client import held

_MIXED = 2  # runs of samples, or pieces of one, that are mixed at a time


@frozen(kw_only=True)
class Shuffle:
    """How far the samples of one leaf are mixed. The parameters are those of Energon."""

    buffer_size: int = 0  # consecutive draws that are permuted; 0 or 1: none
    sequence_length: int = 0  # consecutive samples read together; 0: file order
    parallel_sequences: int = 16  # sequences that are mixed at a time

    @property
    def window(self) -> int:
        """The number of consecutive draws of a lane in one leaf that are permuted; 0: none."""
        if self.buffer_size <= 1:
            return 0
        return max(self.buffer_size, self.parallel_sequences * self.sequence_length)

    def of(self, leaf: Leaf) -> Shuffle:
        """Return how a leaf is shuffled, whose samples may be cheap only in runs.

        Then a run is a sequence, and as few runs as mix at all are read at a time. A run that is
        decoded in pieces is read in their order, and few of them are mixed.
        """
        run, piece = leaf.source.run_length, leaf.source.piece_length
        if run is None or not self.sequence_length:
            return self
        if piece is None or self.window == 0:
            return evolve(self, sequence_length=run, parallel_sequences=_MIXED)
        buffer = max(self.buffer_size, _MIXED * piece)
        return evolve(self, buffer_size=buffer, sequence_length=run, parallel_sequences=0)


@frozen(kw_only=True)
class Leaf:
    """One dataset split that samples are drawn from; equal ids are one leaf."""

    id: str  # stable over time: orders and ledgers depend on it
    source: Source = field(eq=False)
    aux: Mapping[str, FileStore[Any]] = field(factory=dict, eq=False)  # for cookers, by name
    epochs: int | None = 1  # that are mixed; -1: all; None: none, in the order of the files
    tokens_per_sample: Fraction | None = field(default=None, eq=False)  # None: that of its source
    max_repetitions: Fraction | None = field(default=None, eq=False)  # over the run; None: any
    place: str = field(default="", eq=False)  # in the metadataset: file:line:column: key

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self.source)

    @property
    def cut(self) -> Cut:
        """How its samples are cut from chunks."""
        return self.source.cut

    @property
    def num_chunks(self) -> int:
        """The number of chunks, which the order deals to the lanes."""
        return self.num_samples // self.cut.samples

    @property
    def num_units(self) -> int:
        """The number of units that the places of lanes are counted in: of samples, or of tokens."""
        return self.num_samples * self.cut.stride

    def has(self, index: int) -> bool:
        """Return whether there is a sample, or a part of one, of this index."""
        return self.cut.has(index, self.num_samples)

    @property
    def most_chunks(self) -> int | None:
        """The most chunks drawn over the run; None: no limit."""
        most = self.max_repetitions
        return None if most is None else int(most * self.num_chunks)

    @property
    def mean_tokens(self) -> Fraction | None:
        """Tokens per sample, declared or of its source; None: not known."""
        if self.tokens_per_sample is not None:
            return self.tokens_per_sample
        total = self.source.total_cost("tokens")
        return Fraction(total, self.num_samples) if total else None

    @property
    def num_tokens(self) -> int | None:
        """The tokens of all samples, declared or of its source; None: not known."""
        mean = self.mean_tokens
        return None if mean is None else round(mean * self.num_samples)

    @property
    def fingerprint(self) -> str:
        """16 hex digits of everything but the id that its samples and their order depend on."""
        own, run, piece = self.source.fingerprint, self.source.run_length, self.source.piece_length
        own = own if run is None else f"{key(own, 'run', run):016x}"
        own = own if piece is None else f"{key(own, 'piece', piece):016x}"
        return own if self.epochs == 1 else f"{key(own, 'epochs', str(self.epochs)):016x}"

    def is_same(self, other: Leaf) -> bool:
        """Return whether another leaf has the same samples in the same order."""
        same = self.source is other.source and self.epochs == other.epochs
        return same or self.fingerprint == other.fingerprint


def fingerprints_of(leaves: Sequence[Leaf]) -> list[str]:
    """Return the fingerprints of leaves. What they read from stores is fetched at once."""
    remote = [leaf.source for leaf in leaves if leaf.source.is_remote]
    with held([one for source in remote for one in source.fingerprint_ranges()]):
        return [leaf.fingerprint for leaf in leaves]


def leaves_by_path(spec: Spec) -> dict[tuple[str, ...], Leaf]:
    """Return the leaf of every leaf spec under `spec`, by its path, in the order of the tree."""
    specs = spec.walk()
    return {path: inner.leaf for path, inner in specs if hasattr(inner, "leaf")}


def leaves_of(spec: Spec) -> list[Leaf]:
    """Return the leaf of every leaf spec under `spec`, in the order of the tree."""
    return list(leaves_by_path(spec).values())


def distinct_leaves(*specs: Spec) -> list[Leaf]:
    """Return the leaves of trees, one per id, sorted. SpecError if two datasets have one id."""
    by_id: dict[str, Leaf] = {}
    for leaf in chain.from_iterable(map(leaves_of, specs)):
        if not by_id.setdefault(leaf.id, leaf).is_same(leaf):
            raise SpecError(
                f"leaf {leaf.id!r}: two different datasets have this id, or one is shuffled in two "
                f"ways. Give one of them another `id:`."
            )
    return [by_id[leaf_id] for leaf_id in sorted(by_id)]


def two_lengths(leaf_id: str, one: int, other: int) -> str:
    """Return the problem of a leaf whose samples have two lengths in one mixture."""
    return (
        f"leaf {leaf_id!r} is read in windows of {one} and of {other} tokens in one mixture, and "
        f"would have one order. Make them equal, or give each an `id:`."
    )


def shared_leaf_ids(spec: Spec) -> frozenset[str]:
    """Return the ids of leaves that more than one order tree under `spec` draws from.

    Trees that draw one after another, as those of stages do, count as one.
    """
    return frozenset(leaf_id for leaf_id, times in _trees_of_leaves(spec).items() if times > 1)


def _trees_of_leaves(spec: Spec) -> Counter[str]:
    """Return how many order trees draw from each leaf at the same time."""
    if spec.item_kind == "references":
        return Counter({leaf.id for leaf in leaves_of(spec)})
    counts: Counter[str] = Counter()
    for child in spec.children.values():
        # Not `+=` and `|=` of counters, which visit every leaf that was found before.
        for leaf_id, times in _trees_of_leaves(child).items():
            known = counts[leaf_id]
            counts[leaf_id] = max(known, times) if spec.children_are_sequential else known + times
    return counts


class LeafTable:
    """The leaves of an order tree, numbered by their sorted ids, and their shares in one lane.

    An *entry* is one position of a leaf in the tree; entries of one leaf share its samples.

    grains: Draws of each leaf in a micro-batch, by id; empty: its samples are not dealt in grains.
    in_passes: whether each pass has each sample once, so that no leaf mixes epochs.
    """

    def __init__(
        self,
        spec: Spec,
        context: Context,
        shuffle: Shuffle,
        clock: Clock,
        grains: Mapping[str, Fraction],
        *,
        in_passes: bool,
    ) -> None:
        known = context.shared(
            ("leaves", context.path, context.leaf_seed), lambda: _numbered(spec, context)
        )
        self.leaves, self.entry_of_path, self.leaf_of_entry = known[:3]
        self.keys, self.strides = known.keys, known.strides
        self.clock = clock
        # The draw of the current node at a position of the run; None: not known.
        self.place: Place | None = partial(clock.draws, lane=context.lane, lanes=context.lanes)
        shuffles = [shuffle.of(leaf) for leaf in self.leaves]
        self.shares = Shares(
            known.chunks,
            known.keys,
            epochs=[
                1 if in_passes and leaf.epochs is not None else leaf.epochs for leaf in self.leaves
            ],
            sequence_length=[own.sequence_length for own in shuffles],
            window=[own.window for own in shuffles],
            runs=[leaf.source.run_length is not None for leaf in self.leaves],
            lane=context.lane,
            lanes=context.lanes,
            grains=[grains[leaf.id] for leaf in self.leaves] if grains else (),
            per_chunk=known.per_chunk,
        )
        self.run_orders = {
            number: order
            for number, (leaf, own) in enumerate(zip(self.leaves, shuffles, strict=True))
            if own.sequence_length and leaf.epochs is not None and (order := leaf.source.run_order)
        }

    def locate(self, leaf: Int64s, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return the epoch and the sample of draws of this lane; as `Shares.locate`."""
        epochs, samples = self.shares.locate(leaf, numbers)
        for order, mine in self.in_run_orders(leaf):
            samples[mine] = order.samples(samples[mine])
        return epochs, samples

    def in_run_orders(self, leaf: Int64s) -> Iterator[tuple[RunOrder, npt.NDArray[np.bool_]]]:
        """Yield the run order of each of these leaves that has one, and which of them are it."""
        for number in np.unique(leaf).tolist() if self.run_orders else ():
            if (order := self.run_orders.get(number)) is not None:
                yield order, leaf == number

    def by_leaf(self, numbers: Int64s) -> dict[str, int]:
        """Return the number of each leaf, int64 [leaves], by its id."""
        return dict(zip((leaf.id for leaf in self.leaves), numbers.tolist(), strict=True))

    def at(self, place: Place | None) -> LeafTable:
        """Return the table for a node with other draws at positions of the run."""
        table = copy(self)
        table.place = place
        return table

    def below(self, choice: Choice | None, child: int) -> LeafTable:
        """Return the table for a child that has the draws which `choice` assigns to it.

        choice: None: its draws at positions of the run are not known.
        """
        place = self.place
        if choice is None or place is None:
            return self.at(None)
        return self.at(lambda samples: int(choice.counts_before(place(samples))[child]))


class _Numbered(NamedTuple):
    """The leaves of an order tree, and facts of each."""

    leaves: list[Leaf]
    entry_of_path: dict[tuple[str, ...], int]
    leaf_of_entry: Int64s
    chunks: Int64s
    keys: npt.NDArray[np.uint64]
    strides: Int64s  # units of a sample
    per_chunk: list[int]  # samples of a chunk


def _numbered(spec: Spec, context: Context) -> _Numbered:
    """Return the leaves of an order tree. SpecError if one is read by samples of two lengths.

    The order of a leaf depends on its id alone, unless several pipelines draw from it.
    """
    entries = leaves_by_path(spec)
    leaves = distinct_leaves(spec)
    cuts = {leaf.id: leaf.cut for leaf in leaves}
    for leaf in entries.values():
        if leaf.cut != cuts[leaf.id]:
            raise SpecError(two_lengths(leaf.id, leaf.cut.stride, cuts[leaf.id].stride))
    number = {leaf.id: n for n, leaf in enumerate(leaves)}
    keys = [
        key(context.leaf_seed, "leaf", leaf.id, *context.path)
        if leaf.id in context.shared_leaves
        else key(context.leaf_seed, "leaf", leaf.id)
        for leaf in leaves
    ]
    return _Numbered(
        leaves,
        {path: entry for entry, path in enumerate(entries)},
        np.array([number[leaf.id] for leaf in entries.values()], np.int64),
        np.array([leaf.num_chunks for leaf in leaves], np.int64),
        np.array(keys, np.uint64),
        np.array([cuts[leaf.id].stride for leaf in leaves], np.int64),
        [cuts[leaf.id].samples for leaf in leaves],
    )
