"""References: which sample of which leaf, drawn in blocks; the root of every order tree.

The position of an order tree is the number of draws of its lane and, after a change of the mixture,
how often each leaf was drawn before (the *ledger* offsets).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any, ClassVar

import numpy as np
from attrs import evolve, field, frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, Signed, shorten
from energy_data.core.lazy import cached_property
from energy_data.core.node import ItemRef, Items, Node
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.leaf import Leaf, LeafTable, Shuffle, leaves_of
from energy_data.nodes.plan_cache import NO_OFFSETS, LanePlan, LeafOffsets, Offsets
from energy_data.nodes.unary import UnarySpec
from energy_data.order.grains import grain_size
from energy_data.order.schedule import Clock, Unit
from energy_data.order.tree import LeafOrder, Order


class OrderSpec(Spec):
    """A spec below reading, which orders the draws from leaves."""

    needs_sizes: ClassVar[bool] = False  # whether its order depends on how large its leaves are
    keeps_place: ClassVar[bool] = False  # whether places of the run are known to what is below
    only_root: ClassVar[bool] = False  # whether it may only be the root of an order tree
    is_finite: ClassVar[bool] = True  # whether its passes end in training, where children repeat

    @property
    def own_units(self) -> frozenset[Unit]:
        """The units in which the order of this node itself follows the run; empty: it does not."""
        return frozenset()

    @property
    def follows_run(self) -> bool:
        """Whether anything in this tree depends on positions of the run."""
        return bool(self.own_units) or any(child.follows_run for child in self.ordered)

    def check_clock(self, clock: Clock | None) -> None:
        """Raise SpecError if this tree depends on positions of the run and `clock` is None.

        clock: Of the run; None: the draw at a position of the run is not known here.
        """
        for unit in sorted(self.own_units):
            if clock is None:
                raise SpecError(
                    f"{self.kind}: it follows the run, so it must go on without end: under no "
                    f"concat, repeat or blend_epochized, and in no finite stream."
                )
            if not clock.knows(unit):
                fact = {"steps": "microbatches_per_step", "tokens": "tokens_per_sample"}[unit]
                raise SpecError(
                    f"{self.kind}: its weights follow {unit}. Give `{fact}` of the run."
                )
        for child in self.ordered:
            if child.only_root:
                raise SpecError(f"{child.kind}: it can only be the root of an order tree.")
            child.check_clock(clock if self.keeps_place else None)

    @property
    def ordered(self) -> Sequence[OrderSpec]:
        """The children below reading."""
        return [child for child in self.children.values() if isinstance(child, OrderSpec)]

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

    def parts_of_batch(self, *, endless: bool) -> Sequence[Fraction]:
        """Return the part of each child in a batch; 0: unknown, as where children take turns.

        endless: As in `order`.
        """
        return [Fraction(0)] * len(self.ordered)

    def draws_in_batch(self, draws: Fraction, *, endless: bool) -> Iterator[tuple[str, Fraction]]:
        """Yield each leaf's id and its chunks in a batch with so many draws of this tree."""
        parts = self.parts_of_batch(endless=endless)
        for child, part in zip(self.ordered, parts, strict=True):
            yield from child.draws_in_batch(draws * part, endless=endless)

    @property
    def shares(self) -> Sequence[Fraction]:
        """How many draws each child has in the long run, on any scale. SpecError if it changes."""
        return [child.size for child in self.ordered]

    @property
    def mean_tokens(self) -> Fraction:
        """The mean tokens of the samples drawn in the long run.

        Raises SpecError if the length of a leaf is not known, or if the mean changes over the run.
        """
        unknown = sorted({leaf.id for leaf in leaves_of(self) if leaf.mean_tokens is None})
        if unknown:
            raise SpecError(
                f"how many tokens samples of {', '.join(map(repr, unknown))} have is not known, "
                f"and weights are of tokens. Give their mean, `tokens_per_sample`; or count them: "
                f"`energy-data prepare-tokens`; or give the task encoder a `@sample_size_metric`."
            )
        means = [child.mean_tokens for child in self.ordered]
        if len(set(means)) == 1:
            return means[0]
        parts = parts_of(self.shares)
        return sum((part * mean for part, mean in zip(parts, means, strict=True)), Fraction(0))

    def build(self, context: Context) -> Node[Any]:
        if self.item_kind == "references":
            return ReferencesSpec(of=self).build(context)
        return self.stream(context)

    def stream(self, context: Context) -> Node[Any]:
        """Return the node over children above reading, for kinds that can have such children."""
        raise NotImplementedError(f"a {self.kind} stands below reading")


