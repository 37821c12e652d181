"""References: which sample of which leaf, drawn in blocks; the root of every order tree.

The position of an order tree is the number of draws of its lane and, after a change of the mixture,
how often each leaf was drawn before (the *ledger* offsets).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, ClassVar, NoReturn
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, Signed
from energy_data.core.keys import key
from energy_data.core.node import ItemRef, Items, Node
from energy_data.core.references import Integers, References, rank_within
from energy_data.core.spec import ItemKind, Spec
from energy_data.errors import SpecError
from energy_data.nodes.leaves import Leaf, Shuffle, distinct_leaves, leaf_entries, too_often
from energy_data.nodes.plan_cache import NO_OFFSETS, LanePlan, LeafOffsets, PlanBatcher
from energy_data.order.schedule import Clock
from energy_data.order.shares import shares_of
from energy_data.order.tree import Order
from energy_data.order.weighted import Place


class OrderSpec(Spec):
    """A spec below reading, which orders the draws from leaves."""

    needs_sizes: ClassVar[bool] = False  # whether its order depends on how large its leaves are
    keeps_place: ClassVar[bool] = False  # whether places of the run are known to what is below
    only_root: ClassVar[bool] = False  # whether it may only be the root of an order tree
    is_finite: ClassVar[bool] = True  # whether its passes end in training, where children repeat

    @property
    def item_kind(self) -> ItemKind:
        return "references"

    @property
    def follows_run(self) -> bool:
        """Whether the order of this node itself depends on positions of the run."""
        return False

    def check_clock(self, clock: Clock | None) -> None:
        """Raise SpecError if this tree depends on positions of the run and `clock` is None.

        clock: Of the run; None: the draw at a position of the run is not known here.
        """
        for child in self.children.values():
            if isinstance(child, OrderSpec):
                if child.only_root:
                    name = child.kind
                    raise SpecError(f"{name}: it can only be the root of an order tree.")
                child.check_clock(clock if self.keeps_place else None)

    @property
    @abstractmethod
    def size(self) -> Fraction:
        """The number of draws in one pass, over all lanes; a fraction if repetitions are."""

    @abstractmethod
    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> Order:
        """Return the order in one lane.

        endless: Children never end (training). Otherwise they play in passes (a finite stream, or
        a parent that counts passes).
        """

    def build(self, context: Context) -> Node[Any]:
        return ReferencesSpec(of=self).build(context)


class LeafTable:
    """The leaves of an order tree, numbered by their sorted ids, and their shares.

    An *entry* is one position of a leaf in the tree; entries of one leaf share its samples. One
    table covers all lanes of a process; `in_lane` returns the table of one lane.
    """

    place: Place | None  # the draw of the current node at a position of the run, if known

    def __init__(self, spec: OrderSpec, context: Context, shuffle: Shuffle, clock: Clock) -> None:
        self.entries, self.leaves, self._entry_of_path = context.shared(
            ("leaves", context.path), lambda: _numbered(spec)
        )
        self.leaf_of_entry, sizes, keys = context.shared(
            ("leaf facts", context.path, context.leaf_seed), lambda: self._facts(context)
        )
        self._lanes = context.hosted_lanes
        self.shares = shares_of(
            np.tile(sizes, len(self._lanes)),
            np.tile(keys, len(self._lanes)),
            [leaf.epochs for leaf in self.leaves] * len(self._lanes),
            sequence_length=shuffle.sequence_length,
            window=shuffle.window,
            lane=np.repeat(self._lanes, len(self.leaves)),
            lanes=context.lanes,
        )
        self.clock = clock
        self.place = None

    def _facts(self, context: Context) -> tuple[Integers, Integers, npt.NDArray[np.uint64]]:
        """Return the leaf of each entry, and of each leaf its size and its key."""
        number = {leaf.id: n for n, leaf in enumerate(self.leaves)}
        return (
            np.array([number[leaf.id] for leaf in self.entries], np.int64),
            np.array([leaf.num_samples for leaf in self.leaves], np.int64),
            np.array([leaf_key(context, leaf.id) for leaf in self.leaves], np.uint64),
        )

    def in_lane(self, context: Context) -> LeafTable:
        """Return the table of one of the lanes."""
        table, first = copy(self), self._lanes.index(context.lane) * len(self.leaves)
        table.shares = self.shares.part_of(slice(first, first + len(self.leaves)))
        table.place = partial(self.clock.draws, lane=context.lane, lanes=context.lanes)
        return table

    def at(self, place: Place | None) -> LeafTable:
        """Return the table for a node with other draws at positions of the run."""
        table = copy(self)
        table.place = place
        return table

    def entry_of(self, context: Context) -> int:
        """Return the entry of the leaf spec that is built in `context`."""
        return self._entry_of_path[context.path]


def _numbered(spec: OrderSpec) -> tuple[list[Leaf], list[Leaf], dict[tuple[str, ...], int]]:
    """Return the leaf of each entry, the distinct leaves, and the entry of each path."""
    entries = list(leaf_entries(spec))
    leaves = [leaf for _, leaf in entries]
    entry_of_path = {path: number for number, (path, _) in enumerate(entries)}
    return leaves, distinct_leaves(leaves), entry_of_path


def leaf_key(context: Context, leaf_id: str) -> int:
    """Return the key of a leaf's order: its id alone, unless several pipelines draw from it."""
    path = context.path if leaf_id in context.shared_leaves else ()
    return key(context.leaf_seed, "leaf", leaf_id, *path)


