"""The plan of a run: when each stage plays, its size, and what changes between stages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from attrs import field, frozen

from energy_data.core.context import Context
from energy_data.core.spec import Spec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.stage import DEFAULT, Stage, stage_number
from energy_data.nodes.staged import StagedSpec

RULE = "=" * 60
SHOWN_LEAVES = 8
COUNTED_DRAWS = 1 << 20  # shares of leaves are computed from at most this many draws


@frozen
class PlannedLeaf:
    """What a stage draws of one leaf."""

    leaf: Leaf
    share: float | None  # of all draws of the stage; None: not known
    drawn: float | None  # samples; None: not known

    @property
    def epochs(self) -> float | None:
        """How often the stage reads the leaf."""
        return None if self.drawn is None else self.drawn / self.leaf.num_samples


@frozen
class RunPlan:
    """The stages of a run; a run without stages is one stage named `default`."""

    spec: Spec = field(repr=False)

    @cached_property
    def staged(self) -> StagedSpec | None:
        """The spec of the stages; None: the run has none."""
        return next((inner for _, inner in self.spec.walk() if isinstance(inner, StagedSpec)), None)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in their order."""
        if self.staged is None:
            return (Stage(name=DEFAULT, of=self.spec, begin=0),)
        return self.staged.stages

    @property
    def counts_steps(self) -> bool:
        """Whether stages begin and end at steps of any number of micro-batches."""
        return self.stages[0].counts == "steps"

    @cached_property
    def first_steps(self) -> list[int | None]:
        """The first optimizer step of each stage; None: the size of a step is not known."""
        found: list[int | None] = []
        following: int | None = 0
        for stage in self.stages:
            first = following if stage.microbatches_per_step else None
            first = stage.begin if self.counts_steps else first
            found.append(first)
            steps = stage.num_steps
            following = None if first is None or steps is None else first + steps
        return found

    @cached_property
    def leaves(self) -> list[list[PlannedLeaf]]:
        """The draws of each leaf in each stage, by id. Computed from the order; reads no data."""
        return [_planned_leaves(stage) for stage in self.stages]

    def number_of(self, batch: int) -> int:
        """Return the number of the stage of a micro-batch of the run; one past the last: ended.

        Where stages count steps, `batch` is the number of a step.
        """
        return stage_number(self.stages, batch)

    def stage_at(self, step: int) -> Stage | None:
        """Return the stage that makes an optimizer step, counted from 0; None after the end.

        Raises ValueError for a negative step, and if the size of a step is not known.
        """
        if step < 0:
            raise ValueError(f"step: must be >= 0, got {step}.")
        firsts = [first for first in self.first_steps if first is not None]
        if len(firsts) < len(self.stages):
            raise ValueError("the size of a step is not known: give microbatches_per_step.")
        number = bisect_right(firsts, step) - 1
        stage = self.stages[number]
        ended = stage.num_steps is not None and step >= firsts[number] + stage.num_steps
        return None if ended else stage

    def max_param(self, name: str) -> Any:
        """Return the largest value of a parameter over the stages, for the size of buffers.

        KeyError if no stage has it.
        """
        values = [one.params[name] for one in self.stages if one.params.get(name) is not None]
        if not values:
            raise KeyError(name)
        return max(values)

    def lines(self) -> Iterator[str]:
        """Yield the plan as text for people."""
        yield from (RULE, "STAGES OF THE RUN", RULE, f"Stages: {len(self.stages)}")
        for number, stage in enumerate(self.stages):
            yield from ("", f"Stage {number + 1}: {stage.name}")
            yield from (f"  {line}" for line in self._facts(number))
        yield RULE

    def _facts(self, number: int) -> Iterator[str]:
        """Yield lines about one stage."""
        stage, first, leaves = self.stages[number], self.first_steps[number], self.leaves[number]
        asked = f", asked for {stage.asked}" if stage.asked else ""
        if first is not None:
            end = None if stage.num_steps is None else first + stage.num_steps
            yield f"Steps: {_range(first, end)}{asked}"
            asked = ""
        if stage.counts == "microbatches":
            yield f"Micro-batches: {_range(stage.begin, stage.end)}{asked}"
        for name, amount in (("Samples", stage.num_samples), ("Tokens", stage.num_tokens)):
            if amount is not None:
                yield f"{name}: {short(amount)}"
        if note := data_end_note(stage):
            yield f"{note[0].upper()}{note[1:]}"
        yield f"On enter: {stage.on_enter}" + ("" if stage.seed is None else f", seed {stage.seed}")
        for name, value in stage.params.items():
            if value is not None:
                yield f"{name}: {_text(value)}"
        yield f"Leaves: {len(leaves)}"
        for planned in leaves[:SHOWN_LEAVES]:
            epochs = "" if planned.epochs is None else f", {planned.epochs:.3g} epochs"
            yield f"  - {planned.leaf.id}: {_percent(planned)} of the samples{epochs}"
        if len(leaves) > SHOWN_LEAVES:
            yield f"  ... and {len(leaves) - SHOWN_LEAVES} more"

    def changes(self, number: int) -> Iterator[str]:
        """Yield what changes from the stage before to stage `number`."""
        before, now = self.stages[number - 1], self.stages[number]
        was, is_ = ({**stage.params, "seed": stage.seed} for stage in (before, now))
        for name in dict.fromkeys([*was, *is_]):
            if was.get(name) != is_.get(name):
                yield f"{name}: {_text(was.get(name))} -> {_text(is_.get(name))}"
        pair = self.leaves[number - 1], self.leaves[number]
        drawn = [{planned.leaf.id: planned for planned in leaves} for leaves in pair]
        for leaf_id in sorted(drawn[0].keys() | drawn[1].keys()):
            old, new = (_percent(found.get(leaf_id)) for found in drawn)
            if old != new:
                yield f"leaf {leaf_id}: {old} -> {new} of the samples"
        if now.on_enter == "restart":
            yield "its leaves start again, in an order of its own"


