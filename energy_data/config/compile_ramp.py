"""Compiling `ramp`: how the mixture of one stage fades into that of the next."""

from __future__ import annotations

from math import ceil

from attrs import evolve

from energy_data.config.compile_lengths import Body, is_known, worth, wrong_ramp
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.kind_staged import Ramp, Staged
from energy_data.errors import SpecError
from energy_data.nodes.fade import Fade
from energy_data.nodes.ramp import ramped
from energy_data.nodes.references import follows_run
from energy_data.nodes.stage import OnEnter
from energy_data.tasks.pipeline import Pipeline


def fading(
    faults: Diagnostics, previous: Body | None, body: Body, staged: Staged, on_enter: OnEnter
) -> Body | None:
    """Return a stage with the one before fading into it, if it has a ramp. None: faults are noted.

    Where both make the same of a sample, sample by sample, in one order; else step by step.
    """
    ramp = None if body.part is None else body.part.ramp
    if ramp is None or body.part is None or body.counts_steps:
        return body  # what is wrong with it in steps of any size is told elsewhere
    if not is_known(faults, body, staged):
        return None
    found: Body | str = "it is the first stage, there is nothing to fade from. Take it out"
    if previous is not None:
        found = _faded(previous, body, staged, ramp, on_enter)
    if not isinstance(found, str):
        return found
    wrong_ramp(faults, body, found)
    return None


def _faded(previous: Body, body: Body, staged: Staged, ramp: Ramp, on_enter: OnEnter) -> Body | str:
    """Return a stage into which the one before fades, or what is wrong."""
    steps = ceil(ramp.over / worth(body, staged) / body.per_step)
    if wrong := _wrong(previous, body, steps):
        return wrong
    if _different(previous.pipeline, body.pipeline):
        per_step = {"before": previous.per_step, "now": body.per_step}
        return _by_steps(previous, body, staged, Fade(kind=ramp.kind, steps=steps, **per_step))
    if on_enter == "restart":
        return "its leaves begin anew, so those before cannot fade out. Write `on_enter: continue`"
    return _by_samples(previous, body, ramp, steps * body.per_step)


def _wrong(previous: Body, body: Body, steps: int) -> str | None:
    if previous.order is None or body.order is None:
        return "it or the stage before has stages inside, which do not fade. Take the ramp out"
    if previous.ends_early:
        return (
            "the stage before ends with its data, and has none left to fade out. Give it an `end` "
            "that comes first, or take the ramp out"
        )
    return None if steps else "the ramp is over nothing. Make it longer, or take it out"


def _by_samples(previous: Body, body: Body, ramp: Ramp, batches: int) -> Body | str:
    assert previous.order is not None
    assert body.order is not None
    drawn = body.pipeline.samples_per_microbatch or body.pipeline.batch_size
    try:
        order = ramped(previous.order, body.order, samples=batches * drawn, kind=ramp.kind)
    except SpecError as error:
        return str(error).removesuffix(".")
    return evolve(body, order=order, mixed=batches)


def _by_steps(previous: Body, body: Body, staged: Staged, fade: Fade) -> Body | str:
    assert previous.order is not None
    assert body.order is not None
    if follows_run(previous.order) or follows_run(body.order):
        return (
            "each step of it is of one stage, as they differ in parameters, so weights that change "
            "over the run would lag behind. Write them out, or take the ramp out"
        )
    return evolve(body, fade=fade, fade_each=worth(body, staged, previous.pipeline))


def _different(one: Pipeline, other: Pipeline) -> bool:
    """Return whether parameters differ that decide what becomes of a sample."""
    ours, theirs = one.params, other.params
    names = ours.keys() | theirs.keys()
    return any(
        ours.get(name) != theirs.get(name) for name in names if name != "microbatches_per_step"
    )