def follows_run(spec: OrderSpec) -> bool:
    """Return whether anything in an order tree depends on positions of the run."""
    return any(isinstance(inner, OrderSpec) and inner.follows_run for _, inner in spec.walk())


@dataclass
class DrawsCursor(Cursor):
    epoch: int = 0  # passes finished, of a finite stream
    draws: int = 0  # draws made in this pass
    offsets: tuple[Signed, ...] = ()  # per leaf: draws before the mixture changed; empty: none


@frozen(kw_only=True)
class ReferencesSpec(Spec):
    """The root of an order tree.

    An endless stream has one order per lane. A finite one (`deal` > 0) has one order that is dealt
    to the lanes: micro-batch g of a pass is its draws [g * deal, (g + 1) * deal). So a pass has at
    most one short batch for any number of lanes.
    """

    kind = "references"
    of: OrderSpec
    shuffle: Shuffle = field(factory=Shuffle)
    deal: int = 0
    drop_last: bool = False  # drop the short group at the end of a pass
    clock: Clock | None = None  # for weights that follow the run; None: there are none

    def __attrs_post_init__(self) -> None:
        self.of.check_clock(None if self.deal else self.clock or Clock())
        entries = leaf_entries(self.of) if self.deal else ()
        if mixing := [leaf.id for _, leaf in entries if leaf.epochs not in (1, None)]:
            raise SpecError(
                f"leaf {mixing[0]!r}: in one pass each sample comes once, so epochs cannot be "
                f"mixed. Remove `shuffle_over_epochs_multiplier`, or pass repeat=True."
            )

    @property
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return "references"

    def canonical(self) -> ReferencesSpec:
        window, length = self.shuffle.window, self.shuffle.sequence_length
        shuffle = Shuffle(buffer_size=window, sequence_length=length)
        if window:
            shuffle = evolve(shuffle, parallel_sequences=0)  # they are part of the window
        return evolve(self, shuffle=shuffle)

    def num_items(self, context: Context, epoch: int) -> int | None:
        if not self.deal:
            return None
        node = self.build(context)
        draws = node.plan.order.begin(epoch + 1) - node.plan.order.begin(epoch)
        return draws // self.deal * self.deal if self.drop_last else draws

    def items_per_lane(self, context: Context) -> int:
        if self.deal or not self.of.is_finite:
            raise SpecError(
                f"a {self.of.kind} never ends, because its children start again one by one. Put "
                f"it into an `epochize` with the number of samples of an epoch"
            )
        return ReferencesNode(self, context).plan.order.begin(1)

    def build(self, context: Context) -> ReferencesNode:
        if self.deal:
            return DealtReferences(self, context)
        return ReferencesNode(self, context)


class ReferencesNode(Node[DrawsCursor]):
    """References of one lane, without end."""

    def __init__(self, spec: ReferencesSpec, context: Context) -> None:
        super().__init__(DrawsCursor())
        self.spec, self.context = spec, context
        self._plan: LaneOrder | None = None
        self._before = NO_OFFSETS

    @property
    def plan(self) -> LaneOrder:
        """The order and the table of leaves; made on the first draw."""
        if self._plan is None:
            plans = LaneOrders.of(self.spec, self.context, endless=True)
            self._plan = plans.in_lane(self.context.lane)
        return self._plan

    @property
    def leaves(self) -> list[Leaf]:
        return self.plan.table.leaves

    def faults(self, at: DrawsCursor) -> Iterator[Problem]:
        if at.offsets and len(at.offsets) != (count := len(self._ids)):
            yield "offsets", f"must have a number for each of {count} leaves, has {len(at.offsets)}"
        elif min(at.offsets, default=0) < 0 and self.plan.ledger(at.draws, at.offsets).min() < 0:
            yield "offsets", f"make the draws of a leaf negative, after {at.draws} draws"

    def has_sample(self, reference: ItemRef) -> bool:
        """Return whether there is a sample of that reference."""
        entry, _, number = reference
        return bool(entry < len(self._sizes) and number < self._sizes[entry])

    @cached_property
    def _sizes(self) -> list[int]:
        """The numbers of samples of the leaves of entries."""
        return [leaf.num_samples for _, leaf in leaf_entries(self.spec.of)]

    @property
    def _ids(self) -> set[str]:
        """The ids of the leaves; as `leaves`, without a plan."""
        return {leaf.id for _, leaf in leaf_entries(self.spec.of)}

    def continue_from(self, before: LeafOffsets) -> None:
        """Continue leaves where other trees stopped. A parent calls it again after a restore."""
        self._before = before

    def draw(self, count: int) -> Items:
        at, before = self.cursor, self._before
        block = self.plan.block(at.draws, count, before.offsets(at.offsets))
        if before.returned:
            leaf = self.plan.table.leaf_of_entry[block.entries]
            rank = self.plan.ledger(at.draws, at.offsets)[leaf] + rank_within(leaf)
            block = References(block.entries, block.epochs.copy(), block.indices.copy())
            before.put_in(block.epochs, block.indices, leaf, rank)
        at.draws += len(block)
        return Items(block, block)

    def ledger(self) -> Integers:
        """Return how often this tree has drawn each leaf in this lane, int64 [leaves]."""
        return self.plan.ledger(self.cursor.draws, self.cursor.offsets)


