"""Staged: one pipeline after another, switched exactly at micro-batches of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

from attrs import evolve, frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, shorten
from energy_data.core.node import ItemRef, Items, Node
from energy_data.core.spec import ItemKind, Spec
from energy_data.errors import DataError, SpecError
from energy_data.nodes.leaf_history import (
    LeafHistory,
    are_references,
    held,
    nodes_of,
    order_trees,
)
from energy_data.nodes.read_ahead import ReadAhead, aheads_of
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.stage import (
    Resume,
    Stage,
    stage_number,
    with_stage,
    wrong_bodies,
    wrong_bounds,
)


@frozen(kw_only=True)
class StagedSpec(Spec):
    """Return the batches of one stage after another. No batch and no step mixes two stages.

    Micro-batch g of the run belongs to the stage with `begin <= g < end`. A lane computes g from
    the number of batches it has returned, so all ranks switch at the same g without communication.

    With `on_enter="continue"`, a leaf that several stages use continues where it was. Samples that
    a stage has drawn but not returned, for example while packing, go back to their leaves, which
    return them first when they are drawn from again. With `on_enter="restart"`, the leaves of the
    stage start again, in an order of the stage's own.

    Seeds come from the names of the stages, so adding or removing a stage changes no other stage.
    The stage named `default` draws as a run without stages does. A stage whose pipeline ends plays
    it again.

    Stages that count steps (`Stage.counts`) begin where `StagedNode.enter` is called, because the
    number of micro-batches in such a step is known only during the run.

    `resume`: which changes to the stages a saved state accepts; see docs/stages.md.
    """

    kind = "staged"
    item_kind: ClassVar[ItemKind] = "batches"
    unsaved = ("resume",)
    children_are_sequential: ClassVar[bool] = True

    stages: tuple[Stage, ...]
    resume: Resume = "strict"

    def __attrs_post_init__(self) -> None:
        faults = [*wrong_bounds(self.stages), *(one.problem for one in wrong_bodies(self.stages))]
        if self.resume not in ("strict", "ablation"):
            faults.append(f"staged: resume must be 'strict' or 'ablation', got {self.resume!r}.")
        if faults:
            raise SpecError(faults)

    @property
    def counts_steps(self) -> bool:
        """Whether stages begin and end at steps of the run, not at micro-batches."""
        return self.stages[0].counts == "steps"

    @cached_property
    def leaf_ids(self) -> list[str]:
        """The ids of all leaves that continue from stage to stage, sorted."""
        continuing = [stage for stage in self.stages if stage.on_enter == "continue"]
        return sorted({leaf.id for stage in continuing for _, leaf in stage.leaves})

    @cached_property
    def grains(self) -> dict[str, Fraction]:
        """The size of the grains of each leaf that continues, as in its first stage, by id."""
        found: dict[str, Fraction] = {}
        for stage in self.stages:
            for tree in stage.order_trees if stage.on_enter == "continue" else ():
                found = {**tree.grains, **found}
        return found

    @cached_property
    def spans(self) -> dict[str, int]:
        """The first number of each leaf, by id, that is none of a span of its units."""
        leaves = (leaf for stage in self.stages for _, leaf in stage.leaves)
        return {leaf.id: leaf.num_units * leaf.cut.chunk for leaf in leaves}

    def check_ranks(self, world_size: int) -> None:
        """Raise SpecError if this number of ranks cannot share each stage evenly."""
        for stage in () if self.counts_steps else self.stages:
            per_step = stage.microbatches_per_step or 0
            if stage.begin % world_size or (stage.end or 0) % world_size or per_step % world_size:
                raise SpecError(
                    f"staged: stage {stage.name!r} is micro-batches {stage.begin} to {stage.end}"
                    f"{f', {per_step} a step' if per_step else ''}, which {world_size} ranks "
                    f"cannot share evenly: they would not switch in the same step. Make "
                    f"microbatches_per_step, which counts those of all ranks, a multiple of "
                    f"{world_size}."
                )

    def build(self, context: Context) -> StagedNode:
        return StagedNode(self, context)


@dataclass
class StagedCursor(Cursor):
    """The position of all stages in one lane."""

    taken: int = 0  # micro-batches of this lane
    carried: tuple[int, ...] = ()  # per leaf, by id: units before the stages were edited
    # Of these, the samples to be drawn again: number of the leaf, epoch, span.
    returned: tuple[ItemRef, ...] = ()


@dataclass
class SteppedCursor(StagedCursor):
    """The position of stages that count steps."""

    entered: tuple[int, ...] = ()  # the first micro-batch of each stage but the first


@runtime_checkable
class _Shares(Protocol):
    """A stage of shares of steps: tuples of batches, cut by the number of the share."""

    def begin_at(self, first: int) -> None:
        """Number the first share of this lane `first`."""


class StagedNode(Node[StagedCursor]):
    """The stages in one lane.

    The draws of earlier stages follow from their cursors, which stay in the state, so a state has
    one number per stage and lane, not one per leaf. A stage opens nothing before it is entered, but
    of one in a store indices are read shortly before, and what it reads first is fetched. It is
    released after two batches of the next one. Entering a stage computes the draws of the stage
    before, and after a restore those of all stages, once.
    """

    def __init__(self, spec: StagedSpec, context: Context) -> None:
        self.spec, self.context = spec, context
        start = SteppedCursor() if spec.counts_steps else StagedCursor()
        super().__init__(start, {stage.name: self._built(stage) for stage in spec.stages})
        self._played = StageHistory(self)
        # The stage that was entered, with all that the places of its leaves follow from: what was
        # carried, its first micro-batch, and nodes of other stages with their cursors.
        self._entered: tuple[Any, Sequence[tuple[Node[Any], Cursor]]] = None, ()
        self._aheads: list[ReadAhead] = []  # of that stage
        self._next_aheads: list[ReadAhead] = []  # of the one after it, until it was looked up

    def _built(self, stage: Stage) -> Node[Any]:
        context = stage.context(self.context)
        if stage.on_enter == "continue":
            context = evolve(context, grains=self.spec.grains)
        return stage.of.build(context)

    def faults(self, at: StagedCursor) -> Iterator[Problem]:
        if at.carried or at.returned:
            yield from self._wrong_carried(at)
        if isinstance(at, SteppedCursor):
            beyond = at.taken * self.context.lanes + self.context.lane
            begins = (0, *at.entered)
            if len(begins) > len(self.spec.stages) or list(begins) != sorted(begins):
                yield "entered", f"must be the beginnings of stages, got {shorten(at.entered)}"
            elif begins[-1] > beyond:
                yield "entered", f"must be up to micro-batch {beyond}, got {shorten(at.entered)}"

    def _wrong_carried(self, at: StagedCursor) -> Iterator[Problem]:
        ids, spans = self.spec.leaf_ids, self.spec.spans
        if at.carried and len(at.carried) != len(ids):
            count = len(at.carried)
            yield "carried", f"must have a number for each of {len(ids)} leaves, has {count}"
        if not are_references(at.returned, len(ids)):
            yield "returned", f"must be references to {len(ids)} leaves"
        elif missing := [ref for ref in at.returned if ref[2] >= spans[ids[ref[0]]]]:
            yield "returned", f"has references to missing samples, {shorten(missing[0])}"

    @property
    def batch(self) -> int:
        """The number in the run of this lane's next micro-batch."""
        return self.cursor.taken * self.context.lanes + self.context.lane

    @property
    def number(self) -> int:
        """The number of the stage of this lane's next micro-batch; one past the last: ended."""
        if isinstance(self.cursor, SteppedCursor):
            return len(self.cursor.entered)
        return stage_number(self.spec.stages, self.batch)

    def enter(self, batch: int) -> None:
        """Begin the next stage with micro-batch `batch` of the run, or a later one of this lane."""
        assert isinstance(self.cursor, SteppedCursor)
        self.cursor.entered = (*self.cursor.entered, batch)

    def active(self) -> Iterator[Node[Any]]:
        yield self
        if self.number < len(self.spec.stages):
            yield from self._enter(self.number).active()

    def rewind(self) -> None:
        """Do nothing: stages never start again."""

    def draw(self, count: int) -> Items:
        number = self.number
        if number == len(self.spec.stages):
            raise StopIteration
        stage, child = self.spec.stages[number], self._enter(number)
        if self._aheads or self._next_aheads:
            self._look_ahead(number)
        items = self._drawn(stage, child)
        self.cursor.taken += 1
        if isinstance(child, _Shares):
            items = [tuple(with_stage(each, number, stage.name) for each in item) for item in items]
        else:
            items = [with_stage(item, number, stage.name) for item in items]
        return Items(items, [None] * len(items))

    def _drawn(self, stage: Stage, child: Node[Any]) -> Sequence[Any]:
        try:
            return child.draw(1).values
        except StopIteration:
            child.rewind()
        try:
            return child.draw(1).values
        except StopIteration:
            raise DataError(
                f"staged: stage {stage.name!r} has no batch at micro-batch {self.batch} of the "
                f"run, even after its pipeline started again. Give it more data, or end the stage "
                f"there."
            ) from None

    def _enter(self, number: int) -> Node[Any]:
        """Return the node of a stage, whose leaves continue where other stages of this lane are."""
        begin, child = self._begin_of(number), self.stage_node(number)
        at = number, self.cursor.carried, self.cursor.returned, begin
        known, stopped = self._entered
        if known == at and all(
            node.cursor is cursor or node.cursor == cursor for node, cursor in stopped
        ):
            return child
        if self.spec.stages[number].on_enter == "continue":
            past = self._played.before(number)
            for tree in order_trees(child):
                tree.continue_from(past.offsets(tree))
        if isinstance(child, _Shares):
            child.begin_at((self.context.lane - begin) % self.context.lanes)
        self._forget(number)
        nodes = [node for n in range(number) for node in nodes_of(self.stage_node(n))]
        self._entered = at, [(node, node.cursor) for node in nodes]
        self._aheads, self._next_aheads = aheads_of(child.active()), []
        for ahead in self._aheads:
            ahead.begin = self._first_of_lane(begin)
        if number + 1 < len(self.spec.stages) and not self.spec.counts_steps:
            self._next_aheads = aheads_of(self.stage_node(number + 1).active())
        return child

    def _first_of_lane(self, batch: int) -> int:
        """Return the number in this lane of its first micro-batch from one of the run on."""
        return -(-(batch - self.context.lane) // self.context.lanes)

    def _look_ahead(self, number: int) -> None:
        """Say where the stage ends and, shortly before, what the next one reads."""
        end = self.spec.stages[number].end
        if end is None or self.spec.counts_steps:
            return
        left = self._first_of_lane(end) - self.cursor.taken
        taken = self.cursor.taken - self._first_of_lane(self._begin_of(number))
        ends = {ahead.tree: ahead.ends_after(left, taken) for ahead in self._aheads}
        if all(left > ahead.batches for ahead in self._next_aheads):
            return
        past = self._played.until_end(number - 1).copy()
        if self.spec.stages[number].on_enter == "continue":
            for tree in order_trees(self.stage_node(number)):
                past.begin(tree)
                past.play(tree, ends.get(tree))
        for ahead in self._next_aheads:
            if self.spec.stages[number + 1].on_enter == "continue":
                past.begin(ahead.tree)
                ahead.tree.continue_from(past.offsets(ahead.tree))
            ahead.begin = self._first_of_lane(end)
            ahead.look(1)
        self._next_aheads = []

    def _begin_of(self, number: int) -> int:
        """Return the first micro-batch of the stage that is played."""
        if isinstance(self.cursor, SteppedCursor):
            return self.cursor.entered[number - 1] if number else 0
        return self.spec.stages[number].begin

    def stage_node(self, number: int) -> Node[Any]:
        """Return the node of a stage."""
        return self.children[self.spec.stages[number].name]

    def _forget(self, number: int) -> None:
        """Drop what stages other than `number` have computed or opened; their cursors stay."""
        for at in self._played.used - {number}:
            stage = self.spec.stages[at]
            fresh = self._built(stage)
            for new, old in zip(nodes_of(fresh), nodes_of(self.stage_node(at)), strict=True):
                new.cursor = old.cursor
            self.children = {**self.children, stage.name: fresh}
        self._played.used = {number}

    def history(self, number: int) -> LeafHistory:
        """Return what the stages before `number` have drawn."""
        return self._played.until_end(number - 1)

    def continued_trees(self) -> Iterator[ReferencesNode]:
        """Yield the order trees whose draws `history` counts: those of stages that continue."""
        for number, stage in enumerate(self.spec.stages):
            if stage.on_enter == "continue":
                yield from order_trees(self.stage_node(number))

    def carry(self, past: LeafHistory) -> None:
        """Set what removed stages have drawn."""
        ids = self.spec.leaf_ids
        carried = tuple(past.drawn.get(leaf_id, 0) for leaf_id in ids)
        self.cursor.carried = carried if any(carried) else ()
        number = {leaf_id: place for place, leaf_id in enumerate(ids)}
        self.cursor.returned = past.of_leaves(number).refs(number)

    def carried(self) -> LeafHistory:
        """Return what removed stages have drawn."""
        at = self.cursor
        if not at.carried and not at.returned:
            return LeafHistory({})
        ids = self.spec.leaf_ids
        drawn = dict(zip(ids, at.carried, strict=True)) if at.carried else {}
        return LeafHistory(drawn, ((ids[place], *sample) for place, *sample in at.returned))


class StageHistory:
    """What the stages of a lane have drawn, computed from their cursors."""

    def __init__(self, node: StagedNode) -> None:
        self._node = node
        self.used: set[int] = set()  # stages that have computed or opened anything
        # Of the last stages that were asked about: the history at the end, not to be changed, and
        # the positions that it follows from.
        self._ends: dict[int, tuple[LeafHistory, list[Any]]] = {}

    def before(self, number: int) -> LeafHistory:
        """Return the history at the beginning of a stage."""
        self.used.add(number)
        past = self.until_end(number - 1).copy()
        for tree in order_trees(self._node.stage_node(number)):
            past.begin(tree)
        return past

    def until_end(self, number: int) -> LeafHistory:
        """Return the history at the end of a stage. The caller must not change it."""
        valid = {at: end for at, end in self._ends.items() if end[1] == self._positions(at)}
        known = max((at for at in valid if at <= number), default=-1)
        past = valid[known][0] if known >= 0 else self._node.carried()
        for at in range(known + 1, number + 1):
            past = past.copy()
            if self._node.spec.stages[at].on_enter == "continue":
                self._play(past, at)
        if number >= 0:
            kept = {at: end for at, end in valid.items() if at == number - 1}
            valid = {**kept, number: (past, self._positions(number))}
        self._ends = valid
        return past

    def _play(self, past: LeafHistory, number: int) -> None:
        """Count the draws of a stage, and return its pending samples to their leaves."""
        child = self._node.stage_node(number)
        for tree in order_trees(child):
            if tree.cursor.draws or tree.cursor.offsets:
                self.used.add(number)
            past.begin(tree)
            past.play(tree)
        past.give_back(held(child))

    def _positions(self, number: int) -> list[Any]:
        """Return all that the history at the end of a stage follows from."""
        nodes = (node for n in range(number + 1) for node in nodes_of(self._node.stage_node(n)))
        own = self._node.cursor
        return [own.carried, own.returned, *(node.cursor for node in nodes)]
