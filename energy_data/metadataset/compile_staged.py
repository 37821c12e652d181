"""Compiling `staged`: from bounds in steps, samples, tokens or epochs to micro-batches of the run.

A `staged` inside a stage becomes stages of the outer one, so that a run has one list of stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from typing import Any, Protocol

from attrs import evolve, frozen

from energy_data.errors import SpecError
from energy_data.metadataset.compile_ramp import Fade, ramp_order
from energy_data.metadataset.definitions import Definition, Mode
from energy_data.metadataset.faults import Faults, did_you_mean, listed
from energy_data.metadataset.kind_staged import Staged, StagedDefinition, StagePart
from energy_data.metadataset.spans import Span
from energy_data.metadataset.step_size import FOR_STEPS, with_steps
from energy_data.metadataset.twigs import Branch, Twig
from energy_data.nodes.staged import StagedSpec
from energy_data.order.keys import key
from energy_data.pipeline import Pipeline
from energy_data.references import OrderSpec
from energy_data.spec import Spec
from energy_data.stage import OnEnter, Stage, wrong_bodies

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
    faults: Faults

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
    seed: int | None = None


@frozen(kw_only=True)
class _Body:
    """A stage whose node was compiled: all that its length may depend on is known."""

    span: Span
    definition: Definition  # as written where the stage is
    part: StagePart | None  # None: what fills the gap at the front
    tree: Branch | Twig
    order: OrderSpec | None  # None: it is a `staged`
    pipeline: Pipeline

    @property
    def per_step(self) -> int:
        return self.pipeline.microbatches_per_step or 1


def staged_stream(compiler: Compiler, tree: Branch, pipeline: Pipeline) -> Spec | None:
    """Return the stages of a run; None: faults are noted."""
    assert isinstance(tree.definition, StagedDefinition)
    before = len(compiler.faults)
    if pipeline.finite:
        problem = "stages need a stream without end. Leave `repeat=False` out."
        compiler.faults.add(tree.definition.place, tree.definition.where, problem)
        return None
    if tree.definition.staged.at is not None:
        problem = "`at` picks a stage for validation; training runs all of them. Take it out."
        place = tree.definition.places["staged"]
        compiler.faults.add(place, f"{tree.definition.where}.staged.at", problem)
    told = {*PIPELINE_PARAMS, *changed_params(tree)}
    stages = tuple(
        evolve(stage, params={name: at for name, at in stage.params.items() if name in told})
        for stage in _Stages(compiler).of(tree, _Around(pipeline=pipeline))
    )
    if len(compiler.faults) == before:
        staged = tree.definition.staged
        for problem in wrong_bodies(stages):
            compiler.faults.add(tree.definition.place, tree.definition.where, problem)
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
        compiler.faults.add(place, where, f"{problem} Put the mixture into the stages.")
        return None
    name = definition.staged.at
    if name is None:
        problem = f"validation has no stages, found {listed(definition.names)}."
        compiler.faults.add(place, where, f"{problem} Add `at:` with the one to read.")
        return None
    if name not in definition.names:
        near = did_you_mean(name, definition.names)
        advice = f"Did you mean {near!r}?" if near else f"There are {listed(definition.names)}."
        place, where = definition.places["staged"], f"{where}.staged.at"
        compiler.faults.add(place, where, f"there is no stage {name!r}. {advice}")
        return None
    return compiler.spec(tree.children[definition.names.index(name)])


class _Stages:
    def __init__(self, compiler: Compiler) -> None:
        self.compiler, self.faults = compiler, compiler.faults

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
        counted = Fraction(0)  # in `unit`, up to `begin`
        previous: _Body | None = None
        for body in known:
            length = self.length(body, staged, counted)
            if length is None:
                return
            end = None if body.span.end is None else begin + length
            if end is not None:
                counted += length * self.worth(body, staged)
            if end is not None and end <= begin:
                problem = "it is shorter than what was rounded up before it, and would never run."
                self.note(body, f"{problem} Make it longer.")
            mixed = self.ramped(previous, body, around, staged, None if end is None else length)
            yield from self.cut(mixed, begin, end, around, definition)
            previous, begin = body, begin if end is None else end
            if end is None:
                return
        if around.prefix and (around.end is None or begin < around.end):
            self.note(
                known[-1],
                f"it ends at micro-batch {begin} of the run, but the stage around, "
                f"{around.prefix.rstrip('.')!r}, lasts until {around.end or 'the end'}. Leave its "
                "end out.",
            )

    def of_the_run(self, definition: StagedDefinition, around: _Around) -> None:
        """Note what is said of the run as a whole inside a stage."""
        for name in ("buffers", "resume") if around.prefix else ():
            if getattr(definition.staged, name) is not None:
                problem = f"`{name}` is of the run as a whole. Write it in the outermost `staged`."
                place = definition.places["staged"]
                self.faults.add(place, f"{definition.where}.staged.{name}", problem)

    def ramped(
        self,
        previous: _Body | None,
        body: _Body,
        around: _Around,
        staged: Staged,
        length: int | None,
    ) -> _Body:
        """Return a stage with the mixture before it fading in; faults are noted."""
        ramp = None if body.part is None else body.part.ramp
        if ramp is None or body.part is None:
            return body
        found: OrderSpec | str = "it is the first stage, there is nothing to fade from. Take it out"
        if previous is not None:
            worth = self.worth(body, staged)
            steps = ceil(ramp.over / worth / body.per_step) if worth else 0
            on_enter = body.part.on_enter or staged.on_enter or around.on_enter or "continue"
            fade = Fade(
                kind=ramp.kind,
                batches=steps * body.per_step,
                most=length,
                goes_on=on_enter == "continue",
            )
            found = ramp_order(
                (previous.order, previous.pipeline), (body.order, body.pipeline), fade
            )
        if not isinstance(found, str):
            return evolve(body, order=found)
        part = body.part.of
        place = part.places.get("ramp", part.place)
        self.faults.add(place, f"{part.where}.ramp", f"stage {body.span.name!r}: {found}.")
        return body

    def body(self, tree: Branch, span: Span, around: _Around) -> _Body | None:
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
        return _Body(
            span=span,
            definition=part.of,
            part=own,
            tree=child,
            order=order,
            pipeline=pipeline,
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
            self.wrong(part, f"unknown parameter {name!r}. {advice}")
        if len(self.faults) > before:
            return None
        try:
            return with_steps(pipeline.with_params(own), steps)
        except SpecError as error:
            for fault in error.faults:
                self.wrong(part, fault)
            return None

    def wrong(self, part: StagePart | None, problem: str) -> None:
        """Note what is wrong with the parameters of a stage."""
        assert part is not None, problem
        place = part.of.places.get("params", part.of.place)
        self.faults.add(place, f"{part.of.where}.params", f"stage {part.name!r}: {problem}")

    def note(self, body: _Body, problem: str) -> None:
        definition = body.definition
        place = definition.place
        for name in ("for", "end"):
            place = definition.places.get(name, place)
        self.faults.add(place, definition.where, f"stage {body.span.name!r}: {problem}")

    def length(self, body: _Body, staged: Staged, counted: Fraction) -> int | None:
        """Return the micro-batches of a stage, whole steps. None: faults are noted.

        counted: what the stages before have, which is more than asked where they were rounded up.
        """
        unit, span = staged.unit, body.span
        if span.end is None:
            return 0
        if unit == "steps" and body.pipeline.microbatches_per_step is None:
            self.note(
                body,
                "how many micro-batches a step has is not known, so its bounds in steps say "
                "nothing. Give `microbatches_per_step`: those of all ranks in an optimizer step.",
            )
            return None
        worth = self.worth(body, staged)
        if not worth:
            self.unknown(body, unit)
            return None
        asked = span.end - (span.start if unit in ("steps", "epochs") else counted)
        return max(ceil(asked / worth / body.per_step), 0) * body.per_step

    def worth(self, body: _Body, staged: Staged) -> Fraction:
        """Return how much of `unit` a micro-batch of a stage is; 0: not known."""
        unit, pipeline = staged.unit, body.pipeline
        if unit == "microbatches":
            return Fraction(1)
        if unit == "steps":
            return Fraction(1, body.per_step)
        samples = Fraction(pipeline.batch_size)
        if unit == "samples":
            return samples
        if unit == "tokens":
            tokens = pipeline.params.get("seq_len")
            return samples * tokens if type(tokens) is int and tokens >= 1 else Fraction(0)
        return samples / body.order.size if body.order is not None else Fraction(0)

    def unknown(self, body: _Body, unit: str) -> None:
        """Note that `unit` says nothing of a stage."""
        found = body.pipeline.params.get("seq_len")
        problem = f"how long one of its {unit} is cannot be told. Count in steps or samples."
        if unit == "tokens" and found is None:
            problem = (
                "how many tokens a sample has is not known. Give the task encoder a parameter "
                "`seq_len`, or count in samples."
            )
        elif unit == "tokens":
            problem = f"seq_len: must be a whole number >= 1 to count tokens, got {found!r}."
            if body.part is not None and "seq_len" in body.part.params:
                self.wrong(body.part, problem)
                return
        self.note(body, problem)

    def cut(
        self,
        body: _Body,
        begin: int,
        end: int | None,
        around: _Around,
        definition: StagedDefinition,
    ) -> Iterator[Stage]:
        """Yield what of a stage lies within the stage around."""
        limit = around.end
        if limit is not None:
            end = limit if end is None else min(end, limit)
        begin = max(begin, around.begin)
        if end is not None and end <= begin:
            problem = f"it would never run within stage {around.prefix.rstrip('.')!r}. Take it out."
            self.note(body, problem)
            return
        name, part, pipeline = around.prefix + body.span.name, body.part, body.pipeline
        on_enter = (part and part.on_enter) or definition.staged.on_enter or around.on_enter
        seed = None if part is None else part.seed
        if seed is None and around.seed is not None:
            seed = key(around.seed, "stage", body.span.name) % 2**32
        if body.order is None:
            assert isinstance(body.tree, Branch)
            inside = _Around(
                pipeline=pipeline,
                begin=begin,
                end=end,
                prefix=f"{name}.",
                on_enter=on_enter,
                seed=seed,
            )
            yield from self.of(body.tree, inside)
            return
        try:
            whole = pipeline.over(body.order, first_microbatch=begin)
        except SpecError as error:
            for fault in error.faults:
                self.note(body, fault)
            return
        yield Stage(
            name=name,
            of=whole,
            begin=begin,
            end=end,
            on_enter=on_enter or "continue",
            seed=seed,
            params={name: at for name, at in pipeline.params.items() if _is_plain(at)},
            microbatches_per_step=pipeline.microbatches_per_step,
            asked=_asked(body, definition.staged),
        )


def _asked(body: _Body, staged: Staged) -> str:
    """Return how the end of a stage was written."""
    span = body.span
    if span.end is None:
        return ""
    length = body.part is not None and body.part.length is not None
    amount = span.end - span.start if length else span.end
    number = f"{int(amount):,}" if amount.denominator == 1 else f"{float(amount):g}"
    return f"{'' if length else 'an end at '}{number} {staged.unit}"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)
