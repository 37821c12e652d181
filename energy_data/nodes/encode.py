"""Encode: the task's own view of each sample; one for each, or several."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import islice, repeat
from types import GeneratorType
from typing import Any, Literal

from attrs import field, frozen

from energy_data.core.context import Context
from energy_data.core.cursor_check import Problem
from energy_data.core.node import Change, Cursor, Held, ItemRef, Node
from energy_data.core.profiler import ENCODING
from energy_data.core.sample import describe_source
from energy_data.core.spec import ItemKind, Spec
from energy_data.core.user_call import SKIPPED, ErrorPolicy, Skipped, UserCall
from energy_data.errors import DataError, SpecError
from energy_data.nodes.buffered import (
    BufferedCursor,
    BufferedNode,
    ReplayCache,
    gives_parts,
    require_replayable,
)


@frozen(kw_only=True)
class EncodeSpec(Spec):
    """Give `encode(sample)`; a sample for which it raises `SkipSample` is left out and counted.

    If `encode` is a generator (`yields="several"`), each sample it yields is given, in order; one
    that is saved in the middle of a sample's parts is encoded again, and goes on after the part
    given last. Any other error is raised with a note that says which sample it was. `encode` must
    depend on the sample alone. `encode=None` passes samples on: the node stays, so that states fit
    whatever a task encoder overrides.
    """

    kind = "encode"
    of: Spec
    encode: Callable[[Any], Any] | None = None
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
    def children(self) -> Mapping[str, Spec]:
        return {"of": self.of}

    @property
    def item_kind(self) -> ItemKind:
        return self.of.item_kind

    def describe(self) -> list[Any]:
        several = ["several"] if self.yields == "several" else []
        return ["encode", *several, {"of": self.of.describe()}]

    def num_items(self, context: Context, epoch: int) -> int | None:
        several = self.yields == "several"
        return None if several else self.of.num_items(context.under("of"), epoch)

    def items_per_lane(self, context: Context) -> int:
        if self.yields == "several":
            return super().items_per_lane(context)
        return self.of.items_per_lane(context.under("of"))

    def replay_blocker(self) -> str | None:
        return self.of.replay_blocker()

    def build(self, context: Context) -> Node[Any, Any]:
        if self.yields == "several":
            return EncodePartsNode(self, context)
        return EncodeNode(self, context)


@dataclass
class EncodeCursor(Cursor):
    skipped: int = 0  # samples left out


@dataclass
class FailingEncodeCursor(EncodeCursor):
    failures: int = 0  # since the last success


class EncodeNode(Node[Any, EncodeCursor]):
    """Encodes block by block."""

    leaves_out = (("skipped", "SkipSample while encoding samples"),)

    def __init__(self, spec: EncodeSpec, context: Context) -> None:
        start = EncodeCursor() if spec.on_failure is None else FailingEncodeCursor()
        super().__init__(start, {"of": spec.of.build(context.under("of"))})
        self.trace, self.profiler = context.trace, context.profiler
        self.encode = spec.encode and UserCall(spec.encode, context, spec.on_failure, "encoding")

    def allow_batch_views(self) -> None:
        if self.encode is None:
            self.children["of"].allow_batch_views()

    def draw(self, count: int) -> list[Any]:
        samples = self.children["of"].draw(count)
        if self.encode is None:
            return list(samples)
        return self._kept(self._encoded(samples, self.cursor))

    def draw_marked(self, count: int) -> Sequence[tuple[ItemRef, Any]]:
        drawn = self.children["of"].draw_marked(count)
        if self.encode is None or not drawn:
            return drawn
        marks, samples = zip(*drawn, strict=True)
        encoded = self._encoded(samples, self.cursor, marks)
        return self._kept(list(zip(marks, encoded, strict=True)), encoded)

    def replay(self, marks: Sequence[ItemRef]) -> list[Any]:
        samples = self.children["of"].replay(marks)
        if self.encode is None:
            return list(samples)
        encoded = self._encoded(samples, copy(self.cursor), marks)
        for sample, one in zip(samples, encoded, strict=True):
            if one is SKIPPED:
                raise _not_reproducible(sample)
        return encoded

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return self.children["of"].remap(marks, change)

    def _encoded(
        self, samples: Sequence[Any], cursor: Cursor, marks: Iterable[ItemRef] = repeat(())
    ) -> list[Any]:
        assert self.encode is not None
        began = time.perf_counter()
        said = samples if self.trace is None else map(self._say, samples)
        encoded = self.encode.each(said, cursor, marks)
        self.profiler.add(ENCODING, time.perf_counter() - began)
        if GeneratorType in set(map(type, encoded)):
            raise SpecError(
                "encode: it gave a generator, so it gives several samples for one, which cannot be "
                'seen from outside. Say EncodeSpec(yields="several"), or write it with `yield`.'
            )
        return encoded

    def _say(self, sample: Any) -> Any:
        """Return the sample, and say that it comes next: it may take the process down."""
        assert self.trace is not None
        self.trace(sample)
        return sample

    def _kept(self, items: list[Any], encoded: list[Any] | None = None) -> list[Any]:
        """Return the items of which something came, and count the others."""
        encoded = items if encoded is None else encoded
        if Skipped not in set(map(type, encoded)):
            return items
        kept = [item for item, one in zip(items, encoded, strict=True) if one is not SKIPPED]
        self.cursor.skipped += len(items) - len(kept)
        return kept


@dataclass
class PartsCursor(BufferedCursor):
    skipped: int = 0  # samples of which no part was given
    part: int = 0  # parts given of the first pending sample
    failures: int = 0  # since the last part


class EncodePartsNode(BufferedNode[PartsCursor]):
    """Encodes one sample to several. The mark of part n is (n, mark of the sample)."""

    leaves_out = (("skipped", "SkipSample while encoding samples"),)

    def __init__(self, spec: EncodeSpec, context: Context) -> None:
        assert spec.encode is not None
        super().__init__(PartsCursor(), spec.of.build(context.under("of")))
        self.trace, self.profiler = context.trace, context.profiler
        self.encode = UserCall(spec.encode, context, spec.on_failure, "encoding")
        self.stock: ReplayCache[Any] = ReplayCache(self.child.replay)
        # The parts of one sample, under way: a cache that is good at one place only.
        self._under_way: tuple[ItemRef, int, Iterator[Any]] | None = None

    def own_faults(self, at: PartsCursor) -> Iterator[Problem]:
        if at.part and not at.pending:
            yield "part", f"must be of a sample that waits, there is none, got {at.part}"

    def draw(self, count: int) -> list[Any]:
        return [part for _, part in self.draw_marked(count)]

    def draw_marked(self, count: int) -> list[tuple[ItemRef, Any]]:
        at, parts = self.cursor, list[tuple[ItemRef, Any]]()
        if not at.pending:
            self._read(count)
        while at.pending and len(parts) < count:
            self._give(parts, count - len(parts))
        return parts

    def replay(self, marks: Sequence[ItemRef]) -> list[Any]:
        samples = list(dict.fromkeys(mark[1:] for mark in marks))
        last = {mark: max(m[0] for m in marks if m[1:] == mark) for mark in samples}
        parts: dict[ItemRef, Any] = {}
        aside = copy(self.cursor)  # what is made again counts for nothing
        for mark, sample in zip(samples, self.child.replay(samples), strict=True):
            for n, part in enumerate(
                islice(self._parts(sample, lambda: aside, mark), last[mark] + 1)
            ):
                parts[n, *mark] = part
            if (last[mark], *mark) not in parts:
                raise _not_reproducible(sample)
        return [parts[mark] for mark in marks]

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        moved = self.child.remap([mark[1:] for mark in marks], change)
        return [
            None if below is None else (mark[0], *below)
            for mark, below in zip(marks, moved, strict=True)
        ]

    @property
    def pending_refs(self) -> Sequence[Held]:
        """References of what is pending; without a sample that was given in part."""
        return self._references(self.cursor.pending[self.cursor.part > 0 :])

    def move(self, change: Change) -> None:
        if self.cursor.pending and self.child.remap(self.cursor.pending[:1], change)[0] is None:
            self.cursor.part = 0
        super().move(change)

    def _read(self, count: int) -> None:
        drawn = self.child.draw_marked(count)
        self.cursor.pending, self.cursor.part = tuple(mark for mark, _ in drawn), 0
        self.stock.keep(self.cursor.pending, [sample for _, sample in drawn])

    def _give(self, parts: list[tuple[ItemRef, Any]], count: int) -> None:
        """Give up to `count` parts of the first pending sample; at its end, go to the next."""
        at = self.cursor
        samples = self.stock.items(at.pending)
        mark = at.pending[0]
        under_way, self._under_way = self._under_way, None
        if under_way is None or under_way[:2] != (mark, at.part):
            iterator = self._parts(samples[0], lambda: self.cursor, mark)
            if len(list(islice(iterator, at.part))) < at.part:
                raise _not_reproducible(samples[0])
        else:
            iterator = under_way[2]
        began = time.perf_counter()
        given = list(islice(iterator, count))
        self.profiler.add(ENCODING, time.perf_counter() - began)
        parts += [((at.part + n, *mark), part) for n, part in enumerate(given)]
        at.part += len(given)
        if len(given) == count:
            self._under_way = mark, at.part, iterator
            return
        at.skipped += at.part == 0
        at.pending, at.part = at.pending[1:], 0
        self.stock.keep(at.pending, samples[1:])

    def _parts(self, sample: Any, cursor: Callable[[], Cursor], mark: ItemRef) -> Iterator[Any]:
        if self.trace is not None:
            self.trace(sample)
        return self.encode.parts(sample, cursor, mark)


def _not_reproducible(sample: Any) -> DataError:
    return DataError(
        f"{describe_source(sample)}: it was encoded before, and now it is left out, or has fewer "
        f"parts. Encoding must depend on the sample alone: no global random numbers, no counters."
    )
