"""Kinds that decide what a pass is: `concat`, `repeat`, `epochize` and `limit`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from attrs import frozen

from energy_data.core import recipe
from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem
from energy_data.core.keys import key
from energy_data.core.node import Items
from energy_data.core.recipe import COUNT, FieldProblem, Yaml, check_whole
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.leaf import LeafTable
from energy_data.nodes.many import MultiChildNode, MultiChildSpec
from energy_data.nodes.references import OrderSpec
from energy_data.nodes.unary import UnaryNode, UnarySpec
from energy_data.order.permutation import permute
from energy_data.order.tree import PassOrder, RepeatOrder, VirtualEpochOrder


@frozen
class ConcatSpec(MultiChildSpec):
    """Play the children in their order, each to its end."""

    kind = "concat"
    needs_sizes = True

    parts: tuple[Spec, ...] = recipe.children(
        None,
        "Children played one after another, each to its end.",
        "concat: [{path: ./coco}, {path: ./coyo}]",
        name="concat",
    )

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> PassOrder:
        return PassOrder(self.orders(context, leaves))

    def items_per_lane(self, context: Context) -> int:
        return sum(part.items_per_lane(context.under(name)) for name, part in self.children.items())

    def stream(self, context: Context) -> ConcatNode:
        return ConcatNode(ConcatCursor(), self, context)


@dataclass
class ConcatCursor(Cursor):
    child: int = 0  # number of the current child


class ConcatNode(MultiChildNode[ConcatCursor]):
    def faults(self, at: ConcatCursor) -> Iterator[Problem]:
        if at.child > len(self.children):
            yield "child", f"must be one of {len(self.children)}, got {at.child}"

    def draw(self, count: int) -> Items:
        while self.cursor.child < len(self.children):
            try:
                return self.draw_from(self.cursor.child, count)
            except StopIteration:
                self.cursor.child += 1
        raise StopIteration


@frozen(kw_only=True)
class RepeatSpec(UnarySpec, OrderSpec):
    """Play the child `times` times, each pass its next epoch; `times=None`: without end."""

    kind = "repeat"
    needs_sizes = True

    yaml = Yaml(
        about="Several passes over one child, each its next epoch.",
        example="repeat: {times: 3, of: {path: ./coco}}",
    )

    of: Spec = recipe.child("What is repeated.", "of: {path: ./coco}")
    times: int | None = recipe.key(
        COUNT, "Number of passes.", "times: 3", default=None, required=True
    )

    def check(self) -> Iterator[FieldProblem]:
        if self.times is not None and self.times < 1:
            yield "times", f"times must be >= 1, got {self.times}."
        if self.times is None and self.item_kind == "references":
            yield "", "the key 'times' is missing; training repeats forever by itself. Add it."

    @property
    def size(self) -> Fraction:
        return self.ordered[0].size * (self.times or 1)

    def parts_of_batch(self, *, endless: bool) -> Sequence[Fraction]:
        return [Fraction(1)]

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> RepeatOrder:
        child = self.ordered[0].order(context.under("of"), leaves, endless=False)
        return RepeatOrder(child, times=self.times or 1)

    def stream(self, context: Context) -> RepeatNode:
        return RepeatNode(self, context)


@dataclass
class RepeatCursor(Cursor):
    done: int = 0  # passes finished
    given: bool = False  # whether this pass has returned an item: an empty child ends the stream


class RepeatNode(UnaryNode[RepeatCursor]):
    def __init__(self, spec: RepeatSpec, context: Context) -> None:
        super().__init__(RepeatCursor(), spec, context)
        self.times = spec.times

    def draw(self, count: int) -> Items:
        at = self.cursor
        while True:
            try:
                items = self.child.draw(count)
            except StopIteration:
                if not at.given or (self.times is not None and at.done + 1 >= self.times):
                    raise
                self.child.rewind()
                at.done, at.given = at.done + 1, False
            else:
                at.given = at.given or bool(items.values)
                return items


@frozen(kw_only=True)
class EpochizeSpec(UnarySpec, OrderSpec):
    """End after `length` items over all lanes; the next epoch continues where the last ended."""

    kind = "epochize"
    keeps_place = True

    yaml = Yaml(
        about="Epochs of a given length; the next one continues where the last one ended.",
        example="epochize: {length: 100000, of: {path: ./coco}}",
    )

    of: Spec = recipe.child("Where the samples come from; it continues.", "of: {path: ./coco}")
    length: int = recipe.key(
        COUNT, "Samples in an epoch, over all ranks and workers.", "length: 100000"
    )

    def check(self) -> Iterator[FieldProblem]:
        if self.length < 1:
            yield "length", f"length must be >= 1, got {self.length}."

    @property
    def size(self) -> Fraction:
        return Fraction(self.length)

    def parts_of_batch(self, *, endless: bool) -> Sequence[Fraction]:
        return [Fraction(1)]

    def order(self, context: Context, leaves: LeafTable, *, endless: bool) -> VirtualEpochOrder:
        below = leaves if endless else leaves.at(None)  # a finite parent counts other passes
        child = self.ordered[0].order(context.under("of"), below, endless=True)
        own = key(context.seed, self.kind, *context.path)
        position = int(permute(context.lane, context.lanes, own))
        return VirtualEpochOrder(child, length=self.length, position=position, lanes=context.lanes)

    def stream(self, context: Context) -> EpochizeNode:
        return EpochizeNode(self, context)


@dataclass
class EpochizeCursor(Cursor):
    epoch: int = 0  # epochs finished
    taken: int = 0  # items returned since the first epoch began


class EpochizeNode(UnaryNode[EpochizeCursor]):
    """Epochs over a stream of `length` items over all lanes each, dealt to the lanes evenly."""

    def __init__(self, spec: EpochizeSpec, context: Context) -> None:
        super().__init__(EpochizeCursor(), spec, context)
        self.length, self.context = spec.length, context

    def draw(self, count: int) -> Items:
        at = self.cursor
        end = _of_lane((at.epoch + 1) * self.length, self.context)
        if at.taken >= end:
            raise StopIteration
        items = self.child.draw(min(count, end - at.taken))
        at.taken += len(items.values)
        return items

    def rewind(self) -> None:
        """Begin the next epoch. The child continues."""
        self.cursor = EpochizeCursor(epoch=self.cursor.epoch + 1, taken=self.cursor.taken)


@frozen(kw_only=True)
class LimitSpec(UnarySpec):
    """End after the first `length` items of a stream, over all lanes, in every epoch.

    Of a stream of batches, those whose samples were all skipped count, so that the same samples are
    returned on any number of lanes.
    """

    kind = "limit"
    is_one_to_one = True

    length: int

    def __attrs_post_init__(self) -> None:
        check_whole("limit", self.length, 0)
        if self.of.item_kind == "references":
            raise SpecError("limit: it stands above reading. Below it, use `subset` or `epochize`.")

    def num_items(self, context: Context, epoch: int) -> int | None:
        inner = super().num_items(context, epoch)
        return self.length if inner is None else min(inner, self.length)

    def items_per_lane(self, context: Context) -> int:
        own = _of_lane(self.length, context)
        try:
            return min(super().items_per_lane(context), own)
        except SpecError:  # the child has no known end
            return own

    def build(self, context: Context) -> LimitNode:
        return LimitNode(self, context)


@dataclass
class LimitCursor(Cursor):
    taken: int = 0  # items returned in this epoch; of batches, also those skipped


class LimitNode(UnaryNode[LimitCursor]):
    def __init__(self, spec: LimitSpec, context: Context) -> None:
        super().__init__(LimitCursor(), spec, context)
        self.length = _of_lane(spec.length, context)
        self.counts_draws = spec.item_kind == "batches"

    def draw(self, count: int) -> Items:
        left = self.length - self.cursor.taken
        if left <= 0:
            raise StopIteration
        items = self.child.draw(1 if self.counts_draws else min(count, left))
        self.cursor.taken += 1 if self.counts_draws else len(items.values)
        return items


def _of_lane(length: int, context: Context) -> int:
    """Return how many of the first `length` items are in a lane: item i is in lane i mod lanes."""
    return (length + context.lanes - 1 - context.lane) // context.lanes
