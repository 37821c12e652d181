"""What the stages of one lane have done to its leaves, told from the cursors they stopped at."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from energy_data.before import Before
from energy_data.leaves import Leaf, leaf_entries
from energy_data.node import Node
from energy_data.references import ReferencesNode


class Past:
    """By leaf id: how often it was drawn, and what comes back to it."""

    def __init__(self, drawn: Mapping[str, int]) -> None:
        self.drawn = dict(drawn)
        # Samples (epoch, number) that were drawn and never given, in their order: they come first.
        self.returned: dict[str, list[tuple[int, int]]] = {}

    def copy(self) -> Past:
        """Return the same, to go on from."""
        twin = Past(self.drawn)
        twin.returned = {leaf_id: list(samples) for leaf_id, samples in self.returned.items()}
        return twin

    def begin(self, tree: ReferencesNode) -> None:
        """Count what leaves of an order tree had been drawn when the tree was edited."""
        if tree.cursor.offsets:
            for leaf, count in zip(tree.leaves, tree.cursor.offsets, strict=True):
                self.drawn[leaf.id] = self.drawn.get(leaf.id, 0) + count

    def play(self, tree: ReferencesNode, first: int, end: int) -> None:
        """Count the draws first .. end of an order tree."""
        if first == end:
            return
        counts = tree.plan.ledger(end, ())
        if first:
            counts = counts - tree.plan.ledger(first, ())
        for leaf, count in zip(tree.leaves, counts.tolist(), strict=True):
            waiting = self.returned.get(leaf.id, [])
            again = min(count, len(waiting))
            del waiting[:again]
            self.drawn[leaf.id] = self.drawn.get(leaf.id, 0) + count - again

    def give_back(self, samples: Iterable[tuple[str, int, int]]) -> None:
        """Note samples (leaf id, epoch, number) that were drawn and will not be given."""
        for leaf_id, *sample in samples:
            self.returned.setdefault(leaf_id, []).append((sample[0], sample[1]))

    def before(self, tree: ReferencesNode, draws: int) -> Before:
        """Return from where the leaves of a tree go on, which has made so many draws itself."""
        own = tree.plan.ledger(draws, tree.cursor.offsets).tolist()
        return Before(
            drawn=tuple(self.drawn.get(leaf.id, 0) for leaf in tree.leaves),
            returned={
                place: tuple(self.returned[leaf.id])
                for place, leaf in enumerate(tree.leaves)
                if self.returned.get(leaf.id)
            },
            own=tuple(own),
        )


def held(node: Node[Any, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield what nodes under `node` have drawn and not given on: leaf id, epoch, sample number."""
    for inner in nodes_of(node):
        entries: dict[Node[Any, Any], list[Leaf]] = {}
        for tree, (entry, epoch, number) in inner.held:
            assert isinstance(tree, ReferencesNode)
            if tree not in entries:
                entries[tree] = [leaf for _, leaf in leaf_entries(tree.spec.of)]
            yield entries[tree][entry].id, epoch, number


def nodes_of(node: Node[Any, Any]) -> Iterator[Node[Any, Any]]:
    """Yield every node of a tree, parents first."""
    return (inner for _, inner in node.walk())


def order_trees(node: Node[Any, Any]) -> Sequence[ReferencesNode]:
    """Return the order trees under a node."""
    return [inner for inner in nodes_of(node) if isinstance(inner, ReferencesNode)]


__all__ = ["Past", "held", "nodes_of", "order_trees"]
