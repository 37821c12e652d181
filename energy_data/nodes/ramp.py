"""Ramps: from one mixture to the next, sample by sample."""

from __future__ import annotations

from typing import Literal

from energy_data.errors import SpecError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.references import OrderSpec, follows_run
from energy_data.order.schedule import Schedule

RampKind = Literal["linear", "cosine"]


def ramped(
    previous: OrderSpec, following: OrderSpec, *, samples: int, kind: RampKind = "linear"
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