class DealtReferences(ReferencesNode):
    """One finite order, dealt to the lanes in groups of `deal` draws."""

    @property
    def plan(self) -> LaneOrder:
        if self._plan is None:
            alone = evolve(self.context, lane=0, lanes=1, hosted=())
            self._plan = LaneOrders.of(self.spec, alone, endless=False).in_lane(0)
        return self._plan

    def faults(self, at: DrawsCursor) -> Iterator[Problem]:
        yield from super().faults(at)
        first, end = (self.plan.order.begin(epoch) for epoch in (at.epoch, at.epoch + 1))
        if at.draws > end - first:
            yield "draws", f"must be those of a pass of {end - first} samples, got {at.draws}"

    def rewind(self) -> None:
        self.cursor = DrawsCursor(epoch=self.cursor.epoch + 1)

    def draw(self, count: int) -> Items:
        at, deal = self.cursor, self.spec.deal
        first, end = (self.plan.order.begin(epoch) for epoch in (at.epoch, at.epoch + 1))
        if self.spec.drop_last:
            end = first + (end - first) // deal * deal
        group, taken = divmod(at.draws, deal)
        start = first + (group * self.context.lanes + self.context.lane) * deal + taken
        count = min(count, deal - taken, end - start)
        if count <= 0:
            raise StopIteration
        at.draws += count
        block = self.plan.block(start, count, (), most=count)
        return Items(block, block)

    def ledger(self) -> Integers:
        """Return how often this lane has drawn each leaf in this pass. Looks once at each group."""
        at, deal = self.cursor, self.spec.deal
        drawn = np.zeros(len(self.plan.table.leaves), np.int64)
        first = self.plan.order.begin(at.epoch)
        deal = deal if self.context.lanes > 1 else max(at.draws, 1)  # one lane has one long group
        for done in range(0, at.draws, deal):
            start = first + (done // deal * self.context.lanes + self.context.lane) * deal
            end = start + min(deal, at.draws - done)
            drawn += self.plan.ledger(end, ()) - self.plan.ledger(start, ())
        return drawn


class LaneOrder(LanePlan):
    """The order tree as one lane sees it."""

    def __init__(
        self, spec: ReferencesSpec, context: Context, plans: LaneOrders, *, endless: bool
    ) -> None:
        self.table = plans.table.in_lane(context)
        # Paths within the order tree start at its root, so that wrapping it changes nothing.
        order = spec.of.order(evolve(context, path=()), self.table, endless=endless)
        most = [leaf.most_draws for leaf in self.table.leaves]
        super().__init__(order, self.table.shares, most, plans)

    def refuse(self, leaf: int) -> NoReturn:
        raise too_often(self.table.leaves[leaf])


class LaneOrders(PlanBatcher):
    """The plans of the lanes of a process over one order tree."""

    def __init__(self, spec: ReferencesSpec, context: Context, *, endless: bool) -> None:
        self.table = LeafTable(spec.of, context, spec.shuffle, spec.clock or Clock())
        super().__init__(self.table.leaf_of_entry, len(self.table.leaves), self.table.shares)
        self._lanes = context.hosted_lanes
        contexts = map(context.in_lane, self._lanes)
        self.plans = [LaneOrder(spec, lane, self, endless=endless) for lane in contexts]

    @classmethod
    def of(cls, spec: ReferencesSpec, context: Context, *, endless: bool) -> LaneOrders:
        """Return the plans of an order tree. They are kept while a lane draws from it."""
        known = context.shared("plans", WeakValueDictionary[Hashable, LaneOrders])
        facts = context.path, context.seed, context.leaf_seed, context.lanes, context.hosted_lanes
        if (plans := known.get(facts)) is None:
            plans = known[facts] = cls(spec, context, endless=endless)
        return plans

    def in_lane(self, lane: int) -> LaneOrder:
        """Return the plan of a lane."""
        plan = self.plans[self._lanes.index(lane)]
        assert isinstance(plan, LaneOrder)
        return plan
