"""The plan of a run: when each stage plays, its size, and what changes between stages."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import field, frozen

from energy_data.core.context import Context
from energy_data.core.spec import Spec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import ReferencesSpec
from energy_data.nodes.stage import DEFAULT, Stage
from energy_data.nodes.staged import StagedSpec

RULE = "=" * 60
SHOWN_LEAVES = 8
COUNTED_DRAWS = 1 << 20  # shares of leaves are computed from at most this many draws


@frozen(kw_only=True)
class PlannedStage:
    """One stage of the plan. Amounts are over all ranks; None: without end, or not known."""

    number: int
    stage: Stage
    first_step: int | None  # None: the size of a step is not known

    @property
    def name(self) -> str:
        """The name of the stage."""
        return self.stage.name

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of its pipeline."""
        return self.stage.params

    @property
    def microbatches(self) -> int | None:
        """The number of micro-batches."""
        return self.stage.num_batches

    @property
    def steps(self) -> int | None:
        """The number of optimizer steps."""
        if self.stage.counts == "steps":
            return None if self.stage.end is None else self.stage.end - self.stage.begin
        per_step = self.stage.microbatches_per_step
        return self.microbatches // per_step if self.microbatches is not None and per_step else None

    @property
    def samples(self) -> int | None:
        """The number of samples (packs, where it packs)."""
        size = self.params.get("batch_size")
        return None if size is None or self.microbatches is None else self.microbatches * int(size)

    @property
    def tokens(self) -> int | None:
        """The number of tokens, `seq_len` for each sample."""
        length = self.params.get("seq_len")
        return None if length is None or self.samples is None else self.samples * int(length)

    @cached_property
    def leaves(self) -> list[PlannedLeaf]:
        """The draws of each leaf, by id. Computed from the order; reads no data."""
        trees = list(self.stage.order_trees)
        if len(trees) != 1:  # their shares are decided above reading
            found = {leaf.id: leaf for tree in trees for leaf in _leaves(tree)}
            return [PlannedLeaf(leaf, None, None) for _, leaf in sorted(found.items())]
        samples = self.samples
        shares = _shares(trees[0], samples)
        one_each = not any(inner.kind in ("pack", "select_pack") for inner in _above(self))
        return [
            PlannedLeaf(leaf, share, samples * share if samples and one_each else None)
            for leaf, share in zip(_leaves(trees[0]), shares, strict=True)
        ]


@frozen
class PlannedLeaf:
    """What a stage draws of one leaf."""

    leaf: Leaf
    share: float | None  # of all draws of the stage
    drawn: float | None  # samples

    @property
    def epochs(self) -> float | None:
        """How often the stage reads the leaf."""
        return None if self.drawn is None else self.drawn / self.leaf.num_samples