def parts_of(shares: Sequence[Fraction]) -> list[Fraction]:
    """Return the shares as parts of their sum."""
    total = sum(shares, Fraction(0))
    return [share / total for share in shares]


@frozen
class LeafSpec(OrderSpec):
    """Draw from one dataset split, each sample once per epoch over all lanes."""

    kind = "leaf"
    leaf: Leaf

    def __attrs_post_init__(self) -> None:
        if not self.leaf.num_samples:
            raise SpecError(
                f"leaf {self.leaf.id!r}: it has no samples. Remove it, or check its split and "
                f"subset."
            )

    @property
    def size(self) -> Fraction:
        return Fraction(self.leaf.num_samples)

    @property
    def mean_tokens(self) -> Fraction:
        known = self.leaf.mean_tokens
        return super().mean_tokens if known is None else known

    def draws_in_batch(self, draws: Fraction, *, endless: bool) -> Iterator[tuple[str, Fraction]]:
        yield self.leaf.id, draws / self.leaf.cut.samples

    def to_dict(
        self, child: Callable[[Spec], Any] | None = None, *, defaults: bool = False
    ) -> list[Any]:
        leaf = self.leaf
        facts = {"id": leaf.id, "size": leaf.num_samples, "fingerprint": leaf.fingerprint}
        return [self.kind, facts]

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> LeafOrder:
        entry = leaves.entry_of_path[context.path]
        leaf = int(leaves.leaf_of_entry[entry])
        return LeafOrder(entry, leaf, leaves.shares, len(leaves.leaf_of_entry))


@dataclass
class DrawsCursor(Cursor):
    epoch: int = 0  # passes finished, of a finite stream
    draws: int = 0  # draws made in this pass
    offsets: tuple[Signed, ...] = ()  # per leaf: units before the mixture changed; empty: none
    since: int = 0  # the draw at which it changed
    # Per leaf, numerator and denominator: its grains, kept from before an edit; empty: of the spec.
    grains: tuple[int, ...] = ()


