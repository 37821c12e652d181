"""`staged` and `docs_per_step` as written: what stands above batching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Literal

from attrs import fields, frozen

from energy_data.config.keys import UnopenedSpec
from energy_data.core import recipe
from energy_data.core.recipe import Child, FieldProblem, Group, Yaml
from energy_data.core.rules import AMOUNT, COUNT, MAPPING, NAME, TEXT, one_of
from energy_data.core.spec import Spec
from energy_data.nodes.stage import DEFAULT, OnEnter, OnExhausted, Resume
from energy_data.order.step_rules import DocsPerStep

Unit = Literal["steps", "microbatches", "samples", "tokens", "epochs"]
UNITS: tuple[Unit, ...] = ("steps", "microbatches", "samples", "tokens", "epochs")


@frozen(kw_only=True, eq=False)
class Ramp:
    """The keys below `ramp`."""

    kind: Literal["linear", "cosine"] = recipe.key(
        one_of("linear", "cosine"),
        "Shape of the ramp: a straight line, or half a cosine wave.",
        "kind: cosine",
        default="linear",
    )
    over: Fraction = recipe.key(AMOUNT, "Length of the ramp, in `unit`.", "over: 2K")


@frozen(kw_only=True, eq=False)
class StagePart:
    """A child of `staged`."""

    of: Spec
    name: str = recipe.key(
        NAME, "Name of the stage: seeds and states are kept by it.", "name: anneal"
    )
    start: Fraction | None = recipe.key(
        AMOUNT,
        "Where it begins, in `unit`. Default: where the one before ends.",
        "start: 1000",
        default=None,
    )
    end: Fraction | None = recipe.key(
        AMOUNT,
        "Where it ends: the first that is no longer its own. Default: where the next begins.",
        "end: 20000",
        default=None,
    )
    length: Fraction | None = recipe.key(
        AMOUNT, "How long it lasts, in place of `end`.", "for: 20B", default=None, name="for"
    )
    on_enter: OnEnter | None = recipe.key(
        one_of("continue", "restart"),
        "Leaves of earlier stages continue where they were, or restart in another order. "
        "Default: that of `staged`.",
        "on_enter: restart",
        default=None,
    )
    on_exhausted: OnExhausted | None = recipe.key(
        one_of("repeat", "advance", "error"),
        "After one pass over its data, the stage starts the next pass, ends, or is an error. "
        "Default: that of `staged`.",
        "on_exhausted: advance",
        default=None,
    )
    seed: int | None = recipe.key(
        COUNT, "Seed of the stage, in place of its name.", "seed: 7", default=None
    )
    ramp: Ramp | None = recipe.key(
        Group(Ramp),
        "Blend from the mixture of the stage before into this one, sample by sample. Both "
        "stages need the same `params`.",
        "ramp: {kind: linear, over: 2000}",
        default=None,
    )
    params: Mapping[str, Any] = recipe.key(
        MAPPING,
        "What differs in this stage: `batch_size`, `shuffle_buffer_size`, "
        "`max_samples_per_sequence`, `microbatches_per_step`, `global_batch_size`, and the "
        "parameters of the task encoder.",
        "params: {batch_size: 1, seq_len: 32768}",
        factory=dict,
    )


@frozen(kw_only=True)
class StageBounds:
    """A stage in its place."""

    name: str
    number: int | None  # among the stages as written; None: it is the default
    start: Fraction
    end: Fraction | None  # None: it has none but that of its data


@frozen(kw_only=True, eq=False)
class StagedRecipe(UnopenedSpec):
    """`staged`: one node after another, as written; it compiles to a `StagedSpec`."""

    kind = "staged"
    keeps_place: ClassVar[bool] = True
    children_are_sequential: ClassVar[bool] = True
    yaml: ClassVar[Yaml] = Yaml(
        about="One node after another, each for a part of the run, switched exactly.",
        example="staged: {stages: [{name: general, end: 1000, path: ./web}, "
        "{name: anneal, path: ./books}]}",
    )

    unit: Unit = recipe.key(
        one_of(*UNITS),
        "What `start`, `end` and `for` count; of all ranks. Tokens are `batch_size` times "
        "`seq_len` per micro-batch.",
        "unit: tokens",
        default="steps",
    )
    microbatches_per_step: int | None = recipe.key(
        COUNT,
        "Micro-batches of all ranks in an optimizer step. Default: that of the call.",
        "microbatches_per_step: 32",
        default=None,
    )
    global_batch_size: int | None = recipe.key(
        COUNT,
        "Samples of all ranks in a step, in place of `microbatches_per_step`.",
        "global_batch_size: 1024",
        default=None,
    )
    on_enter: OnEnter | None = recipe.key(
        one_of("continue", "restart"),
        "`on_enter` of stages that do not set it. Default: continue.",
        "on_enter: restart",
        default=None,
    )
    on_exhausted: OnExhausted | None = recipe.key(
        one_of("repeat", "advance", "error"),
        "After one pass over its data, a stage starts the next pass, ends (in whole steps), "
        "or is an error. Default: repeat.",
        "on_exhausted: advance",
        default=None,
    )
    resume: Resume = recipe.key(
        one_of("strict", "ablation"),
        "Which edits a saved state accepts: of later stages only, or also a new stage that "
        "begins exactly where the state was saved.",
        "resume: ablation",
        default="strict",
    )
    at: str | None = recipe.key(
        TEXT, "In validation: the one stage whose data is read.", "at: anneal", default=None
    )
    total: Fraction | None = recipe.key(
        AMOUNT,
        "Length of the run in `unit`, to check the stages by.",
        "total: 120000",
        default=None,
    )
    default: Spec | None = recipe.child(
        "What is played before the first stage.", "default: {path: ./base}", default=None
    )
    stages: tuple[StagePart, ...] = recipe.children(
        StagePart,
        "The stages, each a node with a `name` and where it ends.",
        "stages: [{name: general, end: 1000, path: ./web}, {name: anneal, path: ./books}]",
    )

    @property
    def children(self) -> Mapping[str, Spec]:
        """The children by name."""
        first = {} if self.default is None else {DEFAULT: self.default}
        return {**first, **{stage.name: stage.of for stage in self.stages}}

    def check(self) -> Iterator[FieldProblem]:
        """Yield the problems of the fields."""
        if self.microbatches_per_step is not None and self.global_batch_size is not None:
            yield "", "both `microbatches_per_step` and `global_batch_size` are given. Keep one."
        if self.unit != "epochs":
            yield from self._check_whole()
        yield from self._check_names()
        starts = _starts(self)
        yield from self._check_stages(dict(starts))
        if starts:
            yield from self._check_sequence([(start, number) for number, start in starts])

    def _check_whole(self) -> Iterator[FieldProblem]:
        for number, stage in enumerate(self.stages):
            for key, value in (("start", stage.start), ("end", stage.end), ("for", stage.length)):
                if value is not None and value.denominator != 1:
                    problem = f"must be whole in {self.unit}, found {float(value):g}. Round it."
                    yield f"stages[{number}].{key}", problem

    def _check_names(self) -> Iterator[FieldProblem]:
        known: set[str] = set()
        for number, stage in enumerate(self.stages):
            if self.default is not None and stage.name == DEFAULT:
                yield self._at(number, "name", "the name is that of `default`. Choose another.")
            if stage.name in known:
                yield self._at(number, "name", "an earlier stage has this name. Choose another.")
            known.add(stage.name)

    def _check_stages(self, starts: Mapping[int, Fraction]) -> Iterator[FieldProblem]:
        """Yield the problems of the bounds of each stage by itself."""
        for number, stage in enumerate(self.stages):
            if stage.end is not None and stage.length is not None:
                yield self._at(number, "for", "both `end` and `for` are given. Keep one.")
            if (start := starts.get(number)) is None:
                problem = "its beginning is not known. Give its `start`, or the `end` before it."
                yield self._at(number, "name", problem)
                continue
            end = _end(stage, start, None)
            if end is not None and end <= start:
                problem = (
                    f"it ends at {_text(end)}, but begins at {_text(start)}. Let it end later, or "
                    "remove it."
                )
                yield self._at(number, "for" if stage.end is None else "end", problem)

    def _check_sequence(self, starts: list[tuple[Fraction, int]]) -> Iterator[FieldProblem]:
        """Yield gaps and overlaps of the stages, and conflicts with `default` and `total`."""
        starts.sort()
        first, number = starts[0]
        if self.default is not None and first == 0:
            problem = "`default` would never run, the first stage begins at 0. Remove it."
            yield "default", problem
        if first > 0 and self.default is None:
            problem = (
                f"no stage covers {self.unit} 0 to {_text(first)}. Begin at 0, or add a `default` "
                "to `staged`."
            )
            yield self._at(number, "start", problem)
        for (start, one), (following, other) in pairwise(starts):
            gap = self._gap(self.stages[one], start, self.stages[other], following)
            if gap is not None:
                yield self._at(other, "start", f"it begins at {_text(following)}, {gap}")
        if self.total is not None:
            yield from self._check_total(self.total, starts)

    def _gap(
        self, one: StagePart, start: Fraction, other: StagePart, following: Fraction
    ) -> str | None:
        """Return the problem between a stage and the next one."""
        end = _end(one, start, following)
        open_ended = one.end is None and one.length is None and other.start is None
        if self.advances(one) and open_ended:
            return None
        if start == following:
            return f"as stage {one.name!r} does. One of them would never run."
        if end is not None and end < following:
            return (
                f"but stage {one.name!r} ends at {_text(end)}: no stage covers {self.unit} "
                f"{_text(end)} to {_text(following)}. Close the gap."
            )
        if end is not None and end > following:
            return (
                f"but stage {one.name!r} ends at {_text(end)}: they overlap. Let one end where the "
                "other begins."
            )
        return None

    def _check_total(
        self, total: Fraction, starts: Sequence[tuple[Fraction, int]]
    ) -> Iterator[FieldProblem]:
        start, last = starts[-1]
        end = _end(self.stages[last], start, None)
        if end is not None and end < total:
            problem = (
                f"it is the last and ends at {_text(end)}, but the run at {_text(total)}. Remove "
                "its end."
            )
            yield self._at(last, "for" if self.stages[last].end is None else "end", problem)
        for start, number in starts:
            if start >= total:
                problem = (
                    f"it would never run, the run ends at {_text(total)} {self.unit}. Remove it."
                )
                yield self._at(number, "start", problem)

    def _at(self, number: int, key: str, problem: str) -> FieldProblem:
        return f"stages[{number}].{key}", f"stage {self.stages[number].name!r}: {problem}"

    def advances(self, stage: StagePart) -> bool:
        """Return whether a stage ends with its data, so that the next one needs no start."""
        return (stage.on_exhausted or self.on_exhausted) == "advance"

    @property
    def bounds(self) -> list[StageBounds]:
        """The stages in their order, with their bounds in `unit`."""
        starts = sorted((start, number) for number, start in _starts(self))
        found = [
            StageBounds(
                name=self.stages[number].name,
                number=number,
                start=start,
                end=_end(self.stages[number], start, _following(starts, at)),
            )
            for at, (start, number) in enumerate(starts)
        ]
        if self.default is not None:
            zero = Fraction(0)
            found.insert(0, StageBounds(name=DEFAULT, number=None, start=zero, end=starts[0][0]))
        return found


def _starts(staged: StagedRecipe) -> list[tuple[int, Fraction]]:
    """Return (number, start) of the stages whose start is known."""
    starts: list[tuple[int, Fraction]] = []
    before: Fraction | None = Fraction(0)
    for number, stage in enumerate(staged.stages):
        start = before if stage.start is None else stage.start
        if start is not None:
            starts.append((number, start))
        before = None if start is None else _end(stage, start, None)
        if before is None and staged.advances(stage):
            before = start  # the next one follows, wherever this one ends
    return starts


def _following(starts: Sequence[tuple[Fraction, int]], at: int) -> Fraction | None:
    """Return the start of the stage after number `at`, if it has one."""
    if at + 1 == len(starts) or starts[at + 1][0] == starts[at][0]:
        return None
    return starts[at + 1][0]


def _end(stage: StagePart, start: Fraction, following: Fraction | None) -> Fraction | None:
    if stage.length is not None:
        return start + stage.length
    return following if stage.end is None else stage.end


def _text(amount: Fraction) -> str:
    return f"{int(amount):,}" if amount.denominator == 1 else f"{float(amount):g}"


@frozen(kw_only=True, eq=False)
class DocsPerStepSpec(DocsPerStep, UnopenedSpec):
    """`docs_per_step`: the rules of steps over all of a split; the loader applies them."""

    kind = "docs_per_step"
    keeps_place: ClassVar[bool] = True
    yaml: ClassVar[Yaml] = Yaml(
        about="Optimizer steps that hold a number of documents over all ranks; at the top of a "
        "split.",
        example="docs_per_step: {target: 256, of: {path: ./coco}}",
        under_split_only=True,
        advice="It groups the micro-batches of the run: put it over all of the split.",
    )

    below: Spec = recipe.key(
        Child(), "What the micro-batches come from.", "of: {path: ./coco}", name="of"
    )

    @property
    def children(self) -> Mapping[str, Spec]:
        """The children by name."""
        return {"of": self.below}

    @property
    def rules(self) -> DocsPerStep:
        """The rules for the loader."""
        return DocsPerStep(**{one.name: getattr(self, one.name) for one in fields(DocsPerStep)})
