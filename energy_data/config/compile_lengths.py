"""Compiling `staged`: how long a stage is, in micro-batches of the run."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from attrs import frozen

from energy_data.config.definitions import Definition
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.kind_staged import Staged, StagePart
from energy_data.config.spans import Span
from energy_data.config.twigs import Branch, Twig
from energy_data.nodes.references import OrderSpec, follows_run
from energy_data.tasks.pipeline import Pipeline


@frozen(kw_only=True)
class Body:
    """A stage whose node was compiled: all that its length may depend on is known."""

    span: Span
    definition: Definition  # as written where the stage is
    part: StagePart | None  # None: what fills the gap at the front
    tree: Branch | Twig
    order: OrderSpec
    pipeline: Pipeline
    counts_steps: bool = False  # bounds are steps of any size, each counted as one
    ends_early: bool = False  # with its data
    ramp_batches: int = 0  # micro-batches at its beginning that the ramp takes

    @property
    def per_step(self) -> int:
        """Micro-batches of all ranks in a step; what a step counts as."""
        return 1 if self.counts_steps else self.pipeline.microbatches_per_step or 1

    @property
    def lasts(self) -> bool:
        """Whether it is written as `for`, and moves with the end of the stage before."""
        return self.part is not None and self.part.length is not None

    @property
    def asked(self) -> Fraction:
        """What is written as its length or its end."""
        assert self.span.end is not None
        return self.span.end - self.span.start if self.lasts else self.span.end


@frozen
class Counted:
    """How far the stages are that are compiled so far, in `unit`."""

    amount: Fraction = Fraction(0)  # more than asked where stages were rounded up
    moved: Fraction = Fraction(0)  # what is written lies so much before: stages ended with data

    def after(self, body: Body, amount: Fraction, *, early: bool) -> Counted:
        """Return how far they are after one more, of `amount`. early: it ended with its data."""
        amount += self.amount
        if early or body.span.end is None:
            return Counted(amount, amount - (body.span.end or body.span.start))
        return Counted(amount, self.moved if body.lasts else Fraction(0))


def length_of(faults: Diagnostics, body: Body, staged: Staged, counted: Counted) -> int | None:
    """Return the micro-batches that a stage with an end is to have, whole steps.

    None: faults are noted.
    """
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
        wrong_ramp(faults, body, f"{most}. Shorten it")
        return None
    return length


def check_counted(faults: Diagnostics, body: Body) -> None:
    """Note what a stage cannot have that is counted in steps of any size."""
    follows = "and with which micro-batch of the run a stage begins is not known beforehand"
    if follows_run(body.order):
        problem = f"weights that change follow the micro-batches of the run, {follows}."
        note(faults, body, f"{problem} Use weights that do not change.", "weight")
    if body.part is not None and body.part.ramp is not None:
        problem = f"a ramp follows the micro-batches of the run, {follows}. Take it out."
        note(faults, body, problem, "ramp")


def worth(body: Body, staged: Staged) -> Fraction:
    """Return how much of `unit` a micro-batch of a stage is; 0: not known."""
    unit, pipeline = staged.unit, body.pipeline
    if unit == "microbatches":
        return Fraction(1)
    if unit == "steps":
        if body.counts_steps:
            return Fraction(1)
        return Fraction(1, pipeline.microbatches_per_step or 1)
    samples = Fraction(pipeline.batch_size)
    if unit == "samples":
        return samples
    if unit == "tokens":
        tokens = pipeline.params.get("seq_len")
        return samples * tokens if type(tokens) is int and tokens >= 1 else Fraction(0)
    return samples / body.order.size


def is_known(faults: Diagnostics, body: Body, staged: Staged) -> bool:
    """Return whether `unit` says something of a stage; if not, it is noted."""
    unit, found = staged.unit, body.pipeline.params.get("seq_len")
    per_step = body.pipeline.microbatches_per_step
    if unit == "steps" and per_step is None and not body.counts_steps:
        problem = (
            "how many micro-batches a step has is not known, so its bounds in steps say "
            "nothing. Give `microbatches_per_step`: those of all ranks in an optimizer step."
        )
    elif worth(body, staged):
        return True
    elif unit == "tokens" and found is None:
        problem = (
            "how many tokens a sample has is not known. Give the task encoder a parameter "
            "`seq_len`, or count in samples."
        )
    elif unit == "tokens":
        problem = f"seq_len: must be a whole number >= 1 to count tokens, got {found!r}."
        if body.part is not None and "seq_len" in body.part.params:
            wrong(faults, body.part, problem)
            return False
    else:
        problem = f"how long one of its {unit} is cannot be told. Count in steps or samples."
    note(faults, body, problem)
    return False


def note(faults: Diagnostics, body: Body, problem: str, *keys: str) -> None:
    """Note what is wrong with a stage, at the last of `keys` that is written there."""
    definition = body.definition
    place = definition.place
    for name in keys or ("for", "end"):
        place = definition.places.get(name, place)
    faults.report(place, definition.where, f"stage {body.span.name!r}: {problem}")


def wrong(faults: Diagnostics, part: StagePart | None, problem: str) -> None:
    """Note what is wrong with the parameters of a stage."""
    assert part is not None, problem
    place = part.of.places.get("params", part.of.place)
    faults.report(place, f"{part.of.where}.params", f"stage {part.name!r}: {problem}")


def wrong_ramp(faults: Diagnostics, body: Body, problem: str) -> None:
    """Note what is wrong with the ramp of a stage."""
    assert body.part is not None, problem
    part = body.part.of
    place = part.places.get("ramp", part.place)
    faults.report(place, f"{part.where}.ramp", f"stage {body.span.name!r}: {problem}.")


def said(body: Body, staged: Staged) -> str:
    """Return how the end of a stage was written."""
    if body.span.end is None:
        return ""
    number = f"{int(body.asked):,}" if body.asked.denominator == 1 else f"{float(body.asked):g}"
    return f"{'' if body.lasts else 'an end at '}{number} {staged.unit}"
