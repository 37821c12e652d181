"""Functions that make one item of each, or several: `encode`, and `flat_map` over any stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import compress, islice
from types import GeneratorType
from typing import Any, Literal, NamedTuple

from attrs import field, frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem
from energy_data.core.node import Change, ItemRef, Items, Node, PendingRef
from energy_data.core.profiler import ENCODING
from energy_data.core.sample import describe_source
from energy_data.core.user_call import SKIPPED, ErrorPolicy, Skipped, UserCall, gives_parts
from energy_data.errors import SpecError
from energy_data.nodes.buffered import (
    BufferedCursor,
    BufferedNode,
    ReplayCache,
    require_replayable,
    samples_in,
)
from energy_data.nodes.unary import SkipCursor, UnaryNode, UnarySpec, not_reproducible


@frozen(kw_only=True)
class EncodeSpec(UnarySpec):
    """Return `encode(sample)`. If it raises `SkipSample`, skip and count the sample.

    If `encode` is a generator (`yields="several"`), return each sample that it yields, in order. A
    run saved between the parts of a sample encodes that sample again and continues after the last
    part returned. Any other error is raised with a note that names the sample. `encode` must depend
    on the sample alone.
    """

    kind = "encode"
    unsaved = ("on_failure",)
    encode: Callable[[Any], Any]
    on_failure: ErrorPolicy | None = None  # None: errors are raised
    yields: Literal["one", "several"] = field()

    @yields.default
    def _yields(self) -> Literal["one", "several"]:
        return "several" if gives_parts(self.encode) else "one"

    def __attrs_post_init__(self) -> None:
        if self.yields not in ("one", "several"):
            raise SpecError(f"encode: yields must be 'one' or 'several', got {self.yields!r}.")
        if self.yields == "several":
            require_replayable(self, self.of)

    @property
    def is_one_to_one(self) -> bool:
        return self.yields == "one"

    def build(self, context: Context) -> Node[Any]:
        call = UserCall(self.encode, context, "encoding", ENCODING, on_failure=self.on_failure)
        if self.yields == "several":
            return EncodePartsNode(self, context, call)
        return EncodeNode(self, context, call)


class EncodeNode(UnaryNode[SkipCursor]):
    """Encodes block by block."""

    leaves_out = (("skipped", "SkipSample or error while encoding samples"),)

    def __init__(self, spec: EncodeSpec, context: Context, call: UserCall) -> None:
        super().__init__(SkipCursor(), spec, context)
        self.call = call

    def draw(self, count: int) -> Items:
        drawn, refs = self.child.draw(count)
        drawn = list(drawn)  # whose samples are freed one by one
        self._encode(drawn, refs, self.cursor)
        if Skipped not in set(map(type, drawn)):
            return Items(drawn, refs)
        kept = [value is not SKIPPED for value in drawn]
        self.cursor.skipped += kept.count(False)
        return Items(list(compress(drawn, kept)), list(compress(refs, kept)))

    def replay(self, refs: Sequence[ItemRef]) -> list[Any]:
        values = self.child.replay(refs)
        encoded = list(values)
        self._encode(encoded, refs, self.cursor.copy())  # replayed items do not count
        for value, result in zip(values, encoded, strict=True):
            if result is SKIPPED:
                raise not_reproducible(describe_source(value))
        return encoded

    def _encode(self, values: list[Any], refs: Sequence[Any], cursor: Cursor) -> None:
        """Replace each item by the function's result, or SKIPPED."""
        self.call.each(values, cursor, refs)
        if GeneratorType in set(map(type, values)):
            raise SpecError(
                "encode: it returned a generator, which cannot be seen before the call. Pass "
                'EncodeSpec(yields="several"), or write the function with `yield`.'
            )


@dataclass
class PartsCursor(BufferedCursor):
    skipped: int = 0  # samples of which no part was returned
    part: int = 0  # parts returned of the first pending sample
    failures: int = 0  # since the last part


