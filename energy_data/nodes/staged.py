"""Staged: one pipeline after another, switched exactly at micro-batches of the run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

from attrs import frozen

from energy_data.core.context import Context
from energy_data.core.cursor import Cursor, Problem, shorten
from energy_data.core.node import Items, Node
from energy_data.core.spec import ItemKind, Spec
from energy_data.errors import DataError, SpecError
from energy_data.nodes.leaf import leaf_entries
from energy_data.nodes.leaf_history import (
    LeafHistory,
    StagedCursor,
    StageHistory,
    carried_by,
    nodes_of,
    order_trees,
    wrong_carried,
)
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.stage import Resume, Stage, with_stage, wrong_bodies, wrong_bounds


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
    def children(self) -> Mapping[str, Spec]:
        return {stage.name: stage.of for stage in self.stages}

    @property
    def item_kind(self) -> ItemKind:
        return "batches"

    @property
    def counts_steps(self) -> bool:
        """Whether stages begin and end at steps of the run, not at micro-batches."""
        return self.stages[0].counts == "steps"

    @cached_property
    def leaf_ids(self) -> list[str]:
        """The ids of all leaves that continue from stage to stage, sorted."""
        ids = [stage.leaf_ids for stage in self.stages if stage.on_enter == "continue"]
        return sorted(set().union(*ids))

    @cached_property
    def leaf_sizes(self) -> dict[str, int]:
        """The number of samples of each leaf, by id."""
        trees = (tree for stage in self.stages for tree in stage.order_trees)
        return {leaf.id: leaf.num_samples for tree in trees for _, leaf in leaf_entries(tree.of)}

    def stage_of(self, batch: int) -> int:
        """Return the number of the stage of a micro-batch of the run; one past the last: ended."""
        if (end := self.stages[-1].end) is not None and batch >= end:
            return len(self.stages)
        return bisect_right(self.stages, batch, key=lambda stage: stage.begin) - 1

    def check_ranks(self, world_size: int) -> None:
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
class SteppedCursor(StagedCursor):
    entered: tuple[int, ...] = ()  # the first micro-batch of each stage but the first


@runtime_checkable
class _Shares(Protocol):
    """A stage of shares of steps: tuples of batches, cut by the number of the share."""

    def begin_at(self, first: int) -> None:
        """Take the first share of this lane for number `first` of all lanes."""


@frozen
class _Entered:
    """The pipeline a lane draws from, and all that the places of its leaves follow from."""

    at: tuple[Any, ...]  # number of its stage, what was carried, its first micro-batch
    stopped: list[tuple[Node[Any], Cursor]]  # nodes of others, where they are

    def holds(self, at: tuple[Any, ...]) -> bool:
        """Return whether nothing has moved since."""
        return self.at == at and all(
            node.cursor is cursor or node.cursor == cursor for node, cursor in self.stopped
        )


class StagedNode(Node[StagedCursor]):
    """The stages in one lane.

    The draws of earlier stages follow from their cursors, which stay in the state, so a state has
    one number per stage and lane, not one per leaf. A stage opens nothing before it is entered, and
    is released after two batches of the next one. Entering a stage computes the draws of the stage
    before, and after a restore those of all stages, once.
    """

    def __init__(self, spec: StagedSpec, context: Context) -> None:
        self.spec, self.context = spec, context
        start = SteppedCursor() if spec.counts_steps else StagedCursor()
        super().__init__(start, {stage.name: self._built(stage) for stage in spec.stages})
        self._entered: _Entered | None = None
        self._played = StageHistory(self, spec.stages, self.carried)

    def _built(self, stage: Stage) -> Node[Any]:
        return stage.of.build(stage.context(self.context))

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
        ids = self.spec.leaf_ids
        yield from (wrong := list(wrong_carried(at, ids)))
        if at.returned and not wrong:
            sizes = self.spec.leaf_sizes
            if missing := [ref for ref in at.returned if ref[2] >= sizes[ids[ref[0]]]]:
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
        return self.spec.stage_of(self.batch)

    def enter(self, batch: int) -> None:
        """Begin the next stage with micro-batch `batch` of the run, or a later one of this lane."""
        assert isinstance(self.cursor, SteppedCursor)
        self.cursor.entered = (*self.cursor.entered, batch)

    def rewind(self) -> None:
        """Do nothing: stages never start again."""

    def draw(self, count: int) -> Items:
        number = self.number
        if number == len(self.spec.stages):
            raise StopIteration
        stage = self.spec.stages[number]
        self._enter(number)
        child = self.children[stage.name]
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
            raise _ended(stage, self.batch) from None

    def _enter(self, number: int) -> None:
        """Continue the leaves of a stage where this lane stopped drawing from them."""
        begin, child = self._begin_of(number), self._child(number)
        at = number, self.cursor.carried, self.cursor.returned, begin
        if self._entered is not None and self._entered.holds(at):
            return
        if self.spec.stages[number].on_enter == "continue":
            past = self._played.before(number)
            for tree in order_trees(child):
                tree.continue_from(past.offsets(tree))
        if isinstance(child, _Shares):
            child.begin_at((self.context.lane - begin) % self.context.lanes)
        self._forget(number)
        nodes = [node for n in range(number) for node in nodes_of(self._child(n))]
        self._entered = _Entered(at, [(node, node.cursor) for node in nodes])

    def _begin_of(self, number: int) -> int:
        """Return the first micro-batch of the stage that is played."""
        if isinstance(self.cursor, SteppedCursor):
            return self.cursor.entered[number - 1] if number else 0
        return self.spec.stages[number].begin

    def _child(self, number: int) -> Node[Any]:
        return self.children[self.spec.stages[number].name]

    def _forget(self, number: int) -> None:
        """Drop what stages other than `number` have computed or opened; their cursors stay."""
        for at in self._played.used - {number}:
            stage = self.spec.stages[at]
            fresh = self._built(stage)
            pairs = zip(nodes_of(fresh), nodes_of(self.children[stage.name]), strict=True)
            for new, old in pairs:
                new.cursor = old.cursor
            self.replace_child(stage.name, fresh)
        self._played.used = {number}

    def history(self, number: int) -> LeafHistory:
        """Return what the stages before `number` have drawn."""
        return self._played.until_end(number - 1)

    def continued_trees(self) -> Iterator[ReferencesNode]:
        """Yield the order trees whose draws `history` counts: those of stages that continue."""
        for stage in self.spec.stages:
            if stage.on_enter == "continue":
                yield from order_trees(self.children[stage.name])

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
        return carried_by(at, self.spec.leaf_ids) if at.carried or at.returned else LeafHistory({})


def _ended(stage: Stage, batch: int) -> DataError:
    return DataError(
        f"staged: stage {stage.name!r} has no batch at micro-batch {batch} of the run, even after "
        f"its pipeline started again. Give it more data, or end the stage there."
    )