def _planned_leaves(stage: Stage) -> list[PlannedLeaf]:
    trees = list(stage.order_trees)
    if len(trees) != 1:  # their shares are decided above reading
        found = {leaf.id: PlannedLeaf(leaf, None, None) for _, leaf in stage.leaves}
        return [found[leaf_id] for leaf_id in sorted(found)]
    node, samples = trees[0].build(Context()), stage.num_samples
    draws = max(1, min(samples or COUNTED_DRAWS, COUNTED_DRAWS))
    shares = [count / draws for count in node.plan.counts(draws).tolist()]
    one_each = not any(inner.kind in ("pack", "select_pack") for _, inner in stage.of.walk())
    return [
        PlannedLeaf(leaf, share, samples * share if samples and one_each else None)
        for leaf, share in zip(node.leaves, shares, strict=True)
    ]


def data_end_note(stage: Stage) -> str:
    """Return a note that a stage ends with its data; empty if it does not."""
    end = stage.data_end
    if end is None:
        return ""
    asked = "" if end.asked is None else f", before micro-batch {end.asked:,} that was asked for"
    if not end.unread:
        left = "" if end.unread is None else "; none of their samples is left"
        return f"ends with its data{asked}{left}"
    fate = "come first when their datasets are read again"
    if stage.on_enter == "restart":
        fate = "are not read, because the stage has an order of its own"
    return f"ends with its data{asked}; {end.unread:,} of their samples are left and {fate}"


def _range(begin: int, end: int | None) -> str:
    return f"{begin:,} -> the end" if end is None else f"{begin:,} -> {end:,} ({end - begin:,})"


def _percent(planned: PlannedLeaf | None) -> str:
    if planned is None:
        return "0 %"
    return "some" if planned.share is None else f"{100 * planned.share:.3g} %"


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def short(amount: float) -> str:
    """Return an amount with a suffix: 409.60B."""
    for size, suffix in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if amount >= size:
            return f"{amount / size:.2f}{suffix}"
    return f"{amount:,.0f}"
