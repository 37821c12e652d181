"""What a lane has drawn of its leaves, computed from the cursors of its order trees."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from energy_data.core.cursor import is_index
from energy_data.core.node import ItemRef, Node
from energy_data.errors import StateError
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.plan_cache import LeafOffsets
from energy_data.nodes.references import ReferencesNode


class LeafHistory:
    """The units drawn of each leaf, and which of its samples are to be drawn again; by id.

    Samples are an epoch and a span, so that samples of another length may follow (see core/cut.py).
    """

    def __init__(
        self, drawn: Mapping[str, int], returned: Iterable[tuple[str, int, int]] = ()
    ) -> None:
        self.drawn = dict(drawn)
        # Samples (epoch, span) that were drawn and not returned, in order: they come first.
        self.returned: dict[str, list[tuple[int, int]]] = {}
        self.give_back(returned)

    def copy(self) -> LeafHistory:
        """Return a copy."""
        twin = LeafHistory(self.drawn)
        twin.returned = {leaf_id: list(samples) for leaf_id, samples in self.returned.items()}
        return twin

    def of_leaves(self, leaf_ids: Container[str]) -> LeafHistory:
        """Return the history of some leaves."""
        drawn = {leaf_id: n for leaf_id, n in self.drawn.items() if leaf_id in leaf_ids}
        return LeafHistory(drawn, (sample for sample in self.waiting() if sample[0] in leaf_ids))

    def with_others(self, earlier: LeafHistory) -> LeafHistory:
        """Return this history, and that of other leaves in an earlier one."""
        others = earlier.of_leaves(earlier.drawn.keys() - self.drawn.keys())
        drawn = {**others.drawn, **self.drawn}
        return LeafHistory(drawn, (*others.waiting(), *self.waiting()))

    def waiting(self) -> Iterator[tuple[str, int, int]]:
        """Yield the samples to be drawn again, by leaf: leaf id, epoch, span."""
        for leaf_id, samples in sorted(self.returned.items()):
            yield from ((leaf_id, *sample) for sample in samples)

    def begin(self, tree: ReferencesNode) -> None:
        """Count the draws before the last edit of an order tree."""
        if tree.cursor.offsets:
            for leaf, count in zip(tree.leaves, tree.cursor.offsets, strict=True):
                self.drawn[leaf.id] = self.drawn.get(leaf.id, 0) + count

    def play(self, tree: ReferencesNode, draws: int | None = None) -> None:
        """Count the draws of an order tree; None: those that it has made."""
        at = tree.cursor
        draws = at.draws if draws is None else draws
        if not draws:
            return
        plan = tree.plan
        counts = plan.counts(draws)
        real = counts - plan.counts(at.since)  # those before only place weights
        rows = zip(tree.leaves, counts.tolist(), real.tolist(), strict=True)
        for leaf, count, drawn in rows:
            waiting = self._indices(leaf) if drawn and leaf.id in self.returned else []
            again = min(drawn, len(waiting))
            if again:
                rest = waiting[again:]
                self.returned[leaf.id] = [(epoch, leaf.cut.span(index)) for epoch, index in rest]
            units = self.drawn.get(leaf.id, 0) + (count - again) * leaf.cut.stride
            # The first sample may have been short; those after it are whole.
            inside = units % leaf.cut.stride if drawn > again else 0
            self.drawn[leaf.id] = units - inside

    def _indices(self, leaf: Leaf) -> list[tuple[int, int]]:
        """Return the samples to be drawn again as the leaf is cut now: epoch, index."""
        return leaf.cut.indices(self.returned.get(leaf.id, ()))

    def give_back(self, samples: Iterable[tuple[str, int, int]]) -> None:
        """Add samples (leaf id, epoch, span) that are to be drawn again."""
        for leaf_id, *sample in samples:
            self.returned.setdefault(leaf_id, []).append((sample[0], sample[1]))

    def refs(self, number: Mapping[str, int]) -> tuple[ItemRef, ...]:
        """Return the samples to be drawn again: number of the leaf, epoch, span."""
        return tuple((number[leaf_id], *sample) for leaf_id, *sample in self.waiting())

    def offsets(self, tree: ReferencesNode) -> LeafOffsets:
        """Return where the leaves of a tree continue."""
        return LeafOffsets(
            drawn=tuple(self.drawn.get(leaf.id, 0) for leaf in tree.leaves),
            returned={
                place: tuple(self._indices(leaf))
                for place, leaf in enumerate(tree.leaves)
                if self.returned.get(leaf.id)
            },
            own=tree.cursor.offsets,
            strides=tuple(leaf.cut.stride for leaf in tree.leaves),
        )


def are_references(refs: Any, num_leaves: int) -> bool:
    """Return whether `refs` are references to `num_leaves` leaves, as of `LeafHistory.refs`."""
    return isinstance(refs, tuple) and all(
        isinstance(ref, tuple) and len(ref) == 3 and all(map(is_index, ref)) and ref[0] < num_leaves
        for ref in refs
    )


def held(node: Node[Any]) -> Iterator[tuple[str, int, int]]:
    """Yield the samples that nodes under `node` have drawn and not returned, each once.

    As leaf id, epoch, span. Parts of one sample may be pending in several nodes.
    """
    for tree, reference in dict.fromkeys(
        pending for inner in nodes_of(node) for pending in inner.pending_refs
    ):
        assert isinstance(tree, ReferencesNode)
        if not are_references((reference,), len(tree.entries)):
            raise StateError(
                f"state: it is damaged, it has the reference {reference} to one of "
                f"{len(tree.entries)} leaves. Use another checkpoint."
            )
        entry, epoch, index = reference
        leaf = tree.entries[entry]
        yield leaf.id, epoch, leaf.cut.span(index)


def nodes_of(node: Node[Any]) -> Iterator[Node[Any]]:
    """Yield every node of a tree, parents first."""
    return (inner for _, inner in node.walk())


def order_trees(node: Node[Any]) -> Sequence[ReferencesNode]:
    """Return the order trees under a node."""
    return [inner for inner in nodes_of(node) if isinstance(inner, ReferencesNode)]
