"""How far the stages of one lane have played: told from their cursors, kept while these stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attrs import frozen

from energy_data.core.cursor_check import Problem
from energy_data.core.node import Cursor, ItemRef, Node
from energy_data.nodes.past import Past, are_references, held, nodes_of, order_trees
from energy_data.nodes.references import ReferencesNode


@dataclass
class StagedCursor(Cursor):
    """The place of all stages in one lane."""

    taken: int = 0  # micro-batches of this lane
    carried: tuple[int, ...] = ()  # per leaf, by id: draws before the stages were edited
    # What of these was not given by then and comes first: number of the leaf, epoch, sample number.
    returned: tuple[ItemRef, ...] = ()


def carried_by(cursor: StagedCursor, leaf_ids: Sequence[str]) -> Past:
    """Return what a cursor says was done to leaves before stages were edited; none: nothing."""
    drawn = dict(zip(leaf_ids, cursor.carried, strict=True)) if cursor.carried else {}
    marks = cursor.returned
    return Past(drawn, ((leaf_ids[place], epoch, number) for place, epoch, number in marks))


def wrong_carried(cursor: StagedCursor, leaf_ids: Sequence[str]) -> Iterator[Problem]:
    """Yield what cannot be of what a cursor says was done to so many leaves."""
    if cursor.carried and len(cursor.carried) != len(leaf_ids):
        yield (
            "carried",
            f"must have a number for each of {len(leaf_ids)} leaves, has {len(cursor.carried)}",
        )
    if not are_references(cursor.returned, len(leaf_ids)):
        yield "returned", f"must be references to {len(leaf_ids)} leaves"


class Section(Protocol):
    """What is asked of a stage here."""

    @property
    def name(self) -> str:
        """Its name, and that of its node."""

    @property
    def on_enter(self) -> str:
        """Whether its leaves go on (`continue`), or begin anew."""


@frozen
class _Ended:
    """What was drawn up to the end of a stage."""

    past: Past  # not to be changed
    own: tuple[Any, ...]  # `carried` and `returned`
    cursors: list[list[Cursor]]  # of the nodes of each stage up to there


class Played:
    """What the stages of a lane have drawn.

    Args:
        node: The node of all stages; its children are theirs, by name.
        stages: The stages.
        carried: Returns what was done to leaves before the stages were edited.
    """

    def __init__(
        self,
        node: Node[Any, Any],
        stages: Sequence[Section],
        carried: Callable[[], Past],
    ) -> None:
        self._node, self._stages = node, stages
        self._carried = carried
        self.used: set[int] = set()  # stages that have computed or opened anything
        self._ends: dict[int, _Ended] = {}  # of the last stages that were asked about

    def before(self, number: int) -> Past:
        """Return what the leaves of a stage go on from."""
        self.used.add(number)
        past = self.until_end(number - 1).copy()
        for tree in self._trees(number):
            past.begin(tree)
        return past

    def until_end(self, number: int) -> Past:
        """Return what was drawn up to the end of a stage, not to be changed."""
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

    def _play(self, past: Past, number: int) -> None:
        """Count the draws of a stage, and give back to its leaves what it still held."""
        for tree in self._trees(number):
            if tree.cursor.draws or tree.cursor.offsets:
                self.used.add(number)
            past.begin(tree)
            past.play(tree)
        past.give_back(held(self._child(number)))

    def _child(self, number: int) -> Node[Any, Any]:
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
