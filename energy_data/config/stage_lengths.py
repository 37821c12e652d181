"""Lengths of stages: converts steps, samples, tokens and epochs to micro-batches; ramps."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any, Literal, Protocol, Self, TypeVar

from attrs import evolve, frozen

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.grammar import Origins
from energy_data.config.staged import Ramp, StageBounds, StagedRecipe, StagePart
from energy_data.core.rules import listed
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.references import OrderSpec, follows_run
from energy_data.nodes.stage import OnEnter
from energy_data.order.schedule import Schedule


class Built(Protocol):
    """A dataset of batches."""

    @property
    def spec(self) -> Spec:
        """Its tree."""


B_co = TypeVar("B_co", bound=Built, covariant=True)


class Builder(Protocol[B_co]):
    """Builds the batches of a mixture: those of a run, or of one of its stages.

    `energy_data.tasks.stream.StreamBuilder` is one.
    """

    @property
    def finite(self) -> bool:
        """Whether the stream is one pass."""

    @property
    def samples_per_batch(self) -> int:
        """Samples, or packs, in a micro-batch."""

    @property
    def samples_per_microbatch(self) -> int | None:
        """Samples drawn for a micro-batch, on average; None: as many as it has."""

    @property
    def microbatches_per_step(self) -> int | None:
        """Micro-batches of all ranks in an optimizer step."""

    @property
    def params(self) -> Mapping[str, Any]:
        """What a stage may change, with the values it has here."""

    def with_params(self, params: Mapping[str, Any]) -> Self:
        """Return the builder with some of its `params` changed. SpecError for an invalid value."""

    def with_step_size(self, microbatches: int | None) -> Self:
        """Return the builder with another number of micro-batches in a step."""

    def over(self, order: OrderSpec, *, first_microbatch: int = 0) -> B_co:
        """Return the batches of a mixture, from a micro-batch of the run on."""

    def of(self, spec: Spec) -> B_co:
        """Return a tree of batches as a dataset."""


@frozen(kw_only=True)
class StageBody:
    """A stage whose node is compiled: all that its length may depend on is known."""

    bounds: StageBounds
    part: StagePart | None  # None: it is the default
    tree: Spec  # with leaves that are not opened
    order: OrderSpec
    builder: Builder[Any]
    counts_steps: bool  # bounds are steps of any size, each counted as one
    ends_early: bool = False  # with its data
    ramp_batches: int = 0  # micro-batches at its beginning that the ramp takes

    @property
    def per_step(self) -> int:
        """Micro-batches of all ranks in a step; what a step counts as."""
        return 1 if self.counts_steps else self.builder.microbatches_per_step or 1

    @property
    def has_length(self) -> bool:
        """Whether it is written with `for`, and so moves with the end of the stage before."""
        return self.part is not None and self.part.length is not None

    def end_as_written(self, unit: str) -> str:
        """Return how its end is written, for people."""
        if self.bounds.end is None:
            return ""
        end = self.bounds.end - self.bounds.start if self.has_length else self.bounds.end
        number = f"{int(end):,}" if end.denominator == 1 else f"{float(end):g}"
        return f"{'' if self.has_length else 'an end at '}{number} {unit}"


@frozen
class Elapsed:
    """The total of the stages compiled so far, in `unit`."""

    amount: Fraction = Fraction(0)  # more than written where stages were rounded up
    shift: Fraction = Fraction(0)  # written bounds are so much later: stages ended with their data

    def after(self, body: StageBody, amount: Fraction, *, early: bool) -> Elapsed:
        """Return the total after one more stage. early: it ended with its data."""
        amount += self.amount
        bounds = body.bounds
        if early or bounds.end is None:
            return Elapsed(amount, amount - (bounds.end or bounds.start))
        return Elapsed(amount, self.shift if body.has_length else Fraction(0))


class StageLengths:
    """Computes lengths and ramps of the stages of one run, and reports their problems."""

    def __init__(self, diagnostics: Diagnostics, origins: Origins, staged: StagedRecipe) -> None:
        self.diagnostics, self.origins, self.staged = diagnostics, origins, staged

    def report(self, bounds: StageBounds, problem: str, *keys: str) -> None:
        """Report a problem of a stage, at the last of `keys` that is written there."""
        path = "default" if bounds.number is None else f"stages[{bounds.number}]"
        origin = self.origins.of(self.staged)
        place, where = origin.locate(f"staged.{path}")
        for name in keys:
            at, found = origin.locate(f"staged.{path}.{name}")
            if found.endswith(f".{name}"):
                place, where = at, found
        self.diagnostics.report(place, where, f"stage {bounds.name!r}: {problem}")

    def length(self, body: StageBody, elapsed: Elapsed) -> int | None:
        """Return the micro-batches of a stage with an end, in whole steps; without one, 0.

        None: a problem was reported.
        """
        bounds = body.bounds
        if bounds.end is None:
            return 0
        if not self.is_known(body):
            return None
        end = bounds.end + (elapsed.shift if body.has_length else 0)
        moves = self.staged.unit in ("steps", "epochs")
        start = bounds.start + elapsed.shift if moves else elapsed.amount
        length = max(ceil((end - start) / self.worth(body) / body.per_step) * body.per_step, 0)
        if 0 < length < body.ramp_batches:
            problem = f"the ramp takes {body.ramp_batches} micro-batches, the stage has {length}"
            self.report(bounds, f"{problem}. Shorten it.", "ramp")
            return None
        return length

    def worth(self, body: StageBody) -> Fraction:
        """Return how much of `unit` a micro-batch of a stage is; 0: not known."""
        unit, builder = self.staged.unit, body.builder
        if unit == "microbatches":
            return Fraction(1)
        if unit == "steps":
            if body.counts_steps:
                return Fraction(1)
            return Fraction(1, builder.microbatches_per_step or 1)
        samples = Fraction(builder.samples_per_batch)
        if unit == "samples":
            return samples
        if unit == "tokens":
            tokens = builder.params.get("seq_len")
            return samples * tokens if type(tokens) is int and tokens >= 1 else Fraction(0)
        return samples / body.order.size

    def is_known(self, body: StageBody) -> bool:
        """Return whether `unit` can be counted in a stage; if not, report it."""
        unit, found = self.staged.unit, body.builder.params.get("seq_len")
        per_step = body.builder.microbatches_per_step
        if unit == "steps" and per_step is None and not body.counts_steps:
            problem = (
                "the number of micro-batches in a step is not known. Give `microbatches_per_step`, "
                "the micro-batches of all ranks in an optimizer step."
            )
        elif self.worth(body):
            return True
        elif unit == "tokens" and found is None:
            problem = (
                "the number of tokens in a sample is not known. Give the task encoder a parameter "
                "`seq_len`, or count samples."
            )
        elif unit == "tokens":
            problem = f"seq_len: must be a whole number >= 1 to count tokens, got {found!r}."
            self.report(body.bounds, problem, "for", "end", "params")
            return False
        else:
            problem = f"the size of its {unit} is not known. Count steps or samples."
        self.report(body.bounds, problem, "for", "end")
        return False

    def check_counted(self, body: StageBody) -> None:
        """Report what a stage cannot have that counts steps of any size."""
        reason = "and where a stage of steps begins is known only during the run"
        if follows_run(body.order):
            problem = f"weights that change follow the micro-batches of the run, {reason}."
            self.report(body.bounds, f"{problem} Use weights that do not change.", "weight")
        if body.part is not None and body.part.ramp is not None:
            problem = f"a ramp follows the micro-batches of the run, {reason}. Remove it."
            self.report(body.bounds, problem, "ramp")

    def with_ramp(
        self, previous: StageBody | None, body: StageBody, on_enter: OnEnter
    ) -> StageBody | None:
        """Return a stage with its ramp, if it has one. None: problems were reported."""
        ramp = None if body.part is None else body.part.ramp
        if ramp is None or body.counts_steps:  # `check_counted` reports a ramp of counted steps
            return body
        if not self.is_known(body):
            return None
        batches = ceil(ramp.over / self.worth(body) / body.per_step) * body.per_step
        problem = _ramp_problem(previous, body, on_enter, batches)
        if problem is None:
            assert previous is not None
            try:
                return _ramped(previous, body, ramp, batches)
            except SpecError as error:
                problem = str(error).removesuffix(".")
        self.report(body.bounds, f"{problem}.", "ramp")
        return None


def _ramp_problem(
    previous: StageBody | None, body: StageBody, on_enter: OnEnter, batches: int
) -> str | None:
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


def _changed(previous: StageBody, body: StageBody) -> list[str]:
    """Return the parameters that differ and decide what becomes of a sample."""
    ours, theirs = body.builder.params, previous.builder.params
    names = sorted(ours.keys() | theirs.keys() - {"microbatches_per_step"})
    return [name for name in names if ours.get(name) != theirs.get(name)]


def _ramped(previous: StageBody, body: StageBody, ramp: Ramp, batches: int) -> StageBody:
    samples = batches * (body.builder.samples_per_microbatch or body.builder.samples_per_batch)
    order = ramped(previous.order, body.order, samples=samples, kind=ramp.kind)
    return evolve(body, order=order, ramp_batches=batches)


def ramped(
    previous: OrderSpec,
    following: OrderSpec,
    *,
    samples: int,
    kind: Literal["linear", "cosine"] = "linear",
) -> BlendSpec:
    """Return a blend that goes from `previous` to `following` over the first `samples`.

    While f rises from 0 to 1 (in a straight line, or half a cosine wave), the share of a leaf is
    (1 - f) times its share in `previous` plus f times its share in `following`. Each lane follows
    the integral of that. A leaf of both is drawn from as one.

    Raises:
        SpecError: If `samples` is 0, or if the weights of `previous` follow the run: they would
            start again with the ramp.
    """
    if samples < 1:
        raise SpecError(f"ramp: it must cover at least 1 sample, got {samples}.")
    if follows_run(previous):
        raise SpecError(
            "ramp: the weights of the stage before change over the run. Replace them by constant "
            "weights, or remove the ramp."
        )
    down, up = (Schedule(kind, ((0, 1 - f), (samples, f)), "samples") for f in (0, 1))
    return BlendSpec((Part(previous, down), Part(following, up)))
