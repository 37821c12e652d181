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


@dataclass
class FadingCursor(StagedCursor):
    """The same where some stage fades into the next step by step."""

    # Per order tree of each stage that another fades into, as far as they are through with that:
    # its draws until then. What the other still held comes back to it there.
    faded: tuple[int, ...] = ()


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

    @property
    def fade(self) -> object | None:
        """How the stage before fades into it, step by step; None: it does not."""


@frozen
class _Ended:
    """What was drawn up to the end of a stage."""

    past: Past  # not to be changed
    own: tuple[Any, ...]  # `carried`, `returned` and `faded` by then
    cursors: list[list[Cursor]]  # of the nodes of each stage up to there


class Played:
    """What the stages of a lane have drawn.

    Args:
        node: The node of all stages; its children are theirs, by name.
        stages: The stages.
        carried: Returns what was done to leaves before the stages were edited.
        handoff: Whether what a stage has drawn and not given goes back to its leaves.
    """

    def __init__(
        self,
        node: Node[Any, Any],
        stages: Sequence[Section],
        carried: Callable[[], Past],
        *,
        handoff: bool,
    ) -> None:
        self._node, self._stages = node, stages
        self._carried, self._handoff = carried, handoff
        self.used: set[int] = set()  # stages that have computed or opened anything
        self._ends: dict[int, _Ended] = {}  # of the last stages that were asked about

    def before(self, number: int, maker: int, *, fading: bool) -> tuple[Past, list[int]]:
        """Return what a pipeline goes on from, and the draws its trees had made there.

        number: of the stage; maker: of that whose pipeline it is; fading: whether the one before
        still fades into the stage.
        """
        self.used.add(maker)
        if fading:
            past = self.until_end(number - 2).copy()
            self._play_whole(past, number - 1)
            self._play(past, number)
            return past, [tree.cursor.draws for tree in self._trees(maker)]
        past = self.until_end(number - 1).copy()
        draws = self._faded(number)
        self._play(past, number, draws)
        if self._stages[number].fade:
            self._give_back(past, number - 1)
        return past, draws

    def _child(self, number: int) -> Node[Any, Any]:
        return self._node.children[self._stages[number].name]

    def _trees(self, number: int) -> Sequence[ReferencesNode]:
        return order_trees(self._child(number))

    def note_faded(self, number: int, *, fading: bool) -> None:
        """Note how far the order trees of stages were when that before had faded into them."""
        at, end = self._node.cursor, number if fading else number + 1
        if isinstance(at, FadingCursor) and len(at.faded) < self._num_faded(end):
            draws = [tree.cursor.draws for n in self._fades(end) for tree in self._trees(n)]
            at.faded = (*at.faded, *draws[len(at.faded) :])

    def _fades(self, end: int) -> list[int]:
        """Return the stages before `end` that another fades into."""
        return [number for number in range(end) if self._stages[number].fade]

    @property
    def num_faded(self) -> int:
        """The number of order trees of all stages that another fades into."""
        return self._num_faded(len(self._stages))

    def _num_faded(self, end: int) -> int:
        return sum(len(self._trees(number)) for number in self._fades(end))

    def _faded(self, number: int) -> list[int]:
        """Return the draws of a stage's order trees until the one before had faded."""
        trees, at = self._trees(number), self._node.cursor
        if self._stages[number].fade is None or not isinstance(at, FadingCursor):
            return [0] * len(trees)
        first = self._num_faded(number)
        noted = list(at.faded[first : first + len(trees)])
        # A saved run may not be through with it.
        return noted or [tree.cursor.draws for tree in trees]

    def until_end(self, number: int) -> Past:
        """Return what was drawn up to the end of a stage, not to be changed."""
        self._ends = {at: one for at, one in self._ends.items() if self._still(one)}
        known = max((at for at in self._ends if at <= number), default=-1)
        past = self._ends[known].past if known >= 0 else self._carried()
        for at in range(known + 1, number + 1):
            past = past.copy()
            self._play_whole(past, at)
            if at + 1 == len(self._stages) or not self._stages[at + 1].fade:
                self._give_back(past, at)
        if number >= 0:
            kept = {at: one for at, one in self._ends.items() if at == number - 1}
            now = _Ended(past, self._own(number), self._cursors(number))
            self._ends = {**kept, number: now}
        return past

    def _own(self, number: int) -> tuple[Any, ...]:
        at = self._node.cursor
        faded = at.faded[: self._num_faded(number + 1)] if isinstance(at, FadingCursor) else ()
        return at.carried, at.returned, faded

    def _cursors(self, number: int) -> list[list[Cursor]]:
        return [[node.cursor for node in nodes_of(self._child(n))] for n in range(number + 1)]

    def _still(self, ended: _Ended) -> bool:
        number = len(ended.cursors) - 1
        return ended.own == self._own(number) and ended.cursors == self._cursors(number)

    def _play_whole(self, past: Past, number: int) -> None:
        """Count what a stage has drawn, and what came back when the one before had faded."""
        faded = self._faded(number)
        self._play(past, number, faded)
        if self._stages[number].fade:
            self._give_back(past, number - 1)
        self._play(past, number, after=faded)

    def _play(
        self,
        past: Past,
        number: int,
        until: Sequence[int] | None = None,
        *,
        after: Sequence[int] | None = None,
    ) -> None:
        """Count the draws of a stage's order trees: until, or after, so many of each, or all."""
        if self._stages[number].on_enter == "restart":
            return
        for place, tree in enumerate(self._trees(number)):
            first = after[place] if after else 0
            end = until[place] if until else tree.cursor.draws
            if end > first or tree.cursor.offsets:
                self.used.add(number)
            if after is None:
                past.begin(tree)
            past.play(tree, first, end)

    def _give_back(self, past: Past, number: int) -> None:
        stage = self._stages[number]
        if stage.on_enter == "continue" and self._handoff:
            past.give_back(held(self._child(number)))
