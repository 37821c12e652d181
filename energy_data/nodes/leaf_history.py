"""What a lane has drawn of its leaves, computed from the cursors of its order trees."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attrs import frozen

from energy_data.core.cursor import Cursor, Problem, is_count
from energy_data.core.node import ItemRef, Node
from energy_data.errors import StateError
from energy_data.nodes.leaf import Leaf, leaf_entries
from energy_data.nodes.plan_cache import LeafOffsets
from energy_data.nodes.references import ReferencesNode


class LeafHistory:
    """How often each leaf was drawn, and which of its samples are to be drawn again; by id."""

    def __init__(
        self, drawn: Mapping[str, int], returned: Iterable[tuple[str, int, int]] = ()
    ) -> None:
        self.drawn = dict(drawn)
        # Samples (epoch, number) that were drawn and not returned, in order: they come first.
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
        """Yield the samples to be drawn again, by leaf: leaf id, epoch, sample number."""
        for leaf_id, samples in sorted(self.returned.items()):
            yield from ((leaf_id, *sample) for sample in samples)

    def begin(self, tree: ReferencesNode) -> None:
        """Count the draws before the last edit of an order tree."""
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
        """Add samples (leaf id, epoch, number) that are to be drawn again."""
        for leaf_id, *sample in samples:
            self.returned.setdefault(leaf_id, []).append((sample[0], sample[1]))

    def refs(self, number: Mapping[str, int]) -> tuple[ItemRef, ...]:
        """Return the samples to be drawn again: number of the leaf, epoch, sample number."""
        return tuple((number[leaf_id], *sample) for leaf_id, *sample in self.waiting())

    def offsets(self, tree: ReferencesNode) -> LeafOffsets:
        """Return where the leaves of a tree continue."""
        return LeafOffsets(
            drawn=tuple(self.drawn.get(leaf.id, 0) for leaf in tree.leaves),
            returned={
                place: tuple(self.returned[leaf.id])
                for place, leaf in enumerate(tree.leaves)
                if self.returned.get(leaf.id)
            },
            own=tree.cursor.offsets,
        )


def are_references(refs: Any, num_leaves: int) -> bool:
    """Return whether `refs` are references to `num_leaves` leaves, as of `LeafHistory.refs`."""
    return isinstance(refs, tuple) and all(
        isinstance(ref, tuple) and len(ref) == 3 and all(map(is_count, ref)) and ref[0] < num_leaves
        for ref in refs
    )


def held(node: Node[Any]) -> Iterator[tuple[str, int, int]]:
    """Yield the samples that nodes under `node` have drawn and not returned.

    As leaf id, epoch, sample number.
    """
    for inner in nodes_of(node):
        entries: dict[Node[Any], list[Leaf]] = {}
        for tree, reference in inner.pending_refs:
            assert isinstance(tree, ReferencesNode)
            if tree not in entries:
                entries[tree] = [leaf for _, leaf in leaf_entries(tree.spec.of)]
            if not are_references((reference,), len(entries[tree])):
                raise StateError(
                    f"state: it is damaged, it has the reference {reference} to one of "
                    f"{len(entries[tree])} leaves. Use another checkpoint."
                )
            entry, epoch, number = reference
            yield entries[tree][entry].id, epoch, number


def nodes_of(node: Node[Any]) -> Iterator[Node[Any]]:
    """Yield every node of a tree, parents first."""
    return (inner for _, inner in node.walk())


def order_trees(node: Node[Any]) -> Sequence[ReferencesNode]:
    """Return the order trees under a node."""
    return [inner for inner in nodes_of(node) if isinstance(inner, ReferencesNode)]


@dataclass
class StagedCursor(Cursor):
    """The position of all stages in one lane."""

    taken: int = 0  # micro-batches of this lane
    carried: tuple[int, ...] = ()  # per leaf, by id: draws before the stages were edited
    # Of these, the samples to be drawn again: number of the leaf, epoch, sample number.
    returned: tuple[ItemRef, ...] = ()


def carried_by(cursor: StagedCursor, leaf_ids: Sequence[str]) -> LeafHistory:
    """Return the history of leaves before the stages were edited."""
    drawn = dict(zip(leaf_ids, cursor.carried, strict=True)) if cursor.carried else {}
    returned = ((leaf_ids[place], epoch, number) for place, epoch, number in cursor.returned)
    return LeafHistory(drawn, returned)


def wrong_carried(cursor: StagedCursor, leaf_ids: Sequence[str]) -> Iterator[Problem]:
    """Yield the problems of a cursor whose stages have these leaves."""
    if cursor.carried and len(cursor.carried) != len(leaf_ids):
        yield (
            "carried",
            f"must have a number for each of {len(leaf_ids)} leaves, has {len(cursor.carried)}",
        )
    if not are_references(cursor.returned, len(leaf_ids)):
        yield "returned", f"must be references to {len(leaf_ids)} leaves"


class PlayedStage(Protocol):
    """A stage as far as its history needs it."""

    @property
    def name(self) -> str:
        """The name of the stage and of its node."""

    @property
    def on_enter(self) -> str:
        """`continue` or `restart`."""


@frozen
class _Ended:
    """What was drawn up to the end of a stage."""

    past: LeafHistory  # not to be changed
    own: tuple[Any, ...]  # `carried` and `returned`
    cursors: list[list[Cursor]]  # of the nodes of each stage up to there


class StageHistory:
    """What the stages of a lane have drawn.

    Args:
        node: The node of all stages. Its children are the nodes of the stages, by name.
        stages: The stages.
        carried: Returns the history of leaves before the stages were edited.
    """

    def __init__(
        self,
        node: Node[Any],
        stages: Sequence[PlayedStage],
        carried: Callable[[], LeafHistory],
    ) -> None:
        self._node, self._stages = node, stages
        self._carried = carried
        self.used: set[int] = set()  # stages that have computed or opened anything
        self._ends: dict[int, _Ended] = {}  # of the last stages that were asked about

    def before(self, number: int) -> LeafHistory:
        """Return the history at the beginning of a stage."""
        self.used.add(number)
        past = self.until_end(number - 1).copy()
        for tree in self._trees(number):
            past.begin(tree)
        return past

    def until_end(self, number: int) -> LeafHistory:
        """Return the history at the end of a stage. The caller must not change it."""
        self._ends = {at: one for at, one in self._ends.items() if self._still(one)}
        known = max((at for at in self._ends if at <= number), default=-1)
        past = self._ends[known].past if known >= 0 else self._carried()
        for at in range(known + 1, number + 1):
            past = past.copy()
            if self._stages[at].on_enter == "continue":
                self._play(past, at)
        if number >= 0:
            kept = {at: one for at, one in self._ends.items() if at == number - 1}
            self._ends = {**kept, number: _Ended(past, self._own(), self._cursors(number))}
        return past

    def _play(self, past: LeafHistory, number: int) -> None:
        """Count the draws of a stage, and return its pending samples to their leaves."""
        for tree in self._trees(number):
            if tree.cursor.draws or tree.cursor.offsets:
                self.used.add(number)
            past.begin(tree)
            past.play(tree)
        past.give_back(held(self._child(number)))

    def _child(self, number: int) -> Node[Any]:
        return self._node.children[self._stages[number].name]

    def _trees(self, number: int) -> Sequence[ReferencesNode]:
        return order_trees(self._child(number))

    def _own(self) -> tuple[Any, ...]:
        return self._node.cursor.carried, self._node.cursor.returned

    def _cursors(self, number: int) -> list[list[Cursor]]:
        return [[node.cursor for node in nodes_of(self._child(n))] for n in range(number + 1)]

    def _still(self, ended: _Ended) -> bool:
        number = len(ended.cursors) - 1
        return ended.own == self._own() and ended.cursors == self._cursors(number)
