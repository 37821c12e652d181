"""Staged: one pipeline after another, switched exactly at micro-batches of the run."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from attrs import evolve, frozen

from energy_data.core.context import Context
from energy_data.core.cursor_check import Problem, shorten
from energy_data.core.node import Cursor, Node
from energy_data.core.spec import ItemKind, Spec
from energy_data.errors import DataError, SpecError
from energy_data.nodes.crossed import shared_leaf_ids
from energy_data.nodes.leaves import leaf_entries
from energy_data.nodes.past import Past, nodes_of, order_trees
from energy_data.nodes.played import FadingCursor, Played, StagedCursor, carried_by, wrong_carried
from energy_data.nodes.references import ReferencesNode
from energy_data.nodes.stage import (
    Buffers,
    Resume,
    Stage,
    marked,
    stage_context,
    wrong_bodies,
    wrong_bounds,
)


@frozen(kw_only=True)
class StagedSpec(Spec):
    """Give the batches of one stage after the other; no batch, and no step, is of two stages.

    Micro-batch g of the run is of the stage with `begin <= g < end`. A lane knows g of its next
    batch from the number it has given, so all ranks switch at the same one, without a word.

    A leaf in several stages goes on where it was (`on_enter="continue"`), whatever stood between.
    What a stage had drawn and not yet given, as packing does, goes back to its leaves, which give
    it first when they are drawn from again (`buffers="handoff"`), or is lost (`"drop"`).
    `"restart"`: the leaves of the stage begin anew, in an order of the stage's own.

    Seeds come from the names of stages, so a stage that is added or taken out changes no other;
    the stage named `default` draws as a run without stages does.

    Stages that count steps (`Stage.counts`) begin where `StagedNode.enter` says: the number of
    micro-batches in a step is found out by all ranks together.

    `resume`: which changes of the stages a saved state bears; see docs/stages.md.
    """

    kind = "staged"
    children_are_sequential: ClassVar[bool] = True

    stages: tuple[Stage, ...]
    buffers: Buffers = "handoff"
    resume: Resume = "strict"
    on_exhausted: Literal["repeat", "error"] = "repeat"  # of a stage whose pipeline ends

    def __attrs_post_init__(self) -> None:
        faults = [*wrong_bounds(self.stages), *(one.problem for one in wrong_bodies(self.stages))]
        for name, known in (
            ("buffers", ("handoff", "drop")),
            ("resume", ("strict", "ablation", "ignore")),
            ("on_exhausted", ("repeat", "error")),
        ):
            if (found := getattr(self, name)) not in known:
                advice = "; it takes stages of `ended_with_data`" if found == "advance" else ""
                faults.append(
                    f"staged: {name} must be one of {', '.join(known)}, got {found!r}{advice}."
                )
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
        """The ids of all leaves that go on from stage to stage, sorted."""
        ids = [stage.leaf_ids for stage in self.stages if stage.on_enter == "continue"]
        return sorted(set().union(*ids))

    def stage_of(self, batch: int) -> int:
        """Return the number of the stage of a micro-batch of the run; one past the last: ended."""
        if (end := self.stages[-1].end) is not None and batch >= end:
            return len(self.stages)
        return bisect_right(self.stages, batch, key=lambda stage: stage.begin) - 1

    def is_fading(self, number: int, batch: int) -> bool:
        """Return whether the stage before still fades into a stage at one of its micro-batches."""
        stage = self.stages[number]
        return stage.fade is not None and batch - stage.begin < stage.fade.batches

    def maker_of(self, number: int, batch: int) -> int:
        """Return the number of the stage whose pipeline makes a micro-batch of a stage."""
        stage = self.stages[number]
        return (
            number if stage.fade is None or stage.fade.is_own(batch - stage.begin) else number - 1
        )

    def describe(self) -> list[Any]:
        stages = [
            [
                stage.name,
                stage.begin,
                stage.end,
                stage.on_enter,
                stage.seed,
                stage.microbatches_per_step,
                dict(sorted(stage.params.items())),
                *([] if stage.fade is None else [stage.fade.describe()]),
            ]
            for stage in self.stages
        ]
        # By name: JSON may sort them, and the leaves of a state are told by their order.
        bodies = {
            stage.name: stage.of.describe()
            for stage in sorted(self.stages, key=lambda stage: stage.name)
        }
        steps = ["steps"] if self.counts_steps else []
        return ["staged", stages, self.buffers, self.on_exhausted, *steps, bodies]

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

    # Its stage, whose pipeline it is, whether the one before fades; what was carried; its begin.
    at: tuple[Any, ...]
    stopped: list[tuple[Node[Any, Any], Cursor]]  # nodes of others, where they are

    def holds(self, at: tuple[Any, ...]) -> bool:
        """Return whether nothing has moved since."""
        return self.at == at and all(
            node.cursor is cursor or node.cursor == cursor for node, cursor in self.stopped
        )


class StagedNode(Node[Any, StagedCursor]):
    """The stages in one lane.

    What earlier stages have drawn follows from their cursors, which stay in the state; so a state
    has one number per stage and lane, not one per leaf. A stage opens nothing before it is
    entered, and holds nothing once the next has given two batches. Entering one looks at the one
    before; only after a restore at all of them, once.
    """

    def __init__(self, spec: StagedSpec, context: Context) -> None:
        self.spec, self.context = spec, context
        fades = any(stage.fade for stage in spec.stages)
        start = FadingCursor() if fades else StagedCursor()
        start = SteppedCursor() if spec.counts_steps else start
        super().__init__(start, {stage.name: self._built(stage) for stage in spec.stages})
        self._entered: _Entered | None = None
        self._played = Played(self, spec.stages, self.carried, handoff=spec.buffers == "handoff")

    def _built(self, stage: Stage) -> Node[Any, Any]:
        return stage.of.build(context_of(stage, self.context))

    def faults(self, at: StagedCursor) -> Iterator[Problem]:
        if at.carried or at.returned:
            yield from self._wrong_carried(at)
        if isinstance(at, FadingCursor) and len(at.faded) > (count := self._played.num_faded):
            yield "faded", f"must be of {count} order trees at most, has {len(at.faded)}"
        if isinstance(at, SteppedCursor):
            beyond = at.taken * self.context.lanes + self.context.lane
            begins = (0, *at.entered)
            if len(begins) > len(self.spec.stages) or list(begins) != sorted(begins):
                yield "entered", f"must be the beginnings of stages, got {shorten(at.entered)}"
            elif begins[-1] > beyond:
                yield "entered", f"must be up to micro-batch {beyond}, got {shorten(at.entered)}"

    def _wrong_carried(self, at: StagedCursor) -> Iterator[Problem]:
        ids = leaf_ids(self.spec)
        yield from (wrong := list(wrong_carried(at, ids)))
        if at.returned and not wrong:
            sizes = leaf_sizes(self.spec)
            if away := [mark for mark in at.returned if mark[2] >= sizes[ids[mark[0]]]]:
                yield "returned", f"has references to what is not there, {shorten(away[0])}"

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
        """Do nothing: stages never begin again by themselves. Ended, they stay so."""

    def draw(self, count: int) -> list[Any]:
        number = self.number
        if number == len(self.spec.stages):
            raise StopIteration
        fading = self.spec.is_fading(number, self.batch)
        maker = self.spec.maker_of(number, self.batch)
        stage = self.spec.stages[maker]
        self._enter(number, maker, fading=fading)
        child = self.children[stage.name]
        items = self._drawn(stage, child)
        self.cursor.taken += 1
        if isinstance(child, _Shares):
            return [tuple(marked(each, maker, stage.name) for each in item) for item in items]
        return [marked(item, maker, stage.name) for item in items]

    def _drawn(self, stage: Stage, child: Node[Any, Any]) -> Sequence[Any]:
        try:
            return child.draw(1)
        except StopIteration:
            if self.spec.on_exhausted == "error":
                raise _ended(stage, self.batch) from None
        child.rewind()
        try:
            return child.draw(1)
        except StopIteration:
            raise _ended(stage, self.batch) from None

    def _enter(self, number: int, maker: int, *, fading: bool) -> None:
        """Let the leaves of a pipeline go on where this lane has left them."""
        begin = self._begin_of(number)
        at = number, maker, fading, (self.cursor.carried, self.cursor.returned), begin
        if self._entered is not None and self._entered.holds(at):
            return
        self._played.note_faded(number, fading=fading)
        if self.spec.stages[maker].on_enter == "continue":
            self._go_on(number, maker, fading=fading)
        if isinstance(child := self._child(maker), _Shares):
            child.begin_at((self.context.lane - begin) % self.context.lanes)
        self._forget({number, number - 1} if fading else {number})
        others = [n for n in range(number + 1 if fading else number) if n != maker]
        nodes = [node for n in others for node in nodes_of(self._child(n))]
        self._entered = _Entered(at, [(node, node.cursor) for node in nodes])

    def _begin_of(self, number: int) -> int:
        """Return the first micro-batch of the stage that is played."""
        if isinstance(self.cursor, SteppedCursor):
            return self.cursor.entered[number - 1] if number else 0
        return self.spec.stages[number].begin

    def _go_on(self, number: int, maker: int, *, fading: bool) -> None:
        trees = order_trees(self._child(maker))
        past, draws = self._played.before(number, maker, fading=fading)
        for tree, end in zip(trees, draws, strict=True):
            tree.goes_on(past.before(tree, end))

    def _child(self, number: int) -> Node[Any, Any]:
        return self.children[self.spec.stages[number].name]

    def _forget(self, kept: set[int]) -> None:
        """Let go of what other stages have computed or opened; their cursors stay."""
        for at in self._played.used - kept:
            stage = self.spec.stages[at]
            fresh = self._built(stage)
            pairs = zip(nodes_of(fresh), nodes_of(self.children[stage.name]), strict=True)
            for new, old in pairs:
                new.cursor = old.cursor
            self.replace_child(stage.name, fresh)
        self._played.used = kept

    def history(self, number: int) -> Past:
        """Return what the stages before `number` have done to the leaves of the run."""
        return self._played.until_end(number - 1)

    def trees_that_go_on(self) -> Iterator[ReferencesNode]:
        """Yield the order trees whose draws `history` counts: not those that begin anew."""
        for stage in self.spec.stages:
            if stage.on_enter == "continue":
                yield from order_trees(self.children[stage.name])

    def carry(self, past: Past) -> None:
        """Say what stages that are no longer among these have done to leaves."""
        ids = leaf_ids(self.spec)
        carried = tuple(past.drawn.get(leaf_id, 0) for leaf_id in ids)
        self.cursor.carried = carried if any(carried) else ()
        number = {leaf_id: place for place, leaf_id in enumerate(ids)}
        self.cursor.returned = past.of_leaves(number).marks(number)

    def carried(self) -> Past:
        """Return what was done to leaves in stages that are no longer among these."""
        at = self.cursor
        return carried_by(at, leaf_ids(self.spec)) if at.carried or at.returned else Past({})


def context_of(stage: Stage, around: Context) -> Context:
    """Return the context that the pipeline of a stage is built in."""
    restarts = stage.on_enter == "restart"
    context = stage_context(around, stage.name, restarts=restarts, seed=stage.seed)
    # Of the stage alone: another one, however it draws, leaves its order as it is.
    crossed = context.shared(("crossed", context.path), lambda: shared_leaf_ids(stage.of))
    return evolve(context, shared_leaves=crossed)


def leaf_ids(spec: StagedSpec) -> list[str]:
    """Return the ids of all leaves that go on from stage to stage, sorted."""
    return spec.leaf_ids


def leaf_sizes(spec: StagedSpec) -> dict[str, int]:
    """Return the number of samples of each leaf, by its id."""
    trees = (tree for stage in spec.stages for tree in stage.order_trees)
    return {leaf.id: leaf.num_samples for tree in trees for _, leaf in leaf_entries(tree.of)}


def _ended(stage: Stage, batch: int) -> DataError:
    return DataError(
        f"staged: stage {stage.name!r} has no more batches at micro-batch {batch} of the run, it "
        f"should last until {stage.end}. Let its pipeline go on, or end the stage there."
    )
