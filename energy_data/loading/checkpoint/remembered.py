"""The tree of a saved run above reading: enough of it to know what it had drawn and not given.

Its nodes give nothing. They know the marks in their cursors, as the nodes of each kind write them,
and over which of them a reference stands; so a lane's past is told by what tells it while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from energy_data.core.cursor import Cursor, State, as_tuples, raise_if, wrong_kinds
from energy_data.core.node import Change, ItemRef, Node, PendingRef
from energy_data.errors import StateMismatchError
from energy_data.loading.checkpoint.tree import built_children
from energy_data.nodes.buffered import BufferedCursor, of_whole, remap_packs, samples_in
from energy_data.nodes.encode import PartsCursor
from energy_data.nodes.many import MultiChildNode
from energy_data.nodes.references import ReferencesNode

# Kinds whose items have the marks of those below them.
_PASSING = frozenset(
    ("batch", "encode", "epochize", "filter", "group", "limit", "map", "repeat", "share")
)
_OF_SEVERAL = frozenset(("blend", "blend_by_cost", "concat", "mix"))


class RememberedBranches(MultiChildNode[Cursor]):
    """A node of a saved run over several streams."""

    def draw(self, count: int) -> NoReturn:
        """Raise TypeError."""
        raise TypeError(f"a remembered node has nothing to give, asked for {count}")


class RememberedNode(Node[Cursor]):
    """A node of a saved run over one stream, or over stages.

    Args:
        said: Its description.
        path: From the root.
        saved: The fields of its cursor.
        children: By name.
    """

    def __init__(
        self,
        said: Sequence[Any],
        path: str,
        saved: Mapping[str, Any],
        children: Mapping[str, Node[Any]],
    ) -> None:
        super().__init__(Cursor(), children)
        self.said, self.path, self.saved = said, path, saved

    def draw(self, count: int) -> NoReturn:
        """Raise TypeError."""
        raise TypeError(f"a remembered {self.said[0]} has nothing to give, asked for {count}")

    @property
    def pending_refs(self) -> Sequence[PendingRef]:
        """References of what is pending, as the node itself would tell them."""
        if "pending" not in self.saved:
            return ()
        pending: Sequence[ItemRef] = as_tuples(self.saved["pending"])
        raise_if(self.path, lambda: wrong_kinds(BufferedCursor, {"pending": pending}))
        if self._prefixed == 3:
            pending = of_whole(pending)
        elif "several" in self.said:
            part = self.saved["part"]
            raise_if(self.path, lambda: wrong_kinds(PartsCursor, {"part": part}))
            pending = pending[part > 0 :]  # the first was given in part
        return samples_in(pending, self._remap_pending)

    def remap(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        """Return marks of its items with `change` made to the references in them."""
        kind = self.said[0]
        if kind == "read":
            return [change(self.children["of"], mark) for mark in marks]
        if kind in ("pack", "select_pack"):
            return remap_packs(
                marks, lambda pack: self._remap_pending(pack, change), may_be_empty=True
            )
        if kind == "encode" and "several" in self.said:
            return [
                None if now is None else (*mark[:1], *now)
                for mark, now in zip(
                    marks, self._remap_pending([m[1:] for m in marks], change), strict=True
                )
            ]
        if marks and kind not in _PASSING:
            raise StateMismatchError(
                f"state: a {kind!r} stands below what has drawn {len(marks)} samples and not given "
                f"them yet, and this energy_data does not know how it refers to them. Undo the "
                f"edit, or restore with on_mismatch='restart'."
            )
        return self._remap_pending(marks, change)

    @property
    def _prefixed(self) -> int:
        """How many numbers stand before the mark of what is below, in what is pending."""
        return 3 if self.said[0] == "pack" and self.said[2]["over_long"] == "split" else 0

    def _remap_pending(self, marks: Sequence[ItemRef], change: Change) -> list[ItemRef | None]:
        if not marks:
            return []
        moved = self.children["of"].remap([mark[self._prefixed :] for mark in marks], change)
        return [
            None if now is None else (*mark[: self._prefixed], *now)
            for mark, now in zip(marks, moved, strict=True)
        ]


def remembered(
    said: list[Any], path: str, place: State, tree: Callable[[str], ReferencesNode]
) -> Node[Any]:
    """Return a described node of a lane with what is under it.

    path: of the node. place: of the lane. tree: returns the order tree at a path, where it was.
    """
    if said[0] == "references":
        return tree(path)
    children = {
        name: remembered(child, f"{path}/{name}", place, tree)
        for name, child in built_children(said).items()
    }
    if said[0] in _OF_SEVERAL:
        return RememberedBranches(Cursor(), children)
    return RememberedNode(said, path, place.get(path, {}), children)


__all__ = ["RememberedNode", "remembered"]
