"""`staged` and `docs_per_step` as written: what stands above batching."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

from attrs import fields, frozen

from energy_data.config.keys import UnopenedSpec
from energy_data.core import recipe
from energy_data.core.recipe import (
    AMOUNT,
    MAPPING,
    NAME,
    SEED,
    Child,
    FieldProblem,
    Group,
    Yaml,
    one_of,
)
from energy_data.core.spec import Spec
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.references import OrderSpec
from energy_data.nodes.stage import DEFAULT, OnEnter, OnExhausted, Resume
from energy_data.order.schedule import Schedule
from energy_data.order.step_rules import DocsPerStep

Unit = Literal["steps", "microbatches", "samples", "tokens", "epochs"]


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
    on_enter: OnEnter = recipe.key(
        one_of("continue", "restart"),
        "Leaves of earlier stages continue where they were, or restart in another order.",
        "on_enter: restart",
        default="continue",
    )
    on_exhausted: OnExhausted = recipe.key(
        one_of("repeat", "advance", "error"),
        "After one pass over its data, the stage starts the next pass, ends (in whole steps), or "
        "is an error.",
        "on_exhausted: advance",
        default="repeat",
    )
    seed: int | None = recipe.key(
        SEED, "Seed of the stage, in place of its name.", "seed: 7", default=None
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
        "`max_samples_per_sequence`, `microbatches_per_step`, and the parameters of the task "
        "encoder.",
        "params: {batch_size: 1, seq_len: 32768}",
        factory=dict,
    )

    def ends_at(self, start: Fraction) -> Fraction | None:
        """Return its end, if it begins at `start`; None: it has none of its own."""
        return self.end if self.length is None else start + self.length


@frozen(kw_only=True)
class StageBounds:
    """A stage in its place."""

    stage: StagePart
    path: str  # of its keys below `staged`
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
        one_of(*get_args(Unit)),
        "What `start`, `end` and `for` count; of all ranks. Tokens are `batch_size` times "
        "`seq_len` per micro-batch.",
        "unit: tokens",
        default="steps",
    )
    resume: Resume = recipe.key(
        one_of("strict", "ablation"),
        "Which edits a saved state accepts: of later stages only, or also a new stage that "
        "begins exactly where the state was saved.",
        "resume: ablation",
        default="strict",
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
    def starts(self) -> list[tuple[Fraction, int]]:
        """(start, number) of the stages whose start is known, in the order of the run."""
        starts: list[tuple[Fraction, int]] = []
        before: Fraction | None = Fraction(0)
        for number, stage in enumerate(self.stages):
            start = before if stage.start is None else stage.start
            if start is not None:
                starts.append((start, number))
            before = None if start is None else stage.ends_at(start)
            if before is None and stage.on_exhausted == "advance":
                before = start  # the next one follows, wherever this one ends
        return sorted(starts)

    @property
    def bounds(self) -> list[StageBounds]:
        """The stages in their order, with their bounds in `unit`."""
        starts, found = self.starts, []
        for at, (start, number) in enumerate(starts):
            stage = self.stages[number]
            end = stage.ends_at(start)
            following = next((later for later, _ in starts[at + 1 :]), start)
            if end is None and following != start:
                end = following
            path = f"stages[{number}]"
            found.append(StageBounds(stage=stage, path=path, start=start, end=end))
        if self.default is not None:
            stage, zero = StagePart(of=self.default, name=DEFAULT), Fraction(0)
            found.insert(0, StageBounds(stage=stage, path="default", start=zero, end=starts[0][0]))
        return found

    def check(self) -> Iterator[FieldProblem]:
        """Yield the problems of the fields."""
        starts, names = self.starts, set()
        known = {number: start for start, number in starts}
        for number, stage in enumerate(self.stages):
            if self.default is not None and stage.name == DEFAULT:
                yield self._at(number, "name", "the name is that of `default`. Choose another.")
            if stage.name in names:
                yield self._at(number, "name", "an earlier stage has this name. Choose another.")
            names.add(stage.name)
            for key, problem in self._wrong_bounds(stage, known.get(number)):
                yield self._at(number, key, problem)
        if starts:
            yield from self._check_sequence(starts)

    def _check_sequence(self, starts: list[tuple[Fraction, int]]) -> Iterator[FieldProblem]:
        """Yield gaps and overlaps of the stages, and conflicts with `default` and `total`."""
        first, number = starts[0]
        if first == 0 and self.default is not None:
            problem = "`default` would never run, the first stage begins at 0. Remove it."
            yield "default", problem
        if first > 0 and self.default is None:
            problem = f"no stage covers {self.unit} 0 to {_text(first)}. Begin at 0, or add a"
            yield self._at(number, "start", f"{problem} `default` to `staged`.")
        for one, other in pairwise(starts):
            if gap := self._gap(*one, *other):
                problem = f"it begins at {_text(other[0])}, {gap}"
                yield self._at(other[1], "start", problem)
        start, last = starts[-1]
        end = self.stages[last].ends_at(start)
        if self.total is not None and end is not None and end < self.total:
            problem = f"it is the last and ends at {_text(end)}, but the run at {_text(self.total)}"
            key = "end" if self.stages[last].length is None else "for"
            yield self._at(last, key, f"{problem}. Remove its end.")

    def _wrong_bounds(self, stage: StagePart, start: Fraction | None) -> Iterator[FieldProblem]:
        """Yield the problems of the bounds of a stage by itself. start: None if not known."""
        for key, value in (("start", stage.start), ("end", stage.end), ("for", stage.length)):
            if value is not None and value.denominator != 1 and self.unit != "epochs":
                yield key, f"must be whole in {self.unit}, found {float(value):g}. Round it."
        if stage.end is not None and stage.length is not None:
            yield "for", "both `end` and `for` are given. Keep one."
        if start is None:
            problem = "its beginning is not known. Give its `start`, or the `end` before it."
            yield "name", problem
            return
        end = stage.ends_at(start)
        if end is not None and end <= start:
            problem = f"it ends at {_text(end)}, but begins at {_text(start)}. Let it end later, or"
            yield "end" if stage.length is None else "for", f"{problem} remove it."
        if self.total is not None and start >= self.total:
            problem = f"it would never run, the run ends at {_text(self.total)} {self.unit}."
            yield "start", f"{problem} Remove it."

    def _gap(self, start: Fraction, number: int, following: Fraction, other: int) -> str | None:
        """Return the problem between a stage and the next one."""
        stage = self.stages[number]
        end = stage.ends_at(start)
        follows = end is None and self.stages[other].start is None
        if (stage.on_exhausted == "advance" and follows) or following == end != start:
            return None
        if start == following:
            return f"as stage {stage.name!r} does. One of them would never run."
        if end is None:
            return None
        problem = f"but stage {stage.name!r} ends at {_text(end)}: "
        if end < following:
            covers = f"no stage covers {self.unit} {_text(end)} to {_text(following)}"
            return f"{problem}{covers}. Close the gap."
        return f"{problem}they overlap. Let one end where the other begins."

    def _at(self, number: int, key: str, problem: str) -> FieldProblem:
        return f"stages[{number}].{key}", f"stage {self.stages[number].name!r}: {problem}"


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
    def rules(self) -> DocsPerStep:
        """The rules for the loader."""
        return DocsPerStep(**{one.name: getattr(self, one.name) for one in fields(DocsPerStep)})


def below_steps(tree: Spec) -> Spec:
    """Return the tree below a node that groups micro-batches into steps; the loader does that."""
    return tree.below if isinstance(tree, DocsPerStepSpec) else tree


def mixtures(tree: Spec) -> Iterator[Spec]:
    """Yield the mixture of a split, or of each of its stages."""
    below = below_steps(tree)
    yield from below.children.values() if isinstance(below, StagedRecipe) else [below]


def stage_params(tree: Spec) -> dict[str, Mapping[str, Any]]:
    """Return the parameters that each stage of a split changes, by its name."""
    staged = below_steps(tree)
    if not isinstance(staged, StagedRecipe):
        return {}
    return {stage.name: stage.params for stage in staged.stages}


def changed_params(tree: Spec) -> list[str]:
    """Return the names of the parameters that the stages of a split change."""
    return [name for params in stage_params(tree).values() for name in params]


def ramped(
    previous: OrderSpec, following: OrderSpec, *, samples: int, kind: Literal["linear", "cosine"]
) -> BlendSpec:
    """Return a blend that goes from `previous` to `following` over the first `samples`.

    While f rises from 0 to 1 (in a straight line, or half a cosine wave), the share of a leaf is
    (1 - f) times its share in `previous` plus f times its share in `following`. Each lane follows
    the integral of that. A leaf of both is drawn from as one.
    """
    down, up = (Schedule(kind, ((0, 1 - f), (samples, f)), "samples") for f in (0, 1))
    return BlendSpec((Part(previous, down), Part(following, up)))
