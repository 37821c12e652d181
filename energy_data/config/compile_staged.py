"""Compiling `staged`: bounds in steps, samples, tokens or epochs become micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from attrs import evolve

from energy_data.config.builder import Builder
from energy_data.config.compile_steps import below_steps
from energy_data.config.definitions import Mode
from energy_data.config.diagnostics import Diagnostics, Place, did_you_mean, listed
from energy_data.config.kind_staged import Staged, StagedDefinition, StagePart
from energy_data.config.stage_bounds import StageBounds
from energy_data.config.stage_lengths import (
    Body,
    Counted,
    check_counted,
    length_of,
    report,
    report_params,
    with_ramp,
    worth,
    written_end,
)
from energy_data.config.step_size import FOR_STEPS, with_steps
from energy_data.config.twigs import Branch, Twig, twigs
from energy_data.core.context import Context
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

MULTIPLIER = "shuffle_over_epochs_multiplier"

# Reported of every stage, and kept in states; of the other parameters, those that a stage changes.
PIPELINE_PARAMS = (
    "batch_size",
    "seq_len",
    "shuffle_buffer_size",
    "max_samples_per_sequence",
    "microbatches_per_step",
    "packing_buffer_size",
)


class Compiler(Protocol):
    """What compiles the nodes below; `compile._Compiler` is one."""

    mode: Mode
    faults: Diagnostics
    run: Context | None  # its seed and its lanes; None: these are not known
    counts_steps: bool  # whether stages count steps of any size, not micro-batches

    def spec(self, tree: Branch | Twig) -> OrderSpec | None:
        """Return the order tree of a node; None: faults are noted."""


def staged_stream(compiler: Compiler, tree: Branch, pipeline: Builder[Any]) -> Spec | None:
    """Return the stages of a run; None: problems were reported."""
    definition, faults = tree.definition, compiler.faults
    assert isinstance(definition, StagedDefinition)
    before = len(faults)
    if pipeline.finite:
        problem = "stages need an endless stream. Remove `repeat=False`."
        faults.report(definition.place, definition.where, problem)
        return None
    if definition.staged.at is not None:
        problem = "`at` selects a stage for validation; training runs all stages. Remove it."
        faults.report(definition.places["staged"], f"{definition.where}.staged.at", problem)
    made = _Stages(compiler, tree, pipeline)
    stages = tuple(made.stages())
    if len(faults) == before:
        for fault in wrong_bodies(stages):
            faults.report(*made.where(fault), fault.problem)
    if len(faults) > before:
        return None
    return StagedSpec(stages=stages, resume=definition.staged.resume)


def changed_params(tree: Branch | Twig) -> list[str]:
    """Return the names of the parameters that stages of a split change."""
    definition = below_steps(tree).definition
    if not isinstance(definition, StagedDefinition):
        return []
    return [name for part in definition.staged.stages for name in part.params]


def staged_order(compiler: Compiler, tree: Branch) -> OrderSpec | None:
    """Return the order of the one stage that validation reads; None: problems were reported."""
    definition = tree.definition
    assert isinstance(definition, StagedDefinition)
    place, where = definition.place, definition.where
    if compiler.mode == "train":
        problem = "`staged` must be the outermost node: nothing else, and no stage, can contain it."
        compiler.faults.report(place, where, f"{problem} Put the mixture into the stages.")
        return None
    name = definition.staged.at
    if name is None:
        problem = f"validation reads one stage, found {listed(definition.names)}."
        compiler.faults.report(place, where, f"{problem} Add `at:` with the name of one.")
        return None
    if name not in definition.names:
        near = did_you_mean(name, definition.names)
        advice = f"Did you mean {near!r}?" if near else f"There are {listed(definition.names)}."
        place, where = definition.places["staged"], f"{where}.staged.at"
        compiler.faults.report(place, where, f"there is no stage {name!r}. {advice}")
        return None
    return compiler.spec(tree.children[definition.names.index(name)])


class _Stages:
    def __init__(self, compiler: Compiler, tree: Branch, pipeline: Builder[Any]) -> None:
        assert isinstance(tree.definition, StagedDefinition)
        self.compiler, self.faults = compiler, compiler.faults
        self.tree, self.definition, self.staged = tree, tree.definition, tree.definition.staged
        self.around = pipeline
        self.reported = {*PIPELINE_PARAMS, *changed_params(tree)}
        self.continued: list[tuple[str, Twig]] = []  # leaves that continue, with their stage
        self.trees: dict[str, Branch | Twig] = {}  # of stages, by name

    def where(self, fault: WrongBody) -> tuple[Place, str]:
        """Return where the leaf of a fault is written, or else where the stages are."""
        for leaf in twigs(self.trees[fault.stage]):
            if leaf.id == fault.leaf:
                return leaf.definition.places[leaf.kind], leaf.definition.where
        return self.definition.place, self.definition.where

    def stages(self) -> Iterator[Stage]:
        """Yield the stages; some may be missing if problems were reported."""
        bodies = [self.body(span) for span in self.definition.spans]
        known = [body for body in bodies if body is not None]
        if len(known) < len(bodies):
            return
        begin, counted = 0, Counted()
        previous: Body | None = None
        for written in known:
            body = with_ramp(self.faults, previous, written, self.staged, self.on_enter(written))
            length = None if body is None else length_of(self.faults, body, self.staged, counted)
            if body is None or length is None:
                return
            self.check_begin(body, counted)
            end = None if body.span.end is None else begin + length
            if end is not None and end <= begin:
                problem = "rounding up the stages before it leaves it no step. Make it longer."
                report(self.faults, body, problem)
            stage = self.stage(body, begin, end)
            if stage is None:
                return
            yield stage
            if stage.end is None:
                return
            early = stage.data_end is not None
            amount = (stage.end - begin) * worth(body, self.staged)
            counted = counted.after(body, amount, early=early)
            previous, begin = evolve(written, ends_early=early), stage.end

    def on_enter(self, body: Body) -> OnEnter:
        own = None if body.part is None else body.part.on_enter
        return own or self.staged.on_enter or "continue"

    def check_begin(self, body: Body, counted: Counted) -> None:
        """Report a stage that cannot begin at its `start`, because the one before ends earlier."""
        if counted.moved and body.part is not None and body.part.start is not None:
            problem = (
                "it cannot begin at its `start`, because the stage before ends with its data. "
                "Remove `start`, and write the `end` of the stage before."
            )
            report(self.faults, body, problem, "start")

    def body(self, span: StageBounds) -> Body | None:
        """Return what a stage is made of; None: problems were reported."""
        child = self.tree.children[span.child]
        part = self.definition.parts[span.child]
        own = part if isinstance(part, StagePart) else None
        pipeline = self.pipeline(self.staged, own, self.around)
        order = self.compiler.spec(child)
        if pipeline is None or order is None:
            return None
        return Body(
            span=span,
            definition=part.of,
            part=own,
            tree=child,
            order=order,
            pipeline=pipeline,
            counts_steps=self.compiler.counts_steps,
        )

    def pipeline(
        self, staged: Staged, part: StagePart | None, pipeline: Builder[Any]
    ) -> Builder[Any] | None:
        """Return the pipeline with what differs in a stage; None: faults are noted."""
        params = {} if part is None else part.params
        every: dict[str, Any] = {name: getattr(staged, name) for name in FOR_STEPS}
        steps = {name: params[name] for name in FOR_STEPS if name in params} or {
            name: value for name, value in every.items() if value is not None
        }
        own = {name: value for name, value in params.items() if name not in FOR_STEPS}
        known = [*pipeline.params, "global_batch_size"]
        before = len(self.faults)
        for name in own.keys() - pipeline.params.keys():
            near = did_you_mean(name, known)
            advice = f"Did you mean {near!r}?" if near else f"There are {listed(known)}."
            report_params(self.faults, part, f"unknown parameter {name!r}. {advice}")
        if len(self.faults) > before:
            return None
        try:
            return with_steps(pipeline.with_params(own), steps)
        except SpecError as error:
            for fault in error.faults:
                report_params(self.faults, part, fault)
            return None

    def stage(self, body: Body, begin: int, end: int | None) -> Stage | None:
        """Return a stage of the run; None: problems were reported."""
        name, pipeline, on_enter = body.span.name, body.pipeline, self.on_enter(body)
        self.trees[name] = body.tree
        if on_enter == "continue":
            check_reshuffled(self.faults, self.continued, name, list(twigs(body.tree)))
        if body.counts_steps:
            check_counted(self.faults, body)
            pipeline = pipeline.with_step_size(None)
        try:
            of = pipeline.over(body.order, first_microbatch=begin).spec
        except SpecError as error:
            for fault in error.faults:
                report(self.faults, body, fault)
            return None
        stage = Stage(
            name=name,
            of=of,
            begin=begin,
            end=end,
            counts="steps" if body.counts_steps else "microbatches",
            on_enter=on_enter,
            seed=None if body.part is None else body.part.seed,
            params={
                name: value
                for name, value in pipeline.params.items()
                if name in self.reported and _is_plain(value)
            },
            microbatches_per_step=pipeline.microbatches_per_step,
            asked=written_end(body, self.staged),
        )
        own = None if body.part is None else body.part.on_exhausted
        return self.with_data(stage, body, own or self.staged.on_exhausted or "repeat")

    def with_data(self, stage: Stage, body: Body, rule: OnExhausted) -> Stage:
        """Return the stage, ending with its data if it is to; faults are noted."""
        run = self.compiler.run
        if rule == "repeat":
            return stage
        if body.counts_steps:
            problem = f"`on_exhausted: {rule}`: how much a stage of steps of any size takes is not "
            report(self.faults, body, f"{problem}known beforehand. Leave it out.", "on_exhausted")
            return stage
        if run is None:
            problem = (
                f"`on_exhausted: {rule}`: where its data end follows from the number of lanes, "
                "which is not known. Pass WorkerConfig(lanes=...), or `--lanes`."
            )
            report(self.faults, body, problem, "on_exhausted")
            return stage
        try:
            made = with_data_end(stage, run)
        except SpecError as error:
            for fault in error.faults:
                text = fault.removesuffix(".")
                advice = "Or let it go on: `on_exhausted: repeat`."
                problem = f"`on_exhausted: {rule}`: {text}. {advice}"
                report(self.faults, body, problem, "on_exhausted")
            return stage
        if rule == "error" and made.data_end is not None:
            problem = (
                f"its data end at micro-batch {made.end} of the run, and it lasts until "
                f"{stage.end or 'the end'} (`on_exhausted: error`). Make it shorter, or give it "
                "more data."
            )
            report(self.faults, body, problem)
        return made


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def check_reshuffled(
    faults: Diagnostics, known: list[tuple[str, Twig]], stage: str, leaves: Sequence[Twig]
) -> None:
    """Report leaves of a stage that would start again because of another multiplier.

    `shuffle_over_epochs_multiplier` is part of a default id, so a dataset with another multiplier
    is another leaf. known: the leaves of earlier stages; those of this one are added.
    """
    ids = {leaf.id for _, leaf in known}
    for leaf in leaves:
        other = next((one for one in known if _reshuffles(leaf, one[1])), None)
        if leaf.id in ids or other is None:
            continue
        before, first = other
        faults.report(
            leaf.definition.places.get(MULTIPLIER, leaf.definition.places[leaf.kind]),
            leaf.definition.where,
            f"{leaf.written}: its {MULTIPLIER} is {_multiplier(leaf)} here, and "
            f"{_multiplier(first)} in stage {before!r} at {first.definition.place}, so the "
            "dataset would start again. Make them equal, or give it an `id:` in both, or write "
            "`on_enter: restart`.",
        )
    known += [(stage, leaf) for leaf in leaves]


def _reshuffles(leaf: Twig, other: Twig) -> bool:
    """Return whether two leaves are one dataset by default, but for their multiplier."""
    both_named = leaf.definition.id is not None and other.definition.id is not None
    apart = leaf.independent or other.independent or both_named
    return not apart and other.data[:2] == leaf.data[:2] and other.epochs != leaf.epochs


def _multiplier(leaf: Twig) -> str:
    return "null" if leaf.epochs is None else str(leaf.epochs)
