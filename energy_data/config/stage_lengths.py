"""Compiling `staged`: the length and the ramp of a stage, in micro-batches of the run."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

from attrs import evolve, frozen

from energy_data.config.builder import Builder
from energy_data.config.definitions import Definition
from energy_data.config.diagnostics import Diagnostics, listed
from energy_data.config.kind_staged import Ramp, Staged, StagePart
from energy_data.config.stage_bounds import StageBounds
from energy_data.config.twigs import Branch, Twig
from energy_data.errors import SpecError
from energy_data.nodes.ramp import ramped
from energy_data.nodes.references import OrderSpec, follows_run
from energy_data.nodes.stage import OnEnter


@frozen(kw_only=True)
class Body:
    """A stage whose order tree is compiled, with everything that its length depends on."""

    span: StageBounds
    definition: Definition  # of its node, as written
    part: StagePart | None  # None: `default`
    tree: Branch | Twig
    order: OrderSpec
    pipeline: Builder[Any]
    counts_steps: bool = False  # bounds count steps of any size
    ends_early: bool = False  # with its data
    ramp_batches: int = 0  # micro-batches at its beginning that the ramp takes

    @property
    def per_step(self) -> int:
        """Micro-batches of all ranks in a step; 1 where bounds count steps of any size."""
        return 1 if self.counts_steps else self.pipeline.microbatches_per_step or 1

    @property
    def lasts(self) -> bool:
        """Whether it is written with `for`, so that it moves with the end of the stage before."""
        return self.part is not None and self.part.length is not None

    @property
    def asked(self) -> Fraction:
        """The written length or end."""
        assert self.span.end is not None
        return self.span.end - self.span.start if self.lasts else self.span.end


@frozen
class Counted:
    """The end of the stages compiled so far, in `unit`."""

    amount: Fraction = Fraction(0)  # more than written where lengths were rounded up
    moved: Fraction = Fraction(0)  # later than written; below 0 where a stage ends with its data

    def after(self, body: Body, amount: Fraction, *, early: bool) -> Counted:
        """Return the end after one more stage. early: the stage ended with its data."""
        amount += self.amount
        if early or body.span.end is None:
            return Counted(amount, amount - (body.span.end or body.span.start))
        return Counted(amount, self.moved if body.lasts else Fraction(0))


def length_of(faults: Diagnostics, body: Body, staged: Staged, counted: Counted) -> int | None:
    """Return the micro-batches of a stage with an end, in full steps; None: problem reported."""
    unit, span = staged.unit, body.span
    if span.end is None:
        return 0
    if not is_known(faults, body, staged):
        return None
    each = worth(body, staged)
    end = span.end + (counted.moved if body.lasts else 0)
    begin = span.start + counted.moved if unit in ("steps", "epochs") else counted.amount
    length = max(ceil((end - begin) / each / body.per_step) * body.per_step, 0)
    if 0 < length < body.ramp_batches:
        most = f"the ramp takes {body.ramp_batches} micro-batches, the stage has {length}"
        report_ramp(faults, body, f"{most}. Shorten it")
        return None
    return length


def check_counted(faults: Diagnostics, body: Body) -> None:
    """Report what a stage cannot have whose bounds count steps of any size."""
    follows = "and where a stage of steps begins is known only during the run"
    if follows_run(body.order):
        problem = f"weights that change follow the micro-batches of the run, {follows}."
        report(faults, body, f"{problem} Use weights that do not change.", "weight")
    if body.part is not None and body.part.ramp is not None:
        problem = f"a ramp follows the micro-batches of the run, {follows}. Remove it."
        report(faults, body, problem, "ramp")


def worth(body: Body, staged: Staged) -> Fraction:
    """Return how much of `unit` a micro-batch of a stage is; 0: unknown."""
    unit, pipeline = staged.unit, body.pipeline
    if unit == "microbatches":
        return Fraction(1)
    if unit == "steps":
        if body.counts_steps:
            return Fraction(1)
        return Fraction(1, pipeline.microbatches_per_step or 1)
    samples = Fraction(pipeline.samples_per_batch)
    if unit == "samples":
        return samples
    if unit == "tokens":
        tokens = pipeline.params.get("seq_len")
        return samples * tokens if type(tokens) is int and tokens >= 1 else Fraction(0)
    return samples / body.order.size


def is_known(faults: Diagnostics, body: Body, staged: Staged) -> bool:
    """Return whether the size of `unit` is known for a stage; report if it is not."""
    unit, found = staged.unit, body.pipeline.params.get("seq_len")
    per_step = body.pipeline.microbatches_per_step
    if unit == "steps" and per_step is None and not body.counts_steps:
        problem = (
            "the number of micro-batches in a step is not known. Give `microbatches_per_step`, "
            "the micro-batches of all ranks in an optimizer step."
        )
    elif worth(body, staged):
        return True
    elif unit == "tokens" and found is None:
        problem = (
            "the number of tokens in a sample is not known. Give the task encoder a parameter "
            "`seq_len`, or count samples."
        )
    elif unit == "tokens":
        problem = f"seq_len: must be a whole number >= 1 to count tokens, got {found!r}."
        if body.part is not None and "seq_len" in body.part.params:
            report_params(faults, body.part, problem)
            return False
    else:
        problem = f"the size of its {unit} is not known. Count steps or samples."
    report(faults, body, problem)
    return False


def report(faults: Diagnostics, body: Body, problem: str, *keys: str) -> None:
    """Report a problem of a stage, at the last of `keys` that it has."""
    definition = body.definition
    place = definition.place
    for name in keys or ("for", "end"):
        place = definition.places.get(name, place)
    faults.report(place, definition.where, f"stage {body.span.name!r}: {problem}")


def report_params(faults: Diagnostics, part: StagePart | None, problem: str) -> None:
    """Report a problem of the parameters of a stage."""
    assert part is not None, problem
    place = part.of.places.get("params", part.of.place)
    faults.report(place, f"{part.of.where}.params", f"stage {part.name!r}: {problem}")


def report_ramp(faults: Diagnostics, body: Body, problem: str) -> None:
    """Report a problem of the ramp of a stage."""
    assert body.part is not None, problem
    part = body.part.of
    place = part.places.get("ramp", part.place)
    faults.report(place, f"{part.where}.ramp", f"stage {body.span.name!r}: {problem}.")


def written_end(body: Body, staged: Staged) -> str:
    """Return how the end of a stage is written."""
    if body.span.end is None:
        return ""
    number = f"{int(body.asked):,}" if body.asked.denominator == 1 else f"{float(body.asked):g}"
    return f"{'' if body.lasts else 'an end at '}{number} {staged.unit}"


def with_ramp(
    faults: Diagnostics, previous: Body | None, body: Body, staged: Staged, on_enter: OnEnter
) -> Body | None:
    """Return a stage with its ramp, if it has one. None: problems were reported."""
    ramp = None if body.part is None else body.part.ramp
    if ramp is None or body.counts_steps:  # `check_counted` reports a ramp of counted steps
        return body
    if not is_known(faults, body, staged):
        return None
    batches = ceil(ramp.over / worth(body, staged) / body.per_step) * body.per_step
    problem = _problem(previous, body, on_enter, batches)
    if problem is None:
        assert previous is not None
        try:
            return _ramped(previous, body, ramp, batches)
        except SpecError as error:
            problem = str(error).removesuffix(".")
    report_ramp(faults, body, problem)
    return None


def _problem(previous: Body | None, body: Body, on_enter: OnEnter, batches: int) -> str | None:
    if previous is None:
        return "the first stage has no stage before it to ramp from. Remove the ramp"
    if previous.ends_early:
        return (
            "the stage before ends with its data and has none left for the ramp. Give it an "
            "earlier `end`, or remove the ramp"
        )
    if not batches:
        return "the ramp has no length. Make `over` larger, or remove the ramp"
    if changed := _changed(previous, body):
        return (
            f"a ramp blends samples of both stages within a batch, and {listed(changed)} differ "
            f"from the stage before. Make them equal, or remove the ramp"
        )
    if on_enter == "restart":
        return "a ramp continues the leaves of the stage before. Write `on_enter: continue`"
    return None


def _changed(previous: Body, body: Body) -> list[str]:
    """Return the parameters that differ and decide what becomes of a sample."""
    ours, theirs = body.pipeline.params, previous.pipeline.params
    names = sorted(ours.keys() | theirs.keys() - {"microbatches_per_step"})
    return [name for name in names if ours.get(name) != theirs.get(name)]


def _ramped(previous: Body, body: Body, ramp: Ramp, batches: int) -> Body:
    samples = batches * (body.pipeline.samples_per_microbatch or body.pipeline.samples_per_batch)
    order = ramped(previous.order, body.order, samples=samples, kind=ramp.kind)
    return evolve(body, order=order, ramp_batches=batches)
