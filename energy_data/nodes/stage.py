"""A stage of a run: a pipeline, and the micro-batches that are its own."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Literal, NamedTuple

import attrs
from attrs import evolve, field, frozen

from energy_data.core.context import Context
from energy_data.core.keys import key
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import Leaf, Shuffle, distinct_leaves, shared_leaf_ids
from energy_data.nodes.references import ReferencesSpec

OnEnter = Literal["continue", "restart"]
Resume = Literal["strict", "ablation"]
OnExhausted = Literal["repeat", "advance", "error"]
Counts = Literal["microbatches", "steps"]

DEFAULT = "default"
"""The name of a stage that draws as a run without stages does."""

STAGE_KEY = "__stage__"


@frozen(kw_only=True)
class DataEnd:
    """States that a stage ends with its data, and not at the requested end."""

    asked: int | None  # the requested end, in micro-batches of the run; None: there was none
    unread: int | None  # samples of one pass not read, over all lanes; None: not known


@frozen(kw_only=True)
class Stage:
    """One stage: a pipeline of batches, and the micro-batches of the run that it makes.

    If optimizer steps have a varying number of micro-batches, a stage counts steps
    (`counts="steps"`), and the loader that groups them determines when the next stage begins.
    """

    unsaved = ("asked", "data_end")

    name: str
    of: Spec
    begin: int  # the first micro-batch, or step
    end: int | None = None  # the first after this stage; None: it never ends
    counts: Counts = "microbatches"  # what `begin` and `end` are numbers of
    on_enter: OnEnter = "continue"
    seed: int | None = None  # in place of the name
    params: Mapping[str, Any] = field(factory=dict)  # what the pipeline was made with; plain data
    microbatches_per_step: int | None = None  # of all ranks; None: not known
    asked: str = ""  # how its end was written, for messages
    data_end: DataEnd | None = None  # None: it ends where requested

    @property
    def length(self) -> int | None:
        """The number of micro-batches, or of steps (`counts`); None: it never ends."""
        return None if self.end is None else self.end - self.begin

    @property
    def num_batches(self) -> int | None:
        """The number of micro-batches over all ranks; None: without end, or not known."""
        return None if self.counts == "steps" else self.length

    @property
    def num_steps(self) -> int | None:
        """The number of optimizer steps; None: without end, or not known."""
        if self.counts == "steps":
            return self.length
        batches, per_step = self.num_batches, self.microbatches_per_step
        return None if batches is None or not per_step else batches // per_step

    @property
    def num_samples(self) -> int | None:
        """The number of samples, or packs, over all ranks; None: without end, or not known."""
        batches, size = self.num_batches, self.params.get("batch_size")
        return None if batches is None or size is None else batches * int(size)

    @property
    def num_tokens(self) -> int | None:
        """The number of tokens, `seq_len` of each sample; None: without end, or not known."""
        samples, length = self.num_samples, self.params.get("seq_len")
        return None if samples is None or length is None else samples * int(length)

    @property
    def unit(self) -> str:
        """What the stage counts, in words."""
        return "step" if self.counts == "steps" else "micro-batch"

    @property
    def order_trees(self) -> Iterator[ReferencesSpec]:
        """The order trees of the stage."""
        return (spec for _, spec in self.of.walk() if isinstance(spec, ReferencesSpec))

    @property
    def leaves(self) -> Iterator[tuple[ReferencesSpec, Leaf]]:
        """Each order tree with each of its leaves, once."""
        for tree in self.order_trees:
            for leaf in distinct_leaves(tree.of):
                yield tree, leaf

    def context(self, run: Context) -> Context:
        """Return the context of its pipeline, whose seeds come from its name, or its `seed`."""
        under, seed = run.under(self.name), run.seed
        if self.name != DEFAULT or self.seed is not None:
            seed = key(run.seed, "stage", self.name if self.seed is None else self.seed)
        # Only trees of this stage share leaves: other stages must not change its order.
        shared = run.shared(("crossed", under.path), lambda: shared_leaf_ids(self.of))
        of_leaves = seed if self.on_enter == "restart" else run.leaf_seed
        return evolve(under, seed=seed, own_leaf_seed=of_leaves, shared_leaves=shared)


def stage_number(stages: Sequence[Stage], at: int) -> int:
    """Return the number of the stage of a micro-batch, or step; one past the last: ended."""
    if (end := stages[-1].end) is not None and at >= end:
        return len(stages)
    return bisect_right(stages, at, key=lambda stage: stage.begin) - 1


def wrong_bounds(stages: Sequence[Stage]) -> Iterator[str]:
    """Yield the problems of the names and the bounds of stages."""
    if not stages:
        yield "staged: it has no stages. List at least one."
    names = [stage.name for stage in stages]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"staged: two stages are named {name!r}. Give one of them another name."
    for stage in stages:
        if not stage.name.strip():
            yield "staged: a stage has no name. Give it one: seeds and states are kept by it."
        if stage.end is not None and stage.end <= stage.begin:
            yield (
                f"staged: stage {stage.name!r} would never run: it begins at {stage.unit} "
                f"{stage.begin} and ends at {stage.end}. Remove it, or make it longer."
            )
    if len({stage.counts for stage in stages}) > 1:
        yield (
            "staged: some stages count micro-batches, some steps. Count steps in all of them, or "
            "in none."
        )
    yield from _wrong_in_steps(stages)
    begin: int | None = 0
    for stage in stages:
        if begin is None or stage.begin != begin:
            yield (
                f"staged: stage {stage.name!r} begins at {stage.unit} {stage.begin}, where the one "
                f"before ends at {begin}. Stages follow each other without gap or overlap."
            )
        begin = stage.end


def _wrong_in_steps(stages: Sequence[Stage]) -> Iterator[str]:
    """Yield what in stages that count steps depends on micro-batches of the run."""
    for stage in stages:
        if stage.counts == "microbatches":
            continue
        for what, has in (
            ("ends with its data", stage.data_end is not None),
            ("has weights that change", any(tree.of.follows_run for tree in stage.order_trees)),
        ):
            if has:
                yield (
                    f"staged: stage {stage.name!r} counts steps and {what}, which depends on the "
                    f"first micro-batch of the stage, and that is known only during the run. "
                    f"Remove that, or count micro-batches."
                )


class WrongBody(NamedTuple):
    """A problem of the pipeline of a stage."""

    problem: str
    stage: str
    leaf: str | None = None  # id of the leaf


def wrong_bodies(stages: Sequence[Stage]) -> Iterator[WrongBody]:
    """Yield the problems of the pipelines of stages."""
    for stage in stages:
        for problem in _wrong_body(stage):
            yield WrongBody(f"staged: {problem}", stage.name)
        times = Counter(leaf.id for _, leaf in stage.leaves)
        for leaf_id, count in sorted(times.items()):
            if count > 1 and stage.on_enter == "continue":
                problem = (
                    f"staged: leaf {leaf_id!r} is drawn from by several pipelines of stage "
                    f"{stage.name!r}, each in its own order, so it cannot continue after the "
                    f"stage. Blend below reading, or write `on_enter: restart`."
                )
                yield WrongBody(problem, stage.name, leaf_id)
    yield from _unlike_before(stages)


def _wrong_body(stage: Stage) -> Iterator[str]:
    if stage.of.item_kind != "batches":
        yield (
            f"stage {stage.name!r} returns {stage.of.item_kind}, not batches. A stage is a "
            f"complete pipeline, so that no batch mixes two stages. Put a BatchSpec over it."
        )
    if stage.on_enter not in ("continue", "restart"):
        yield (
            f"on_enter of stage {stage.name!r} must be 'continue' or 'restart', got "
            f"{stage.on_enter!r}."
        )
    if any(tree.deal for tree in stage.order_trees):
        yield f"stage {stage.name!r} has only one pass. Stages need endless pipelines."


def _unlike_before(stages: Sequence[Stage]) -> Iterator[WrongBody]:
    """Yield leaves that are not the same in an earlier stage, or cannot continue after it."""
    known: dict[str, tuple[str, Leaf]] = {}
    shuffles: dict[str, tuple[str, Shuffle]] = {}  # of stages that continue their leaves
    for stage in stages:
        for tree, leaf in stage.leaves:
            first, other = known.setdefault(leaf.id, (stage.name, leaf))
            where, problem = f"in the stages {first!r} and {stage.name!r}", ""
            if other.epochs != leaf.epochs:
                problem = (
                    f"has shuffle_over_epochs_multiplier {other.epochs} and {leaf.epochs} {where}: "
                    f"it cannot continue where it was. Make them equal, or give one of them "
                    f"another `id:`."
                )
            elif not other.is_same(leaf):
                problem = (
                    f"is two different datasets {where}: one would continue where the other was. "
                    f"Give one of them another `id:`."
                )
            elif stage.on_enter == "continue":
                problem = _other_order(shuffles, leaf.id, stage.name, tree.shuffle)
            if problem:
                yield WrongBody(f"staged: leaf {leaf.id!r} {problem}", stage.name, leaf.id)


def _other_order(
    known: dict[str, tuple[str, Shuffle]], leaf_id: str, stage: str, shuffle: Shuffle
) -> str:
    """Return how the order of a leaf differs from that of an earlier stage; empty: it does not."""
    first, other = known.setdefault(leaf_id, (stage, shuffle))
    if (other.sequence_length, other.window) == (shuffle.sequence_length, shuffle.window):
        return ""
    shown = "; ".join(
        f"shuffle_buffer_size {one.buffer_size}, max_samples_per_sequence {one.sequence_length}"
        for one in (other, shuffle)
    )
    return (
        f"is shuffled differently in the stages {first!r} and {stage!r} ({shown}): it cannot "
        f"continue where it was. Make them equal, or write `on_enter: restart`."
    )


def with_stage(item: Any, number: int, name: str) -> Any:
    """Return a batch with its stage, `(number, name)`, under `__stage__`.

    A dict gets the key; in a dataclass or attrs class with such a field it is set, in a copy.
    Batches of other types are returned unchanged.
    """
    if isinstance(item, dict):
        return {**item, STAGE_KEY: (number, name)}
    fields = getattr(type(item), "__dataclass_fields__", ())
    if STAGE_KEY in (attrs.fields_dict(type(item)) if attrs.has(type(item)) else fields):
        item = copy(item)
        object.__setattr__(item, STAGE_KEY, (number, name))
    return item


def with_data_end(stage: Stage, run: Context) -> Stage:
    """Return the stage, ending with its data if that ends first.

    Lanes have shares of unequal size, and all ranks must leave a stage at the same micro-batch. So
    a stage ends, in full steps, before the first micro-batch for which its lane has too few
    samples left. No communication is needed.

    run: `Context(seed=..., lanes=...)` of the run. Takes about 0.1 ms per lane with few leaves;
    reads no data. Raises SpecError if the end of the data cannot be computed, or if the data does
    not fill one step.
    """
    contexts = [stage.context(run.in_lane(lane)) for lane in range(run.lanes)]
    batches = [stage.of.items_per_lane(context) for context in contexts]
    step, lanes = stage.microbatches_per_step or 1, range(stage.begin, stage.begin + run.lanes)
    full = min(first + batches[first % run.lanes] * run.lanes for first in lanes) - stage.begin
    end = stage.begin + full // step * step
    if stage.end is not None and stage.end <= end:
        return stage
    if end == stage.begin:
        raise SpecError(
            f"its data does not fill one step: of {step} micro-batches, only {full} are full "
            f"before one of {run.lanes} lanes runs out of samples. Give it more data, or remove it"
        )
    unread, of = None, stage.of
    if isinstance(of, BatchSpec):
        samples = sum(of.of.items_per_lane(context.under("of")) for context in contexts)
        unread = samples - (end - stage.begin) * of.batch_size
    return evolve(stage, end=end, data_end=DataEnd(asked=stage.end, unread=unread))
