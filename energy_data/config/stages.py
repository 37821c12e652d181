"""Compiling `staged`: recipes of stages become the stages of a run, in micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from math import ceil
from typing import Any

from attrs import evolve, frozen

from energy_data.config.grammar import Origins
from energy_data.config.leaves import leaf_uses
from energy_data.config.opening import Builder
from energy_data.config.restarts import report_restarts
from energy_data.config.staged import (
    DocsPerStepSpec,
    StageBounds,
    StagedRecipe,
    below_steps,
    changed_params,
    ramped,
)
from energy_data.config.windows import params_with_windows, seq_len_of
from energy_data.config.yaml_nodes import Diagnostics
from energy_data.core.context import Context
from energy_data.core.recipe import did_you_mean, listed
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.references import OrderSpec
from energy_data.nodes.stage import Stage, with_data_end, wrong_bodies
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
STEP_SIZE = "microbatches_per_step"


def counts_steps(tree: Spec, builder: Builder[Any]) -> bool:
    """Return whether the stages of a split count the steps of `docs_per_step`.

    They do with `unit: steps`, if steps are exact or nothing else gives the size of a step.
    """
    staged = below_steps(tree)
    if not isinstance(tree, DocsPerStepSpec) or not isinstance(staged, StagedRecipe):
        return False
    has_size = builder.microbatches_per_step is not None or STEP_SIZE in changed_params(tree)
    return staged.unit == "steps" and (tree.mode == "exact" or not has_size)


@frozen(kw_only=True)
class StageBody:
    """A stage whose mixture is open: all that its length may depend on is known."""

    bounds: StageBounds
    order: OrderSpec
    builder: Builder[Any]
    per_step: int  # micro-batches of all ranks in a step, or what a step of any size counts as
    worth: Fraction | None  # of `unit` in a micro-batch; None: not known
    ramp_batches: int = 0  # micro-batches at its beginning that the ramp takes

    def batches(self, amount: Fraction) -> int:
        """Return an amount in `unit` as micro-batches, in whole steps."""
        assert self.worth is not None
        return ceil(amount / self.worth / self.per_step) * self.per_step


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

    def spec(self) -> Spec | None:
        """Return the stages of the run; None: problems were reported."""
        before, origin = self.diagnostics.num_reports, self.origins.of(self.staged)
        if self.builder.finite:
            problem = "stages need an endless stream. Remove `repeat=False`."
            self.diagnostics.report(origin.place, origin.where, problem)
            return None
        report_restarts(self.staged.bounds, self.origins, self.diagnostics)
        stages = tuple(self.stages())
        wrong = wrong_bodies(stages) if self.diagnostics.num_reports == before else ()
        for problem, stage, leaf_id in wrong:
            place, where = origin.place, origin.where
            for leaf in leaf_uses(self.staged.children[stage]):
                if leaf.id == leaf_id:
                    found = self.origins.of(leaf.recipe)
                    place, where = found.locate(leaf.recipe.kind)[0], found.where
            self.diagnostics.report(place, where, problem)
        if self.diagnostics.num_reports > before:
            return None
        return StagedSpec(stages=stages, resume=self.staged.resume)

    def report(self, bounds: StageBounds, problem: str, *keys: str) -> None:
        """Report a problem of a stage, at the last of `keys` that is written there."""
        origin = self.origins.of(self.staged)
        place, where = origin.locate_field(bounds.path)
        for name in keys:
            at, found = origin.locate_field(f"{bounds.path}.{name}")
            if found.endswith(f".{name}"):
                place, where = at, found
        self.diagnostics.report(place, where, f"stage {bounds.stage.name!r}: {problem}")

    def stages(self) -> Iterator[Stage]:
        """Yield the stages; some are missing if problems were reported."""
        bodies = [self.body(bounds) for bounds in self.staged.bounds]
        known = [body for body in bodies if body is not None]
        if len(known) < len(bodies):
            return
        # `played` is in `unit`, and more than written where stages were rounded up. Written
        # bounds are later by `shift` after stages that ended with their data.
        begin, played, shift = 0, Fraction(0), Fraction(0)
        previous: tuple[StageBody, bool] | None = None
        for written in known:
            body = self.with_ramp(previous, written)
            length = None if body is None else self.length(body, played, shift)
            if body is None or length is None:
                return
            bounds = body.bounds
            stage = self.stage(body, begin, None if bounds.end is None else begin + length)
            if stage is None:
                return
            yield stage
            if stage.end is None:
                return
            is_early = stage.data_end is not None
            played += (stage.end - begin) * (body.worth or 0)
            if is_early or bounds.end is None:
                shift = played - (bounds.end or bounds.start)
            elif bounds.stage.length is None:
                shift = Fraction(0)
            previous, begin = (written, is_early), stage.end

    def body(self, bounds: StageBounds) -> StageBody | None:
        """Return what a stage is made of; None: problems were reported."""
        builder = self.builder_of(bounds)
        order = self.order(bounds.stage.of)
        if builder is None or order is None:
            return None
        per_step = 1 if self.counts_steps else builder.microbatches_per_step
        body = StageBody(
            bounds=bounds,
            order=order,
            builder=builder,
            per_step=per_step or 1,
            worth=self.worth(builder, order, per_step),
        )
        is_counted = bounds.end is not None or bounds.stage.ramp is not None
        return None if is_counted and not self.is_known(body) else body

    def builder_of(self, bounds: StageBounds) -> Builder[Any] | None:
        """Return the builder with the parameters of a stage; None: problems were reported."""
        params, known = bounds.stage.params, self.builder.params
        problems: list[str] = []
        for name in params.keys() - known.keys():
            near = did_you_mean(name, known)
            advice = f"Did you mean {near!r}?" if near else f"There are {listed(known)}."
            problems.append(f"unknown parameter {name!r}. {advice}")
        if not problems:
            try:
                return self.builder.with_params(params)
            except SpecError as error:
                problems = error.faults
        for problem in problems:
            self.report(bounds, problem, "params")
        return None

    def worth(
        self, builder: Builder[Any], order: OrderSpec, per_step: int | None
    ) -> Fraction | None:
        """Return how much of `unit` a micro-batch is; None: not known."""
        samples, tokens = Fraction(builder.samples_per_batch), seq_len_of(builder, order)
        match self.staged.unit:
            case "microbatches":
                return Fraction(1)
            case "steps":
                return None if per_step is None else Fraction(1, per_step)
            case "samples":
                return samples
            case "tokens":
                return samples * tokens if type(tokens) is int and tokens >= 1 else None
            case "epochs":
                return samples / order.size

    def is_known(self, body: StageBody) -> bool:
        """Return whether `unit` can be counted in a stage; if not, report it."""
        if body.worth is not None:
            return True
        keys, found = ["for", "end"], seq_len_of(body.builder, body.order)
        if self.staged.unit == "steps":
            problem = (
                "the number of micro-batches in a step is not known. Give `microbatches_per_step`, "
                "the micro-batches of all ranks in an optimizer step."
            )
        elif found is None:
            problem = (
                "the number of tokens in a sample is not known. Give the task encoder a parameter "
                "`seq_len`, read windows of one length, or count samples."
            )
        else:
            problem = f"seq_len: must be a whole number >= 1 to count tokens, got {found!r}."
            keys.append("params")
        self.report(body.bounds, problem, *keys)
        return False

    def length(self, body: StageBody, played: Fraction, shift: Fraction) -> int | None:
        """Return the micro-batches of a stage, 0 without an end; None: a problem was reported."""
        bounds = body.bounds
        if shift and bounds.stage.start is not None:
            problem = (
                "it cannot begin at its `start`, because the stage before ends with its data. "
                "Remove `start`, and write the `end` of the stage before."
            )
            self.report(bounds, problem, "start")
        if bounds.end is None:
            return 0
        is_exact = self.staged.unit in ("steps", "epochs")
        end = bounds.end + (0 if bounds.stage.length is None else shift)
        length = body.batches(end - (bounds.start + shift if is_exact else played))
        if length <= 0:
            problem = "rounding up the stages before it leaves it no step. Make it longer."
            self.report(bounds, problem, "for", "end")
            return None
        if length < body.ramp_batches:
            problem = f"the ramp takes {body.ramp_batches} micro-batches, the stage has {length}"
            self.report(bounds, f"{problem}. Shorten it.", "ramp")
            return None
        return length

    def with_ramp(
        self, previous: tuple[StageBody, bool] | None, body: StageBody
    ) -> StageBody | None:
        """Return a stage with its ramp, if it has one. None: a problem was reported.

        previous: the stage before, and whether it ends with its data.
        """
        ramp, problem = body.bounds.stage.ramp, None
        if ramp is None or self.counts_steps:  # `check_counted` reports a ramp of counted steps
            return body
        batches = body.batches(ramp.over)
        if previous is None:
            problem = "the first stage has no stage before it to ramp from. Remove the ramp"
        elif previous[1]:
            problem = (
                "the stage before ends with its data and has none left for the ramp. Give it an "
                "earlier `end`, or remove the ramp"
            )
        elif not batches:
            problem = "the ramp has no length. Make `over` larger, or remove the ramp"
        elif changed := _changed(previous[0], body):
            problem = (
                f"a ramp blends samples of both stages within a batch, and {listed(changed)} "
                "differ from the stage before. Make them equal, or remove the ramp"
            )
        elif body.bounds.stage.on_enter == "restart":
            problem = "a ramp continues the leaves of the stage before. Write `on_enter: continue`"
        elif previous[0].order.follows_run:
            problem = (
                "the weights of the stage before change over the run. Replace them by constant "
                "weights, or remove the ramp"
            )
        if problem is not None or previous is None:
            self.report(body.bounds, f"{problem}.", "ramp")
            return None
        size = body.builder.samples_per_microbatch or body.builder.samples_per_batch
        order = ramped(previous[0].order, body.order, samples=batches * size, kind=ramp.kind)
        return evolve(body, order=order, ramp_batches=batches)

    def stage(self, body: StageBody, begin: int, end: int | None) -> Stage | None:
        """Return a stage of the run; None: problems were reported."""
        written, builder = body.bounds.stage, body.builder
        if self.counts_steps:
            self.check_counted(body)
        try:
            of = builder.over(body.order, first_microbatch=begin).spec
        except SpecError as error:
            for problem in error.faults:
                self.report(body.bounds, problem, "for", "end")
            return None
        reported = {*BUILDER_PARAMS, *changed_params(self.staged)}
        if self.counts_steps:
            reported.remove(STEP_SIZE)
        stage = Stage(
            name=written.name,
            of=of,
            begin=begin,
            end=end,
            counts="steps" if self.counts_steps else "microbatches",
            on_enter=written.on_enter,
            seed=written.seed,
            params={
                name: value
                for name, value in params_with_windows(builder, body.order).items()
                if name in reported and isinstance(value, bool | int | float | str | None)
            },
            microbatches_per_step=None if self.counts_steps else builder.microbatches_per_step,
            asked=self.asked(body.bounds),
        )
        return stage if written.on_exhausted == "repeat" else self.with_data(stage, body.bounds)

    def asked(self, bounds: StageBounds) -> str:
        """Return how the end of a stage is written, for people."""
        if bounds.end is None:
            return ""
        is_length = bounds.stage.length is not None
        end = bounds.end - bounds.start if is_length else bounds.end
        number = f"{int(end):,}" if end.denominator == 1 else f"{float(end):g}"
        return f"{'' if is_length else 'an end at '}{number} {self.staged.unit}"

    def check_counted(self, body: StageBody) -> None:
        """Report what a stage cannot have that counts steps of any size."""
        reason = "and where a stage of steps begins is known only during the run"
        if body.order.follows_run:
            problem = f"weights that change follow the micro-batches of the run, {reason}."
            self.report(body.bounds, f"{problem} Use weights that do not change.", "weight")
        if body.bounds.stage.ramp is not None:
            problem = f"a ramp follows the micro-batches of the run, {reason}. Remove it."
            self.report(body.bounds, problem, "ramp")

    def with_data(self, stage: Stage, bounds: StageBounds) -> Stage:
        """Return a stage that ends with its data. Problems are reported."""
        rule, made, problems = bounds.stage.on_exhausted, stage, list[str]()
        if self.counts_steps:
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
            self.report(bounds, text, "on_exhausted")
        if rule == "error" and made.data_end is not None:
            problem = (
                f"its data ends at micro-batch {made.end} of the run, and it lasts until "
                f"{stage.end or 'the end'} (`on_exhausted: error`). Make it shorter, or give it "
                "more data."
            )
            self.report(bounds, problem, "for", "end")
        return made


def _changed(*bodies: StageBody) -> list[str]:
    """Return the parameters of two stages that differ and decide what becomes of a sample."""
    before, now = (params_with_windows(body.builder, body.order) for body in bodies)
    return [n for n in sorted(now.keys() - {STEP_SIZE}) if before.get(n) != now.get(n)]
