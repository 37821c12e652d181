"""Compiling `ramp`: the mixture of one stage blends into that of the next."""

from __future__ import annotations

from math import ceil

from attrs import evolve

from energy_data.config.compile_lengths import Body, is_known, worth, wrong_ramp
from energy_data.config.diagnostics import Diagnostics, listed
from energy_data.config.kind_staged import Ramp, Staged
from energy_data.errors import SpecError
from energy_data.nodes.ramp import ramped
from energy_data.nodes.stage import OnEnter


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
    wrong_ramp(faults, body, problem)
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
    samples = batches * (body.pipeline.samples_per_microbatch or body.pipeline.batch_size)
    order = ramped(previous.order, body.order, samples=samples, kind=ramp.kind)
    return evolve(body, order=order, ramp_batches=batches)