@frozen
class Plan:
    """The stages of a run; a run without stages is one stage named `default`."""

    spec: Spec = field(repr=False)

    @cached_property
    def stages(self) -> list[PlannedStage]:
        """The stages, in their order."""
        steps: int | None = 0
        planned: list[PlannedStage] = []
        for number, stage in enumerate(_stages(self.spec)):
            first = steps if stage.microbatches_per_step else None
            first = stage.begin if stage.counts == "steps" else first
            one = PlannedStage(number=number, stage=stage, first_step=first)
            steps = None if first is None or one.steps is None else first + one.steps
            planned.append(one)
        return planned

    @property
    def is_staged(self) -> bool:
        """Whether the run has stages."""
        return any(isinstance(inner, StagedSpec) for _, inner in self.spec.walk())

    @property
    def counts_steps(self) -> bool:
        """Whether stages begin and end at steps of any number of micro-batches."""
        return self.stages[0].stage.counts == "steps"

    def stage_of(self, microbatch: int) -> PlannedStage | None:
        """Return the stage of a micro-batch of the run; None after the end.

        Where stages count steps (`Stage.counts`), `microbatch` is the number of a step.
        """
        begins = [one.stage.begin for one in self.stages]
        one = self.stages[bisect_right(begins, microbatch) - 1]
        return None if one.stage.end is not None and microbatch >= one.stage.end else one

    def stage_at(self, step: int) -> PlannedStage | None:
        """Return the stage that makes an optimizer step, counted from 0; None after the end.

        Raises ValueError for a negative step, and if the size of a step is not known.
        """
        if step < 0:
            raise ValueError(f"step: must be >= 0, got {step}.")
        known = [one for one in self.stages if one.first_step is not None]
        if len(known) < len(self.stages):
            raise ValueError("the size of a step is not known: give microbatches_per_step.")
        at = known[bisect_right([one.first_step or 0 for one in known], step) - 1]
        if at.stage.counts == "steps":
            return self.stage_of(step)
        batches = (step - (at.first_step or 0)) * (at.stage.microbatches_per_step or 1)
        return self.stage_of(at.stage.begin + batches)

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
        for one in self.stages:
            yield from ("", f"Stage {one.number + 1}: {one.name}", *_described(one))
        yield RULE

    def changes(self, number: int) -> Iterator[str]:
        """Yield what changes from the stage before to stage `number`."""
        before, now = self.stages[number - 1], self.stages[number]
        ours = {**now.params, "seed": now.stage.seed}
        theirs = {**before.params, "seed": before.stage.seed}
        for name in dict.fromkeys([*theirs, *ours]):
            if theirs.get(name) != ours.get(name):
                yield f"{name}: {_text(theirs.get(name))} -> {_text(ours.get(name))}"
        was = {one.leaf.id: one for one in before.leaves}
        is_ = {one.leaf.id: one for one in now.leaves}
        for leaf_id in sorted(was.keys() | is_.keys()):
            pair = [_percent(found.get(leaf_id)) for found in (was, is_)]
            if pair[0] != pair[1]:
                yield f"leaf {leaf_id}: {pair[0]} -> {pair[1]} of the samples"
        if now.stage.on_enter == "restart":
            yield "its leaves start again, in an order of its own"


def _stages(spec: Spec) -> Sequence[Stage]:
    for _, inner in spec.walk():
        if isinstance(inner, StagedSpec):
            return inner.stages
    return [Stage(name=DEFAULT, of=spec, begin=0)]


def _above(one: PlannedStage) -> Iterator[Spec]:
    return (inner for _, inner in one.stage.of.walk())


def _leaves(tree: ReferencesSpec) -> list[Leaf]:
    return tree.build(Context()).leaves


def _shares(tree: ReferencesSpec, samples: int | None) -> list[float]:
    """Return the share of each leaf in the draws."""
    node = tree.build(Context())
    node.cursor.draws = max(1, min(samples or COUNTED_DRAWS, COUNTED_DRAWS))
    counts: list[int] = node.ledger().tolist()
    return [count / node.cursor.draws for count in counts]


def _described(one: PlannedStage) -> Iterator[str]:
    stage = one.stage
    asked = f", asked for {stage.asked}" if stage.asked else ""
    if one.first_step is not None:
        end = None if one.steps is None else one.first_step + one.steps
        yield f"  Steps: {_range(one.first_step, end)}{asked}"
        asked = ""
    if stage.counts == "microbatches":
        yield f"  Micro-batches: {_range(stage.begin, stage.end)}{asked}"
    for name, amount in (("Samples", one.samples), ("Tokens", one.tokens)):
        if amount is not None:
            yield f"  {name}: {short(amount)}"
    if note := data_end_note(stage):
        yield f"  {note[0].upper()}{note[1:]}"
    yield f"  On enter: {stage.on_enter}" + ("" if stage.seed is None else f", seed {stage.seed}")
    for name, value in stage.params.items():
        if value is not None:
            yield f"  {name}: {_text(value)}"
    yield f"  Leaves: {len(one.leaves)}"
    for planned in one.leaves[:SHOWN_LEAVES]:
        epochs = "" if planned.epochs is None else f", {planned.epochs:.3g} epochs"
        yield f"    - {planned.leaf.id}: {_percent(planned)} of the samples{epochs}"
    if len(one.leaves) > SHOWN_LEAVES:
        yield f"    ... and {len(one.leaves) - SHOWN_LEAVES} more"


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


__all__ = ["Plan", "PlannedLeaf", "PlannedStage", "data_end_note", "short"]