@frozen(kw_only=True)
class ReferencesSpec(UnarySpec):
    """The root of an order tree.

    An endless stream has one order per lane. A finite one (`deal` > 0) has one order that is dealt
    to the lanes: micro-batch g of a pass is its draws [g * deal, (g + 1) * deal). So a pass has at
    most one short batch for any number of lanes.

    In an endless stream, `batch` is how many draws a lane makes at a time: those of a micro-batch.
    They are of one epoch of a leaf, as far as possible (see `order/grains.py`).
    """

    kind = "references"
    of: OrderSpec
    shuffle: Shuffle = field(factory=Shuffle)
    deal: int = 0
    batch: int = 1
    drop_last: bool = False  # drop the short group at the end of a pass
    clock: Clock | None = None  # for weights that follow the run; None: there are none

    def __attrs_post_init__(self) -> None:
        self.of.check_clock(None if self.deal else self.clock or Clock())

    def to_dict(
        self, child: Callable[[Spec], Any] | None = None, *, defaults: bool = False
    ) -> list[Any]:
        kind, data = super().to_dict(child, defaults=defaults)
        # Sequences in parallel decide only how large a window is.
        window, length = self.shuffle.window, self.shuffle.sequence_length
        shuffle = {"buffer_size": window, "sequence_length": length, "parallel_sequences": 0}
        return [kind, {**data, "shuffle": shuffle}]

    def num_items(self, context: Context, epoch: int) -> int | None:
        if not self.deal:
            return None
        first, end = self.bounds(self.plan(context, {}).order, epoch)
        return end - first

    def bounds(self, order: Order, epoch: int) -> tuple[int, int]:
        """Return the first draw of a pass in the order of all lanes, and the first after it."""
        first, end = order.begin(epoch), order.begin(epoch + 1)
        return first, first + (end - first) // self.deal * self.deal if self.drop_last else end

    def items_per_lane(self, context: Context) -> int:
        if self.deal or not self.of.is_finite:
            raise SpecError(
                f"a {self.of.kind} never ends, because its children start again one by one. Put "
                f"it into an `epochize` with the number of samples of an epoch"
            )
        return self.plan(context, self.grains).order.begin(1)

    def build(self, context: Context) -> ReferencesNode:
        return DealtReferences(self, context) if self.deal else ReferencesNode(self, context)

    @cached_property
    def grains(self) -> Mapping[str, Fraction]:
        """The size of the grains in which each leaf is dealt to the lanes, by id."""
        draws: dict[str, Fraction] = {}
        for leaf_id, part in self.of.draws_in_batch(Fraction(self.batch), endless=True):
            draws[leaf_id] = draws.get(leaf_id, Fraction(0)) + part
        return {leaf_id: grain_size(found) for leaf_id, found in draws.items()}

    def plan(self, context: Context, grains: Mapping[str, Fraction]) -> LanePlan:
        """Return the plan of a lane. The lanes of a dealt stream share one.

        grains: Of each leaf, by id.
        """
        if not self.deal:
            return self._plan(context, grains)
        one = evolve(context, lane=0, lanes=1)
        return context.shared(("plan", context.path), lambda: self._plan(one, {}))

    def _plan(self, context: Context, grains: Mapping[str, Fraction]) -> LanePlan:
        clock, in_passes = self.clock or Clock(), bool(self.deal)
        table = LeafTable(self.of, context, self.shuffle, clock, grains, in_passes=in_passes)
        # Paths within the order tree start at its root, so that wrapping it changes nothing.
        order = self.of.order(evolve(context, path=()), table, endless=not in_passes)
        return LanePlan(order, table)


