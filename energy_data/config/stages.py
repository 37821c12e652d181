"""Compiling `staged`: recipes of stages become the stages of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.grammar import Origins
from energy_data.config.leaves import LeafUse, leaf_uses
from energy_data.config.stage_lengths import Builder, Elapsed, StageBody, StageLengths
from energy_data.config.staged import DocsPerStepSpec, StageBounds, StagedRecipe
from energy_data.core.context import Context
from energy_data.core.rules import did_you_mean, listed
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.references import OrderSpec
from energy_data.nodes.stage import (
    OnEnter,
    OnExhausted,
    Stage,
    WrongBody,
    with_data_end,
    wrong_bodies,
)
from energy_data.nodes.staged import StagedSpec

# Reported of every stage, and kept in states; of the other parameters, those that a stage changes.
BUILDER_PARAMS = (
    "batch_size",
    "seq_len",
    "shuffle_buffer_size",
    "max_samples_per_sequence",
    "microbatches_per_step",
    "packing_buffer_size",
)
STEP_SIZES = ("microbatches_per_step", "global_batch_size")
EPOCHS_KEY = "shuffle_over_epochs_multiplier"


def below_steps(tree: Spec) -> Spec:
    """Return the tree below a node that groups micro-batches into steps; the loader does that."""
    return tree.below if isinstance(tree, DocsPerStepSpec) else tree


def changed_params(tree: Spec) -> list[str]:
    """Return the names of the parameters that the stages of a split change."""
    staged = below_steps(tree)
    if not isinstance(staged, StagedRecipe):
        return []
    return [name for stage in staged.stages for name in stage.params]


def counts_steps(tree: Spec, builder: Builder[Any]) -> bool:
    """Return whether the stages of a split count the steps of `docs_per_step`.

    They do with `unit: steps`, if steps are exact or nothing else gives the size of a step.
    """
    staged = below_steps(tree)
    if not isinstance(tree, DocsPerStepSpec) or not isinstance(staged, StagedRecipe):
        return False
    if staged.unit != "steps":
        return False
    sizes = [staged.microbatches_per_step, staged.global_batch_size, builder.microbatches_per_step]
    has_size = any(size is not None for size in sizes) or not {*STEP_SIZES}.isdisjoint(
        changed_params(tree)
    )
    return tree.mode == "exact" or not has_size


def with_step_size(builder: Builder[Any], sizes: Mapping[str, Any]) -> Builder[Any]:
    """Return the builder with the size of a step. Raises SpecError if it is impossible."""
    if not sizes:
        return builder
    if len(sizes) > 1:
        raise SpecError("both `microbatches_per_step` and `global_batch_size` are given. Keep one.")
    ((name, value),) = sizes.items()
    if type(value) is not int or value < 1:
        raise SpecError(f"{name}: must be a whole number >= 1, got {value!r}.")
    if name == "global_batch_size":
        if value % builder.samples_per_batch:
            raise SpecError(
                f"global_batch_size: must be a multiple of the batch size "
                f"{builder.samples_per_batch}, got {value}."
            )
        value //= builder.samples_per_batch
    return builder.with_step_size(value)


def stage_of_validation(
    staged: StagedRecipe, diagnostics: Diagnostics, origins: Origins
) -> Spec | None:
    """Return the one stage that validation reads; None: a problem was reported."""
    names = list(staged.children)
    if staged.at is None:
        problem = f"validation reads one stage, found {listed(names)}."
        place = origins.of(staged)
        advice = "Add `at:` with the name of one."
        diagnostics.report(place.place, place.where, f"{problem} {advice}")
        return None
    if staged.at not in names:
        near = did_you_mean(staged.at, names)
        advice = f"Did you mean {near!r}?" if near else f"There are {listed(names)}."
        origins.report(diagnostics, staged, "at", f"there is no stage {staged.at!r}. {advice}")
        return None
    return staged.children[staged.at]


@frozen(kw_only=True)
class StageCompiler:
    """Compiles the stages of a run."""

    staged: StagedRecipe
    builder: Builder[Any]  # of a stage without parameters
    order: Callable[[Spec], OrderSpec | None]  # opens the leaves; None: problems were reported
    diagnostics: Diagnostics
    origins: Origins
    run: Context | None  # its seed and its lanes; None: these are not known
    counts_steps: bool  # whether stages count steps of any size, not micro-batches

    @property
    def lengths(self) -> StageLengths:
        """Computes the lengths of the stages."""
        return StageLengths(self.diagnostics, self.origins, self.staged)

    def spec(self) -> Spec | None:
        """Return the stages of the run; None: problems were reported."""
        before, origin = len(self.diagnostics), self.origins.of(self.staged)
        if self.builder.finite:
            problem = "stages need an endless stream. Remove `repeat=False`."
            self.diagnostics.report(origin.place, origin.where, problem)
            return None
        if self.staged.at is not None:
            problem = "`at` selects a stage for validation; training runs all stages. Remove it."
            self.origins.report(self.diagnostics, self.staged, "at", problem)
        self.check_epochs()
        stages = tuple(self.stages())
        if len(self.diagnostics) == before:
            for wrong in wrong_bodies(stages):
                self.report_body(wrong)
        if len(self.diagnostics) > before:
            return None
        return StagedSpec(stages=stages, resume=self.staged.resume)

    def report_body(self, wrong: WrongBody) -> None:
        """Report a problem of a stage at the leaf in question, or else at the stages."""
        origin = self.origins.of(self.staged)
        place, where = origin.place, origin.where
        for leaf in leaf_uses(self.staged.children[wrong.stage]):
            if leaf.id == wrong.leaf:
                found = self.origins.of(leaf.recipe)
                place, where = found.locate(leaf.recipe.kind)[0], found.where
        self.diagnostics.report(place, where, wrong.problem)

    def stages(self) -> Iterator[Stage]:
        """Yield the stages; some are missing if problems were reported."""
        bodies = [self.body(bounds) for bounds in self.staged.bounds]
        known = [body for body in bodies if body is not None]
        if len(known) < len(bodies):
            return
        begin, elapsed, lengths = 0, Elapsed(), self.lengths
        previous: StageBody | None = None
        for written in known:
            body = lengths.with_ramp(previous, written, self.on_enter(written.bounds))
            length = None if body is None else lengths.length(body, elapsed)
            if body is None or length is None:
                return
            self.check_begin(body, elapsed)
            end = None if body.bounds.end is None else begin + length
            if end is not None and end <= begin:
                problem = "rounding up the stages before it leaves it no step. Make it longer."
                lengths.report(body.bounds, problem, "for", "end")
            stage = self.stage(body, begin, end)
            if stage is None:
                return
            yield stage
            if stage.end is None:
                return
            early = stage.data_end is not None
            elapsed = elapsed.after(body, (stage.end - begin) * lengths.worth(body), early=early)
            previous, begin = evolve(written, ends_early=early), stage.end

    def on_enter(self, bounds: StageBounds) -> OnEnter:
        """Return whether leaves that earlier stages also have continue or restart in a stage."""
        own = None if bounds.number is None else self.staged.stages[bounds.number].on_enter
        return own or self.staged.on_enter or "continue"

    def check_begin(self, body: StageBody, elapsed: Elapsed) -> None:
        """Report a stage that cannot begin at its `start`, because the one before ends earlier."""
        if elapsed.shift and body.part is not None and body.part.start is not None:
            problem = (
                "it cannot begin at its `start`, because the stage before ends with its data. "
                "Remove `start`, and write the `end` of the stage before."
            )
            self.lengths.report(body.bounds, problem, "start")

    def body(self, bounds: StageBounds) -> StageBody | None:
        """Return what a stage is made of; None: problems were reported."""
        part = None if bounds.number is None else self.staged.stages[bounds.number]
        tree = self.staged.children[bounds.name]
        builder = self.builder_of(bounds)
        order = self.order(tree)
        if builder is None or order is None:
            return None
        return StageBody(
            bounds=bounds,
            part=part,
            tree=tree,
            order=order,
            builder=builder,
            counts_steps=self.counts_steps,
        )

    def builder_of(self, bounds: StageBounds) -> Builder[Any] | None:
        """Return the builder with the parameters of a stage; None: problems were reported."""
        params = {} if bounds.number is None else self.staged.stages[bounds.number].params
        defaults = {name: getattr(self.staged, name) for name in STEP_SIZES}
        sizes = {name: params[name] for name in STEP_SIZES if name in params} or {
            name: value for name, value in defaults.items() if value is not None
        }
        own = {name: value for name, value in params.items() if name not in STEP_SIZES}
        known = [*self.builder.params, "global_batch_size"]
        problems: list[str] = []
        for name in own.keys() - self.builder.params.keys():
            near = did_you_mean(name, known)
            advice = f"Did you mean {near!r}?" if near else f"There are {listed(known)}."
            problems.append(f"unknown parameter {name!r}. {advice}")
        if not problems:
            try:
                return with_step_size(self.builder.with_params(own), sizes)
            except SpecError as error:
                problems = error.faults
        for problem in problems:
            self.lengths.report(bounds, problem, "params")
        return None

    def stage(self, body: StageBody, begin: int, end: int | None) -> Stage | None:
        """Return a stage of the run; None: problems were reported."""
        builder = body.builder
        if body.counts_steps:
            self.lengths.check_counted(body)
            builder = builder.with_step_size(None)
        try:
            of = builder.over(body.order, first_microbatch=begin).spec
        except SpecError as error:
            for problem in error.faults:
                self.lengths.report(body.bounds, problem, "for", "end")
            return None
        reported = {*BUILDER_PARAMS, *changed_params(self.staged)}
        stage = Stage(
            name=body.bounds.name,
            of=of,
            begin=begin,
            end=end,
            counts="steps" if body.counts_steps else "microbatches",
            on_enter=self.on_enter(body.bounds),
            seed=None if body.part is None else body.part.seed,
            params={
                name: value
                for name, value in builder.params.items()
                if name in reported and _is_plain(value)
            },
            microbatches_per_step=builder.microbatches_per_step,
            asked=body.end_as_written(self.staged.unit),
        )
        own = None if body.part is None else body.part.on_exhausted
        return self.with_data(stage, body, own or self.staged.on_exhausted or "repeat")

    def with_data(self, stage: Stage, body: StageBody, rule: OnExhausted) -> Stage:
        """Return the stage; with `advance` it ends with its data. Problems are reported."""
        if rule == "repeat":
            return stage
        problems, made = [], stage
        if body.counts_steps:
            problems = ["the length of a stage of steps of any size is not known in advance."]
        elif self.run is None:
            problems = [
                "the end of its data depends on the number of lanes, which is not known. Pass "
                "WorkerConfig(lanes=...), or `--lanes`."
            ]
        else:
            try:
                made = with_data_end(stage, self.run)
            except SpecError as error:
                problems = [f"{text.removesuffix('.')}." for text in error.faults]
        for problem in problems:
            text = f"`on_exhausted: {rule}`: {problem} Or write `on_exhausted: repeat`."
            self.lengths.report(body.bounds, text, "on_exhausted")
        if rule == "error" and made.data_end is not None:
            problem = (
                f"its data ends at micro-batch {made.end} of the run, and it lasts until "
                f"{stage.end or 'the end'} (`on_exhausted: error`). Make it shorter, or give it "
                "more data."
            )
            self.lengths.report(body.bounds, problem, "for", "end")
        return made

    def check_epochs(self) -> None:
        """Report datasets that would restart in a later stage without being configured to.

        The number of epochs shuffled together is part of a default id. So a dataset that is
        shuffled differently in a later stage is another leaf there, and would silently restart.
        """
        known: list[tuple[str, LeafUse]] = []
        for bounds in self.staged.bounds:
            if self.on_enter(bounds) != "continue":
                continue
            leaves = list(leaf_uses(self.staged.children[bounds.name]))
            ids = {leaf.id for _, leaf in known}
            for leaf in leaves:
                if leaf.id not in ids:
                    self.check_same_epochs(leaf, known)
            known += [(bounds.name, leaf) for leaf in leaves]

    def check_same_epochs(self, leaf: LeafUse, known: list[tuple[str, LeafUse]]) -> None:
        """Report a leaf if an earlier stage shuffles the same samples over other epochs."""
        for stage, other in known:
            both_named = leaf.keys.id is not None and other.keys.id is not None
            apart = leaf.independent or other.independent or both_named
            if apart or other.data[:2] != leaf.data[:2] or other.epochs == leaf.epochs:
                continue
            origin = self.origins.of(leaf.recipe)
            place, where = origin.locate(EPOCHS_KEY)
            if not where.endswith(EPOCHS_KEY):
                place, where = origin.locate(leaf.recipe.kind)
            self.diagnostics.report(
                place,
                origin.where,
                f"{leaf.written}: its {EPOCHS_KEY} is {_epochs(leaf)} here, and {_epochs(other)} "
                f"in stage {stage!r} at {self.origins.of(other.recipe).place}, so the dataset "
                "would start again. Make them equal, or give it an `id:` in both, or write "
                "`on_enter: restart`.",
            )
            return


def _epochs(leaf: LeafUse) -> str:
    return "null" if leaf.epochs is None else str(leaf.epochs)


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
