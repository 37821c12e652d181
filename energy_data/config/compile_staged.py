"""Compiling `staged`: from bounds in steps, samples, tokens or epochs to micro-batches of the run.

A `staged` inside a stage becomes stages of the outer one, so that a run has one list of stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from attrs import evolve, frozen

from energy_data.config.compile_continued import Continued
from energy_data.config.compile_lengths import (
    Body,
    Counted,
    amount_of,
    check_counted,
    length_of,
    note,
    said,
    wrong,
    wrong_ramp,
)
from energy_data.config.compile_ramp import fading
from energy_data.config.definitions import Definition, Mode
from energy_data.config.diagnostics import Diagnostics, Place, did_you_mean, listed
from energy_data.config.kind_staged import Staged, StagedDefinition, StagePart
from energy_data.config.spans import Span
from energy_data.config.step_size import FOR_STEPS, with_steps
from energy_data.config.twigs import Branch, Twig, twigs
from energy_data.core.context import Context
from energy_data.core.keys import key
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.exhausted import ended
from energy_data.nodes.references import OrderSpec
from energy_data.nodes.stage import OnEnter, OnExhausted, Stage, WrongBody, wrong_bodies
from energy_data.nodes.staged import StagedSpec
from energy_data.tasks.pipeline import Pipeline

# What is told of every stage, and kept in states; of the rest, what some stage changes.
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


@frozen(kw_only=True)
class _Around:
    """What a `staged` inherits from the stage it stands in; at the top, from the call."""

    pipeline: Pipeline
    begin: int = 0
    end: int | None = None  # of the stage around, in micro-batches
    prefix: str = ""
    on_enter: OnEnter | None = None
    exhausted: OnExhausted | None = None
    seed: int | None = None


def staged_stream(compiler: Compiler, tree: Branch, pipeline: Pipeline) -> Spec | None:
    """Return the stages of a run; None: faults are noted."""
    assert isinstance(tree.definition, StagedDefinition)
    before = len(compiler.faults)
    if pipeline.finite:
        problem = "stages need a stream without end. Leave `repeat=False` out."
        compiler.faults.report(tree.definition.place, tree.definition.where, problem)
        return None
    if tree.definition.staged.at is not None:
        problem = "`at` picks a stage for validation; training runs all of them. Take it out."
        place = tree.definition.places["staged"]
        compiler.faults.report(place, f"{tree.definition.where}.staged.at", problem)
    told = {*PIPELINE_PARAMS, *changed_params(tree)}
    made = _Stages(compiler)
    stages = tuple(
        evolve(stage, params={name: at for name, at in stage.params.items() if name in told})
        for stage in made.of(tree, _Around(pipeline=pipeline))
    )
    if len(compiler.faults) == before:
        staged = tree.definition.staged
        for fault in wrong_bodies(stages):
            compiler.faults.report(*made.where(fault, tree.definition), fault.problem)
        if len(compiler.faults) == before:
            return StagedSpec(
                stages=stages, buffers=staged.buffers or "handoff", resume=staged.resume or "strict"
            )
    return None


def changed_params(tree: Branch | Twig) -> Iterator[str]:
    """Yield the names of the parameters that stages below a node change."""
    if isinstance(tree, Branch):
        if isinstance(tree.definition, StagedDefinition):
            for part in tree.definition.staged.stages:
                yield from part.params
        for child in tree.children:
            yield from changed_params(child)


def staged_order(compiler: Compiler, tree: Branch) -> OrderSpec | None:
    """Return the order of the one stage that validation reads; None: faults are noted."""
    definition = tree.definition
    assert isinstance(definition, StagedDefinition)
    place, where = definition.place, definition.where
    if compiler.mode == "train":
        problem = "stages are whole pipelines, so `staged` stands above all that mixes or repeats."
        compiler.faults.report(place, where, f"{problem} Put the mixture into the stages.")
        return None
    name = definition.staged.at
    if name is None:
        problem = f"validation has no stages, found {listed(definition.names)}."
        compiler.faults.report(place, where, f"{problem} Add `at:` with the one to read.")
        return None
    if name not in definition.names:
        near = did_you_mean(name, definition.names)
        advice = f"Did you mean {near!r}?" if near else f"There are {listed(definition.names)}."
        place, where = definition.places["staged"], f"{where}.staged.at"
        compiler.faults.report(place, where, f"there is no stage {name!r}. {advice}")
        return None
    return compiler.spec(tree.children[definition.names.index(name)])


class _Stages:
    def __init__(self, compiler: Compiler) -> None:
        self.compiler, self.faults = compiler, compiler.faults
        self.continued = Continued(compiler.faults)
        self.trees: dict[str, Branch | Twig] = {}  # of stages, by name

    def where(self, fault: WrongBody, around: Definition) -> tuple[Place, str]:
        """Return where the leaf of a fault stands, in the stage in question; else the stages."""
        for leaf in twigs(self.trees[fault.stage]):
            if leaf.id == fault.leaf:
                return leaf.definition.places[leaf.kind], leaf.definition.where
        return around.place, around.where

    def of(self, tree: Branch, around: _Around) -> Iterator[Stage]:
        """Yield the stages below a `staged`; faults are noted, and then some may be missing."""
        definition = tree.definition
        assert isinstance(definition, StagedDefinition)
        staged = definition.staged
        self.of_the_run(definition, around)
        bodies = [self.body(tree, span, around) for span in definition.spans]
        known = [body for body in bodies if body is not None]
        if len(known) < len(bodies):
            return
        absolute = staged.clock_origin == "absolute"
        begin = 0 if absolute else around.begin
        counted = Counted()
        previous: Body | None = None
        for written in known:
            on_enter = self.on_enter(written, staged, around)
            body = fading(self.faults, previous, written, staged, on_enter)
            length = None if body is None else length_of(self.faults, body, staged, counted)
            if body is None or length is None:
                return
            self.check_begin(body, counted)
            end = None if body.span.end is None else begin + length
            if end is not None and end <= begin:
                problem = "it is shorter than what was rounded up before it, and would never run."
                note(self.faults, body, f"{problem} Make it longer.")
            made = list(self.cut(body, begin, end, around, definition))
            yield from made
            until = made[-1].end if made and made[-1].data_end is not None else end
            if until is None:
                return
            early = until != end
            counted = counted.after(body, amount_of(body, staged, until - begin), early=early)
            previous, begin = evolve(written, ends_early=early), until
        if around.prefix and around.exhausted != "advance":
            self.check_filled(known[-1], begin, around)

    def on_enter(self, body: Body, staged: Staged, around: _Around) -> OnEnter:
        own = None if body.part is None else body.part.on_enter
        return own or staged.on_enter or around.on_enter or "continue"

    def check_begin(self, body: Body, counted: Counted) -> None:
        """Note a stage that cannot begin where it says, as the one before may end earlier."""
        if counted.moved and body.part is not None and body.part.start is not None:
            problem = (
                "it cannot begin where its `start` says, as the stage before ends with its data. "
                "Leave `start` out, and write the `end` of the stage before."
            )
            note(self.faults, body, problem, "start")

    def check_filled(self, last: Body, end: int, around: _Around) -> None:
        """Note stages inside a stage that end before it does."""
        if around.end is not None and end >= around.end:
            return
        note(
            self.faults,
            last,
            f"it ends at micro-batch {end} of the run, but the stage around, "
            f"{around.prefix.rstrip('.')!r}, lasts until {around.end or 'the end'}. Leave its "
            "end out.",
        )

    def of_the_run(self, definition: StagedDefinition, around: _Around) -> None:
        """Note what is said of the run as a whole inside a stage."""
        for name in ("buffers", "resume") if around.prefix else ():
            if getattr(definition.staged, name) is not None:
                problem = f"`{name}` is of the run as a whole. Write it in the outermost `staged`."
                place = definition.places["staged"]
                self.faults.report(place, f"{definition.where}.staged.{name}", problem)

    def body(self, tree: Branch, span: Span, around: _Around) -> Body | None:
        """Return what a stage is made of; None: faults are noted."""
        definition, child = tree.definition, tree.children[span.child]
        assert isinstance(definition, StagedDefinition)
        part = definition.parts[span.child]
        own = part if isinstance(part, StagePart) else None
        pipeline = self.pipeline(definition.staged, own, around.pipeline)
        inner = isinstance(child.definition, StagedDefinition)
        order = None if inner else self.compiler.spec(child)
        if pipeline is None or (order is None and not inner):
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
        self, staged: Staged, part: StagePart | None, pipeline: Pipeline
    ) -> Pipeline | None:
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
            wrong(self.faults, part, f"unknown parameter {name!r}. {advice}")
        if len(self.faults) > before:
            return None
        try:
            return with_steps(pipeline.with_params(own), steps)
        except SpecError as error:
            for fault in error.faults:
                wrong(self.faults, part, fault)
            return None

    def cut(
        self,
        body: Body,
        begin: int,
        end: int | None,
        around: _Around,
        definition: StagedDefinition,
    ) -> Iterator[Stage]:
        """Yield what of a stage lies within the stage around."""
        exhausted = (body.part and body.part.on_exhausted) or definition.staged.on_exhausted
        inside = _Around(
            pipeline=body.pipeline,
            begin=max(begin, around.begin),
            end=min((one for one in (end, around.end) if one is not None), default=None),
            prefix=f"{around.prefix}{body.span.name}.",
            on_enter=self.on_enter(body, definition.staged, around),
            exhausted=exhausted or around.exhausted,
            seed=_seed(body, around),
        )
        if not self.has_room(body, inside, around):
            return
        if body.order is not None:
            yield from self.stage(body, body.order, inside, definition)
            return
        assert isinstance(body.tree, Branch)
        yield from self.of(body.tree, inside)

    def has_room(self, body: Body, inside: _Around, around: _Around) -> bool:
        """Return whether a stage ever runs, and has room for its ramp; else faults are noted."""
        if inside.end is None:
            return True
        length = inside.end - inside.begin
        if length <= 0:
            problem = f"it would never run within stage {around.prefix.rstrip('.')!r}. Take it out."
            note(self.faults, body, problem)
            return False
        if length < body.ramp_batches:
            most = f"the ramp takes {body.ramp_batches} micro-batches, the stage has {length}"
            wrong_ramp(self.faults, body, f"{most}. Shorten it")
            return False
        return True

    def stage(
        self, body: Body, order: OrderSpec, inside: _Around, definition: StagedDefinition
    ) -> Iterator[Stage]:
        """Yield a stage of the run; nothing if faults are noted. inside: what is valid in it."""
        name, pipeline = inside.prefix.removesuffix("."), inside.pipeline
        on_enter: OnEnter = inside.on_enter or "continue"
        self.trees[name] = body.tree
        if on_enter == "continue":
            self.continued.see(name, body.tree)
        if body.counts_steps:
            check_counted(self.faults, body)
            pipeline = evolve(pipeline, microbatches_per_step=None)
        try:
            whole = pipeline.over(order, first_microbatch=inside.begin)
        except SpecError as error:
            for fault in error.faults:
                note(self.faults, body, fault)
            return
        stage = Stage(
            name=name,
            of=whole,
            begin=inside.begin,
            end=inside.end,
            counts="steps" if body.counts_steps else "microbatches",
            on_enter=on_enter,
            fade=body.fade,
            seed=inside.seed,
            params={name: at for name, at in pipeline.params.items() if _is_plain(at)},
            microbatches_per_step=pipeline.microbatches_per_step,
            asked=said(body, definition.staged),
        )
        yield self.with_data(stage, body, inside.exhausted or "repeat")

    def with_data(self, stage: Stage, body: Body, rule: OnExhausted) -> Stage:
        """Return the stage, ending with its data if it is to; faults are noted."""
        run = self.compiler.run
        if rule == "repeat":
            return stage
        if body.counts_steps:
            problem = f"`on_exhausted: {rule}`: how much a stage of steps of any size takes is not "
            note(self.faults, body, f"{problem}known beforehand. Leave it out.", "on_exhausted")
            return stage
        if run is None:
            problem = (
                f"`on_exhausted: {rule}`: where its data end follows from the number of lanes, "
                "which must then be said. Pass WorkerConfig(lanes=...), or `--lanes`."
            )
            note(self.faults, body, problem, "on_exhausted")
            return stage
        try:
            made = ended(stage, run)
        except SpecError as error:
            for fault in error.faults:
                text = fault.removesuffix(".")
                advice = "Or let it go on: `on_exhausted: repeat`."
                problem = f"`on_exhausted: {rule}`: {text}. {advice}"
                note(self.faults, body, problem, "on_exhausted")
            return stage
        if rule == "error" and made.data_end is not None:
            problem = (
                f"its data end at micro-batch {made.end} of the run, and it lasts until "
                f"{stage.end or 'the end'} (`on_exhausted: error`). Make it shorter, or give it "
                "more data."
            )
            note(self.faults, body, problem)
        return made


def _seed(body: Body, around: _Around) -> int | None:
    if body.part is not None and body.part.seed is not None:
        return body.part.seed
    return None if around.seed is None else key(around.seed, "stage", body.span.name) % 2**32


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