class EncodePartsNode(BufferedNode[PartsCursor]):
    """Encodes one sample to several. The reference of part n is (n, *reference of the sample)."""

    leaves_out = (("skipped", "SkipSample or error while encoding samples"),)

    def __init__(self, spec: EncodeSpec, context: Context, call: UserCall) -> None:
        super().__init__(PartsCursor(), spec, context)
        self.call = call
        self.samples: ReplayCache[Any] = ReplayCache(self.child.replay)
        # The parts of one sample that are left: a cache, valid at one position only.
        self._under_way: tuple[ItemRef, int, Iterator[Any]] | None = None

    def own_faults(self, at: PartsCursor) -> Iterator[Problem]:
        if at.part and not at.pending:
            yield "part", f"must be 0 if no sample is pending, got {at.part}"

    def draw(self, count: int) -> Items:
        at, parts = self.cursor, Items([], [])
        if not at.pending:
            samples, refs = self.child.draw(count)
            at.pending, at.part = tuple(refs), 0
            self.samples.keep(at.pending, list(samples))
        while at.pending and len(parts.values) < count:
            drawn = self._next_parts(count - len(parts.values))
            parts = Items([*parts.values, *drawn.values], [*parts.refs, *drawn.refs])
        return parts

    def replay(self, refs: Sequence[ItemRef]) -> list[Any]:
        wanted: dict[ItemRef, int] = {}  # by sample, the last of its parts
        for part, *sample in refs:
            wanted[tuple(sample)] = max(part, wanted.get(tuple(sample), 0))
        parts: dict[ItemRef, Any] = {}
        aside = copy(self.cursor)  # replayed samples are not counted
        for (ref, last), sample in zip(
            wanted.items(), self.child.replay(list(wanted)), strict=True
        ):
            made = self.call.parts(sample, lambda: aside, ref)
            parts |= {(n, *ref): part for n, part in enumerate(islice(made, last + 1))}
            if (last, *ref) not in parts:
                raise not_reproducible(describe_source(sample))
        return [parts[ref] for ref in refs]

    def remap(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        below = self.child.remap([ref[1:] for ref in refs], change)
        pairs = zip(refs, below, strict=True)
        return [None if now is None else (ref[0], *now) for ref, now in pairs]

    @property
    def pending_refs(self) -> Sequence[PendingRef]:
        """The pending samples, without one of which parts were returned."""
        return samples_in(self.cursor.pending[self.cursor.part > 0 :], self.remap_pending)

    def move(self, change: Change) -> None:
        if self.cursor.pending and self.child.remap(self.cursor.pending[:1], change)[0] is None:
            self.cursor.part = 0
        super().move(change)

    def _next_parts(self, count: int) -> Items:
        """Return up to `count` parts of the first pending sample. At its end, go to the next."""
        at = self.cursor
        samples = self.samples.items(at.pending)
        ref = at.pending[0]
        under_way, self._under_way = self._under_way, None
        if under_way is None or under_way[:2] != (ref, at.part):
            parts = self.call.parts(samples[0], lambda: self.cursor, ref)
            if len(list(islice(parts, at.part))) < at.part:
                raise not_reproducible(describe_source(samples[0]))
        else:
            parts = under_way[2]
        drawn = list(islice(parts, count))
        refs = [(at.part + n, *ref) for n in range(len(drawn))]
        at.part += len(drawn)
        if len(drawn) == count:
            self._under_way = ref, at.part, parts
            return Items(drawn, refs)
        at.skipped += at.part == 0
        at.pending, at.part = at.pending[1:], 0
        self.samples.keep(at.pending, samples[1:])
        return Items(drawn, refs)


@frozen(kw_only=True)
class FlatMapSpec(UnarySpec):
    """Return what the generator `function(item)` yields, for each item in turn.

    While parts of an item are left, the child stays in front of the item: a state has no items, so
    the item is made again after a restore. `function` must depend on the item alone. For samples as
    they are read, `EncodeSpec` does the same with references, and can be packed and grouped.
    """

    kind = "flat_map"
    unsaved = ("on_failure",)

    function: Callable[[Any], Iterator[Any]]
    on_failure: ErrorPolicy | None = None  # None: errors are raised

    def replay_blocker(self) -> str:
        return self.kind

    def build(self, context: Context) -> FlatMapNode:
        return FlatMapNode(self, context)


@dataclass
class FlatMapCursor(Cursor):
    part: int = 0  # parts returned of the item that comes next below
    skipped: int = 0  # items of which no part was returned
    failures: int = 0  # since the last part


class UnderWay(NamedTuple):
    """An item with parts left. Valid only where the cursors are as recorded here."""

    before: Any  # the cursors below, in front of the item
    part: int
    after: Any  # and behind it
    parts: Iterator[Any]


class FlatMapNode(UnaryNode[FlatMapCursor]):
    leaves_out = (("skipped", "no part was made of items"),)

    def __init__(self, spec: FlatMapSpec, context: Context) -> None:
        super().__init__(FlatMapCursor(), spec, context)
        self.call = UserCall(spec.function, context, "splitting", on_failure=spec.on_failure)
        self._under_way: UnderWay | None = None

    def draw(self, count: int) -> Items:
        at, parts = self.cursor, list[Any]()
        while len(parts) < count:
            try:
                item = self._next_item()
            except StopIteration:
                if not parts:
                    raise
                break
            if item is None:
                break  # a skipped item keeps its place: the caller counts micro-batches
            wanted = count - len(parts)
            given = list(islice(item.parts, wanted))
            parts += given
            at.part += len(given)
            if len(given) == wanted:  # there may be more
                self.child.rollback(item.before)
                self._under_way = item._replace(part=at.part)
                break
            at.skipped += at.part == 0
            at.part = 0
        return Items(parts, [None] * len(parts))

    def _next_item(self) -> UnderWay | None:
        """Return the item to continue with, and move the child behind it. None: it was skipped."""
        item, self._under_way = self._under_way, None
        before = self.child.snapshot()
        if item is not None and (item.before, item.part) == (before, self.cursor.part):
            self.child.rollback(item.after)
            return item
        items = self.child.draw(1)
        if not items.values:
            return None
        made = self.call.parts(items.values[0], lambda: self.cursor, items.refs[0])
        if len(list(islice(made, self.cursor.part))) < self.cursor.part:
            raise not_reproducible(describe_source(items.values[0]))
        return UnderWay(before, self.cursor.part, self.child.snapshot(), made)
