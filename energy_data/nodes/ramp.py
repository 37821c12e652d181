"""Ramps: from one mixture to the next, sample by sample."""

from __future__ import annotations

from typing import Literal

from energy_data.errors import SpecError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.references import OrderSpec, follows_run
from energy_data.order.schedule import Schedule

RampKind = Literal["linear", "cosine", "step"]


def ramped(
    previous: OrderSpec, following: OrderSpec, *, samples: int, kind: RampKind = "linear"
) -> BlendSpec:
    """Return `following`, into which `previous` fades over the first `samples` of the run.

    With f from 0 to 1 (in a straight line, half a cosine wave, or at once at the end), a leaf's
    share at each place is (1 - f) times what it has in `previous`, plus f times what it has in
    `following`, 0 where it is missing. Each lane follows the integral of that. A leaf that is in
    both is drawn from as one.

    Raises:
        SpecError: If there is nothing to fade over, or `previous` has weights that change itself:
            at its end they would begin anew.
    """
    if samples < 1:
        raise SpecError(f"ramp: it must be over 1 sample or more, got {samples}.")
    if follows_run(previous):
        raise SpecError(
            "ramp: the weights it starts from change over the run themselves. Write them out, or "
            "leave the ramp out."
        )
    down, up = (Schedule(kind, ((0, 1 - f), (samples, f)), "samples") for f in (0, 1))
    return BlendSpec((Part(previous, down), Part(following, up)))
