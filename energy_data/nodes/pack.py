"""Pack: several documents as one sample of limited size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attrs import evolve, frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Problem, shorten
from energy_data.core.node import Change, EmptyGuard, ItemRef, Items, PendingRef
from energy_data.core.profiler import PACKING
from energy_data.core.recipe import check_whole
from energy_data.core.sample import describe_source, get_source_info
from energy_data.core.spec import ItemKind
from energy_data.core.user_call import MAKING_PACK, MAKING_PACKS, SKIPPED, Measure, UserCall
from energy_data.errors import DataError
from energy_data.nodes.buffered import (
    BufferedCursor,
    PackingNode,
    of_whole,
    remap_packs,
    require_replayable,
    samples_in,
)
from energy_data.nodes.packing import Document, PackBuffer, Packing
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.unary import UnarySpec, not_reproducible

LARGEST_BLOCK = 64  # samples read at once; more cost as much each, and wait longer


@frozen(kw_only=True)
class PackSpec(UnarySpec):
    """Pack documents by the rules of `packing`, chosen from at least `buffer_size` of them.

    Each lane has its own buffer, of up to 1.5 times `buffer_size`. Its documents are in the state
    as references, and are read and encoded again after a restore. At the end of a finite stream,
    each lane packs the rest of its buffer. A pack that is a dict also has `__docs__`, the number of
    its documents, and the sum of each limit, for example `__tokens__`. Costs some microseconds per
    document, besides reading and encoding.
    """

    kind = "pack"
    packing: Packing
    buffer_size: int = 128

    def __attrs_post_init__(self) -> None:
        check_whole("packing_buffer_size", self.buffer_size, 1)
        require_replayable(self, self.of)

    @property
    def item_kind(self) -> ItemKind:
        return "samples"

    def build(self, context: Context) -> PackNode:
        return PackNode(self, context)


@dataclass
class PackCursor(BufferedCursor):
    skipped: int = 0  # documents skipped: above a limit, or with their pack
    truncated: int = 0  # documents cut off
    cut: int = 0  # amount of the first limit lost by `skipped` and `truncated`


class PackNode(PackingNode[PackCursor]):
    """Packs of one lane."""

    leaves_out = (("skipped", "too long for a pack"),)

    def __init__(self, spec: PackSpec, context: Context) -> None:
        super().__init__(PackCursor(), spec, context)
        self.buffer_size = spec.buffer_size
        self.block = min(spec.buffer_size // 2, LARGEST_BLOCK)
        self.context = context
        self.pack = UserCall(spec.packing.pack, context, MAKING_PACK, PACKING)
        self.rows: UserCall | None = None  # makes the packs of a batch, where no user code sees one
        cut = Measure(spec.packing.cut, context)
        lengths = spec.packing.lengths and Measure(spec.packing.lengths, context)
        self.measures = [cut, lengths] if lengths else [cut]
        self.packing = evolve(spec.packing, lengths=lengths, cut=cut)
        # The reference of a part begins with its start, its stop and the length of its sample.
        self.num_prefixed = 3 if spec.packing.over_long == "split" else 0
        self.buffer = PackBuffer(spec.packing.limits.values())  # a cache of the pending documents

    def own_faults(self, at: PackCursor) -> Iterator[Problem]:
        parts = at.pending if self.num_prefixed else ()
        if wrong := [ref[:3] for ref in parts if not ref[0] < ref[1] <= ref[2]]:
            yield "pending", f"has an impossible part of a document, {shorten(wrong[0])}"

    def allow_batch_views(self) -> None:
        if (rows := self.packing.rows) is not None:
            self.rows = UserCall(rows, self.context, MAKING_PACKS, PACKING)

    def draw(self, count: int, *, within: int | None = None) -> Items:
        buffer, taken = self._buffer(), list[list[Document]]()
        self.cached, self.drawn_docs = None, 0  # until the cursor has the references of the buffer
        while len(taken) < count:
            if len(buffer.waiting) < self.buffer_size:
                self._fill(buffer)
                if not buffer:
                    break
            taken.append(buffer.take(within))
        packs, refs = list[Any](), list[ItemRef]()
        # With `within`, packs are drawn one by one, and are no rows of their batch.
        made = self._packed(taken, None if within else self.rows)
        for documents, pack in zip(taken, made, strict=True):
            if pack is SKIPPED:
                self.cursor.skipped += len(documents)
                self.cursor.cut += sum([one.sizes[0] for one in documents])
                continue
            packs.append(pack)
            refs.append(tuple([one.ref for one in documents]))
            self.drawn_docs += sum([one.docs for one in documents])
        self.cursor.pending = self.cached = buffer.refs
        if not taken:
            raise StopIteration
        return Items(packs, refs)

    def replay(self, refs: Sequence[ItemRef]) -> list[Any]:
        found = self._replay_documents([ref for pack in refs for ref in pack])
        taken = [[found[ref] for ref in pack] for pack in refs]
        packs = self._packed(taken)
        for documents, pack in zip(taken, packs, strict=True):
            if pack is SKIPPED:
                first = describe_source(documents[0].item)
                raise not_reproducible(f"the pack that begins with {first}")
        return packs

    def remap(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        return remap_packs(refs, lambda pack: self.remap_pending(pack, change))

    @property
    def pending_refs(self) -> Sequence[PendingRef]:
        """The pending samples, without those of which a part was returned."""
        pending = self.cursor.pending
        return samples_in(of_whole(pending) if self.num_prefixed else pending, self.remap_pending)

    def remap_pending(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        n = self.num_prefixed
        below = self.child.remap([ref[n:] for ref in refs], change)
        pairs = zip(refs, below, strict=True)
        return [None if now is None else (*ref[:n], *now) for ref, now in pairs]

    def _buffer(self) -> PackBuffer:
        """Return the buffer with the pending documents of the cursor."""
        if not self.is_cached:
            pending = self.cursor.pending
            known = {one.ref: one for one in self.buffer.waiting.values()}
            known |= self._replay_documents([ref for ref in pending if ref not in known])
            self.buffer = PackBuffer(self.packing.limits.values(), [known[ref] for ref in pending])
        return self.buffer

    def _replay_documents(self, refs: Sequence[ItemRef]) -> dict[ItemRef, Document]:
        samples = list(dict.fromkeys(ref[self.num_prefixed :] for ref in refs))
        items = self.child.replay(samples) if samples else ()
        made = {
            document.ref: document
            for documents, _ in self._documents(items, samples)
            for document in documents
        }
        for ref in refs:
            if ref not in made:
                item = items[samples.index(ref[self.num_prefixed :])]
                raise DataError(
                    f"{describe_source(item)}: its length differs from that before the save. "
                    f"Encoding must depend on the sample alone: no global random numbers."
                )
        return made

    def _documents(
        self, items: Sequence[Any], refs: Sequence[ItemRef]
    ) -> Iterator[tuple[Sequence[Document], int]]:
        return self.packing.documents(items, map(self._note, refs), self._where)

    def _note(self, ref: ItemRef) -> ItemRef:
        """Tell the functions that measure and cut which sample is next."""
        for measure in self.measures:
            measure.reference = ref
        return ref

    def _where(self, item: Any, ref: ItemRef) -> str:
        """Return where a sample was read, also if its encoder dropped the sources."""
        if get_source_info(item):
            return describe_source(item)
        (tree, (entry, _, index)), *_ = samples_in([ref], self.child.remap)
        assert isinstance(tree, ReferencesNode)
        return f"leaf {tree.entries[entry].id}, sample {index}"

    def _fill(self, buffer: PackBuffer) -> None:
        """Read until `buffer_size` documents wait, in blocks of at least `self.block`."""
        guard = EmptyGuard()
        while (missing := self.buffer_size - len(buffer)) > 0:
            try:
                drawn = self.child.draw_some(max(missing, self.block))
            except StopIteration:
                return
            added = list[Document]()
            for documents, lost in self._documents(*drawn):
                added += documents
                if lost or not documents:
                    self.cursor.cut += lost
                    self.cursor.skipped += not documents
                    self.cursor.truncated += bool(documents)
            buffer.add(added)
            guard.count(added)

    def _packed(
        self, taken: Sequence[Sequence[Document]], rows: UserCall | None = None
    ) -> list[Any]:
        """Return a pack of each list of documents, or SKIPPED."""
        items = [[document.item for document in documents] for documents in taken]
        if rows is not None and items:
            packs: list[Any] = rows(items, self.cursor)
        else:
            n = self.num_prefixed
            refs = [tuple([document.ref[n:] for document in documents]) for documents in taken]
            packs = self.pack.each(items, self.cursor, refs)
        for documents, pack in zip(taken, packs, strict=True):
            if isinstance(pack, dict):
                pack["__docs__"] = sum([document.docs for document in documents])
                for at, name in enumerate(self.packing.limits):
                    pack[f"__{name}__"] = sum([document.sizes[at] for document in documents])
        return packs