class ReferencesNode(Node[DrawsCursor]):
    """References of one lane, without end."""

    def __init__(self, spec: ReferencesSpec, context: Context) -> None:
        super().__init__(DrawsCursor())
        self.spec, self.context = spec, context
        self.before = NO_OFFSETS

    @cached_property
    def plan(self) -> LanePlan:
        """The order and the table of leaves; made on the first draw."""
        return self._plan_at(self.cursor)

    @property
    def grains(self) -> Mapping[str, Fraction]:
        """The size of the grains in which each leaf is dealt to the lanes, by id."""
        return self._grains(self.cursor.grains)

    def _grains(self, kept: tuple[int, ...]) -> Mapping[str, Fraction]:
        if not kept:
            own, others = self.spec.grains, self.context.grains
            return {name: others.get(name, size) for name, size in own.items()} if others else own
        sizes = map(Fraction, kept[::2], kept[1::2])
        return dict(zip(self.spec.grains, sizes, strict=True))

    def keep_grains(self, sizes: Mapping[str, Fraction]) -> None:
        """Deal leaves as before an edit, so that they continue. Others are dealt as now."""
        self.cursor.grains, own = (), self.grains
        kept = {name: sizes.get(name, size) for name, size in own.items()}
        if kept != own:
            pairs = (size.as_integer_ratio() for size in kept.values())
            self.cursor.grains = tuple(chain.from_iterable(pairs))
        self.__dict__.pop("plan", None)

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves, sorted by id."""
        return self.plan.table.leaves

    @cached_property
    def entries(self) -> list[Leaf]:
        """The leaf of each entry: of the first number of a reference. Needs no plan."""
        return leaves_of(self.spec.of)

    def faults(self, at: DrawsCursor) -> Iterator[Problem]:
        if at.grains and not self._are_grains(at.grains):
            yield "grains", f"must be the grains of each leaf, got {shorten(at.grains)}"
        elif not at.offsets:
            return
        elif at.since > at.draws:
            yield "since", f"must be up to draw {at.draws}, got {at.since}"
        elif len(at.offsets) != (count := len({leaf.id for leaf in self.entries})):
            yield "offsets", f"must have a number for each of {count} leaves, has {len(at.offsets)}"
        elif min(at.offsets) < 0 and self._plan_at(at).is_before_start(at.draws, at.offsets):
            yield "offsets", f"make the place in a leaf negative, after {at.draws} draws"

    def _are_grains(self, pairs: tuple[int, ...]) -> bool:
        if len(pairs) != 2 * len(self.spec.grains) or not all(pairs[1::2]):
            return False
        return all(size == grain_size(size) for size in map(Fraction, pairs[::2], pairs[1::2]))

    def _plan_at(self, at: DrawsCursor) -> LanePlan:
        return self.spec.plan(self.context, self._grains(at.grains))

    def has_sample(self, reference: ItemRef) -> bool:
        """Return whether there is a sample of that reference."""
        entry, _, index = reference
        return bool(entry < len(self.entries) and self.entries[entry].has(index))

    def continue_from(self, before: LeafOffsets) -> None:
        """Continue leaves where other trees stopped. A parent calls it again after a restore."""
        self.before = before

    def draw(self, count: int) -> Items:
        at, before = self.cursor, self.before
        block = self.plan.block(at.draws, count, before.offsets(at.offsets, at.since))
        if before.returned:
            block = self.plan.with_returned(block, at.draws, at.since, before.returned)
        at.draws += len(block)
        return Items(block, block)

    def ledger(self) -> dict[str, int]:
        """Return how many units of each leaf this tree has drawn in this lane, by id."""
        at = self.cursor
        units = self.plan.ledger(at.draws, Offsets(at.offsets, at.since))
        return self.plan.table.by_leaf(units)


class DealtReferences(ReferencesNode):
    """One finite order, dealt to the lanes in groups of `deal` draws."""

    def faults(self, at: DrawsCursor) -> Iterator[Problem]:
        yield from super().faults(at)
        first, end = self.spec.bounds(self.plan.order, at.epoch)
        if at.draws > end - first:
            yield "draws", f"must be those of a pass of {end - first} samples, got {at.draws}"

    def rewind(self) -> None:
        self.cursor = DrawsCursor(epoch=self.cursor.epoch + 1)

    def draw(self, count: int) -> Items:
        at, deal = self.cursor, self.spec.deal
        first, end = self.spec.bounds(self.plan.order, at.epoch)
        start = first + self.place(at.draws)
        count = min(count, deal - at.draws % deal, end - start)
        if count <= 0:
            raise StopIteration
        at.draws += count
        block = self.plan.block(start, count, Offsets(), most=count)
        return Items(block, block)

    def ledger(self) -> dict[str, int]:
        """Return the units of each leaf drawn by this lane in this pass. Looks at each group."""
        at, deal = self.cursor, self.spec.deal
        drawn = np.zeros(len(self.leaves), np.int64)
        first, _ = self.spec.bounds(self.plan.order, at.epoch)
        deal = deal if self.context.lanes > 1 else max(at.draws, 1)  # one lane has one long group
        for done in range(0, at.draws, deal):
            start = first + self.place(done)
            end = start + min(deal, at.draws - done)
            drawn += self.plan.counts(end) - self.plan.counts(start)
        return self.plan.table.by_leaf(drawn * self.plan.table.strides)

    def place(self, draws: int) -> int:
        """Return the draw of a pass, over all lanes, that a draw of this lane is."""
        group, taken = divmod(draws, self.spec.deal)
        return (group * self.context.lanes + self.context.lane) * self.spec.deal + taken
