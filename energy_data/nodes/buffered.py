"""Base of kinds that read ahead of what they return: they pack, group or split samples.

The cursor has the references of pending items, in the order in which they were read. The items are
a cache. They are replayed from the references where the cache does not have them: after a restore,
and after an error.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from energy_data.core.cursor import Cursor, Problem
from energy_data.core.node import Change, ItemRef, Items, Node, PendingRef
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.unary import UnaryNode

T = TypeVar("T")
B = TypeVar("B", bound="BufferedCursor")


@dataclass
class BufferedCursor(Cursor):
    """The cursor of a node that holds items back."""

    pending: tuple[ItemRef, ...] = ()  # read and not returned, in the order of reading
    lost: int = 0  # items that were pending when their leaf was removed from the metadataset


class ReplayCache(Generic[T]):
    """The items of pending references; replays those that it does not have."""

    def __init__(self, replay: Callable[[Sequence[ItemRef]], Sequence[T]]) -> None:
        self._replay = replay
        self._refs: tuple[ItemRef, ...] = ()
        self._items: list[T] = []

    def items(self, refs: tuple[ItemRef, ...]) -> list[T]:
        """Return the items of `refs`. Replays missing ones in one block."""
        if refs is not self._refs and refs != self._refs:
            known = dict(zip(self._refs, self._items, strict=True))
            missing = [ref for ref in dict.fromkeys(refs) if ref not in known]
            if missing:
                known.update(zip(missing, self._replay(missing), strict=True))
            self.keep(refs, [known[ref] for ref in refs])
        return self._items

    def keep(self, refs: tuple[ItemRef, ...], items: list[T]) -> None:
        """Replace the contents."""
        self._refs, self._items = refs, items


class BufferedNode(UnaryNode[B]):
    """A node that reads items of its child ahead of what it returns."""

    def faults(self, at: B) -> Iterable[Problem]:
        yield from self.own_faults(at)
        if list(self.remap_pending(at.pending, _if_known)) != list(at.pending):
            yield "pending", "has references to missing samples"

    def own_faults(self, at: B) -> Iterable[Problem]:
        """Return what is wrong in a saved cursor, apart from references to missing samples."""
        return ()

    def move(self, change: Change) -> None:
        """Adapt the cursor to an edit of the tree: drop pending items of removed leaves."""
        at = self.cursor
        kept = [ref for ref in self.remap_pending(at.pending, change) if ref is not None]
        at.pending, at.lost = tuple(kept), at.lost + len(at.pending) - len(kept)

    @property
    def pending_refs(self) -> Sequence[PendingRef]:
        return samples_in(self.cursor.pending, self.remap_pending)

    def remap_pending(self, refs: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        """Return references in the cursor with `change` applied; None for removed leaves."""
        return self.child.remap(refs, change)


class PackingNode(BufferedNode[B]):
    """A node that makes one item of several pending samples."""

    drawn_docs = 0  # documents in what the last `draw` returned
    # The references of the pending items in a cache of the node; None: the cache is invalid.
    cached: tuple[ItemRef, ...] | None = ()

    @property
    def is_cached(self) -> bool:
        """Whether the cache has the pending items of the cursor."""
        return self.cached is self.cursor.pending or self.cached == self.cursor.pending

    @abstractmethod
    def draw(self, count: int, *, within: int | None = None) -> Items:
        """Return up to `count` items, of at most `within` documents each.

        `within` is for optimizer steps of an exact size. Documents above it stay pending.
        """


def _if_known(tree: Node[Any], ref: ItemRef) -> ItemRef | None:
    assert isinstance(tree, ReferencesNode)
    return ref if tree.has_sample(ref) else None


def samples_in(
    refs: Sequence[ItemRef], remap: Callable[[Sequence[ItemRef], Change], Any]
) -> list[PendingRef]:
    """Return the samples in references, each once. remap: applies a change to references."""
    found: dict[PendingRef, None] = {}

    def note(tree: Node[Any], ref: ItemRef) -> ItemRef:
        found[tree, ref] = None
        return ref

    remap(refs, note)
    return list(found)


def of_whole(refs: Sequence[ItemRef]) -> list[ItemRef]:
    """Return the references of parts whose other parts are all pending too.

    A part's reference begins with its start, its stop and the length of the item.
    """
    waits: Counter[ItemRef] = Counter()
    for ref in refs:
        waits[ref[3:]] += ref[1] - ref[0]
    return [ref for ref in refs if waits[ref[3:]] == ref[2]]


def remap_packs(
    packs: Sequence[ItemRef], remap: Callable[[ItemRef], Sequence[ItemRef | None]]
) -> list[ItemRef | None]:
    """Return references of packs after an edit; None for a pack that lost one of its samples.

    Also None for a pack of no samples: no run has made it.
    """
    found = (tuple(remap(pack)) for pack in packs)
    return [None if not pack or None in pack else pack for pack in found]


def require_replayable(spec: Spec, of: Spec) -> None:
    """Raise SpecError if what is under `spec` cannot replay samples."""
    if culprit := of.replay_blocker():
        raise SpecError(
            f"{spec.kind}: a state contains references to pending samples, never the samples, but "
            f"{culprit!r} below it cannot replay its items from references. Put it above "
            f"{spec.kind!r}, or remove it."
        )
