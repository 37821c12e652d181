"""Compiling `ramp`: when the mixture of one stage can fade into that of the next."""

from __future__ import annotations

from attrs import frozen

from energy_data.errors import SpecError
from energy_data.pipeline import Pipeline
from energy_data.ramp import RampKind, ramped
from energy_data.references import OrderSpec

Mixture = tuple[OrderSpec | None, Pipeline]
"""The order of a stage (None: it has stages itself), and what its samples go through."""


@frozen(kw_only=True)
class Fade:
    """How one stage fades into the next."""

    kind: RampKind
    batches: int  # micro-batches that it takes
    most: int | None  # those of the stage; None: it goes on without end
    goes_on: bool  # whether leaves go on where they were


def ramp_order(previous: Mixture, following: Mixture, fade: Fade) -> OrderSpec | str:
    """Return the order of a stage into which the one before fades, or what is wrong."""
    (old, old_pipeline), (new, new_pipeline) = previous, following
    if old is None or new is None:
        return "it or the stage before has stages inside, which do not fade. Take the ramp out"
    if different := _different(old_pipeline, new_pipeline):
        return (
            f"a ramp mixes samples of both stages in one batch, and they differ in "
            f"{', '.join(different)}. Make these equal, or take the ramp out"
        )
    if wrong := _wrong(fade):
        return wrong
    drawn = new_pipeline.samples_per_microbatch or new_pipeline.batch_size
    try:
        return ramped(old, new, samples=fade.batches * drawn, kind=fade.kind)
    except SpecError as error:
        return str(error).removesuffix(".")


def _wrong(fade: Fade) -> str | None:
    if not fade.goes_on:
        return "its leaves begin anew, so those before cannot fade out. Write `on_enter: continue`"
    if fade.batches < 1:
        return "the ramp is over nothing. Make it longer, or take it out"
    if fade.most is not None and fade.batches > fade.most:
        return f"the ramp takes {fade.batches} micro-batches, the stage has {fade.most}. Shorten it"
    return None


def _different(one: Pipeline, other: Pipeline) -> list[str]:
    """Return the names of parameters that decide what becomes of a sample, and differ."""
    ours, theirs = one.params, other.params
    return sorted(
        name
        for name in ours.keys() | theirs.keys()
        if name != "microbatches_per_step" and ours.get(name) != theirs.get(name)
    )
