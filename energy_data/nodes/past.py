"""What the stages of one lane have done to its leaves, told from the cursors they stopped at."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from energy_data.core.cursor_check import is_count
from energy_data.core.node import ItemRef, Node
from energy_data.errors import StateError
from energy_data.nodes.before import Before
from energy_data.nodes.leaves import Leaf, leaf_entries
from energy_data.nodes.references import ReferencesNode


class Past:
    """By leaf id: how often it was drawn, and what comes back to it."""

    def __init__(
        self, drawn: Mapping[str, int], returned: Iterable[tuple[str, int, int]] = ()
    ) -> None:
        self.drawn = dict(drawn)
        # Samples (epoch, number) that were drawn and never given, in their order: they come first.
        self.returned: dict[str, list[tuple[int, int]]] = {}
        self.give_back(returned)

    def copy(self) -> Past:
        """Return the same, to go on from."""
        twin = Past(self.drawn)
        twin.returned = {leaf_id: list(samples) for leaf_id, samples in self.returned.items()}
        return twin

    def of_leaves(self, leaf_ids: Container[str]) -> Past:
        """Return the same of some leaves."""
        drawn = {leaf_id: n for leaf_id, n in self.drawn.items() if leaf_id in leaf_ids}
        return Past(drawn, (sample for sample in self.waiting() if sample[0] in leaf_ids))

    def waiting(self) -> Iterator[tuple[str, int, int]]:
        """Yield what comes back, by leaf: leaf id, epoch, sample number."""
        for leaf_id, samples in sorted(self.returned.items()):
            yield from ((leaf_id, *sample) for sample in samples)

    def begin(self, tree: ReferencesNode) -> None:
        """Count what leaves of an order tree had been drawn when the tree was edited."""
        if tree.cursor.offsets:
            for leaf, count in zip(tree.leaves, tree.cursor.offsets, strict=True):
                self.drawn[leaf.id] = self.drawn.get(leaf.id, 0) + count

    def play(self, tree: ReferencesNode) -> None:
        """Count the draws of an order tree."""
        if not tree.cursor.draws:
            return
        counts = tree.plan.ledger(tree.cursor.draws, ())
        for leaf, count in zip(tree.leaves, counts.tolist(), strict=True):
            waiting = self.returned.get(leaf.id, [])
            again = min(count, len(waiting))
            del waiting[:again]
            self.drawn[leaf.id] = self.drawn.get(leaf.id, 0) + count - again

    def give_back(self, samples: Iterable[tuple[str, int, int]]) -> None:
        """Note samples (leaf id, epoch, number) that were drawn and will not be given."""
        for leaf_id, *sample in samples:
            self.returned.setdefault(leaf_id, []).append((sample[0], sample[1]))

    def marks(self, number: Mapping[str, int]) -> tuple[ItemRef, ...]:
        """Return what comes back, all of leaves that have a number: it, epoch, sample number."""
        return tuple((number[leaf_id], *sample) for leaf_id, *sample in self.waiting())

    def before(self, tree: ReferencesNode) -> Before:
        """Return from where the leaves of a tree go on."""
        return Before(
            drawn=tuple(self.drawn.get(leaf.id, 0) for leaf in tree.leaves),
            returned={
                place: tuple(self.returned[leaf.id])
                for place, leaf in enumerate(tree.leaves)
                if self.returned.get(leaf.id)
            },
            own=tree.cursor.offsets,
        )


def are_references(marks: Any, num_leaves: int) -> bool:
    """Return whether these are references as `Past.marks` gives them, of so many leaves."""
    return isinstance(marks, tuple) and all(
        isinstance(mark, tuple)
        and len(mark) == 3
        and all(map(is_count, mark))
        and mark[0] < num_leaves
        for mark in marks
    )


def held(node: Node[Any, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield what nodes under `node` have drawn and not given on: leaf id, epoch, sample number."""
    for inner in nodes_of(node):
        entries: dict[Node[Any, Any], list[Leaf]] = {}
        for tree, reference in inner.pending_refs:
            assert isinstance(tree, ReferencesNode)
            if tree not in entries:
                entries[tree] = [leaf for _, leaf in leaf_entries(tree.spec.of)]
            if not are_references((reference,), len(entries[tree])):
                raise StateError(
                    f"state: it is damaged, it refers to {reference}, of {len(entries[tree])} "
                    f"leaves. Use another checkpoint."
                )
            entry, epoch, number = reference
            yield entries[tree][entry].id, epoch, number


def nodes_of(node: Node[Any, Any]) -> Iterator[Node[Any, Any]]:
    """Yield every node of a tree, parents first."""
    return (inner for _, inner in node.walk())


def order_trees(node: Node[Any, Any]) -> Sequence[ReferencesNode]:
    """Return the order trees under a node."""
    return [inner for inner in nodes_of(node) if isinstance(inner, ReferencesNode)]


__all__ = ["Past", "are_references", "held", "nodes_of", "order_trees"]
