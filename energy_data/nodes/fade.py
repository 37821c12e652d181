"""How one stage fades into the next step by step: which of the two makes each step."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from attrs import frozen

from energy_data.errors import SpecError

FadeKind = Literal["linear", "cosine", "step"]

_ONE = 1 << 20  # shares of steps are counted in parts of this, equal on all machines


@frozen(kw_only=True)
class Fade:
    """The first `steps` steps of a stage, each made by its own pipeline or by the one before.

    At step t, t / steps of the way is gone; the share f of steps that the stage makes itself is 0
    at the beginning and 1 at the end. It makes step t if the sum of f over the steps so far, plus
    a half, passes a whole number there: so after any number of steps it has made as many as f says,
    to within one; without chance, and the same on all ranks.
    """

    kind: FadeKind
    steps: int
    before: int  # micro-batches in a step of the stage before
    now: int  # in one of the stage itself

    def __attrs_post_init__(self) -> None:
        for name in ("steps", "before", "now"):
            if getattr(self, name) < 1:
                raise SpecError(f"fade: {name} must be >= 1, got {getattr(self, name)}.")

    def describe(self) -> list[Any]:
        """Return it as plain data."""
        return [self.kind, self.steps, self.before, self.now]

    @cached_property
    def own(self) -> npt.NDArray[np.bool_]:
        """Whether the stage makes each step itself, bool [steps]."""
        share = np.zeros(self.steps, np.int64)
        if self.kind != "step":
            way = np.arange(self.steps) / self.steps
            way = way if self.kind == "linear" else (1 - np.cos(np.pi * way)) / 2
            share = np.rint(way * _ONE).astype(np.int64)
        made = (np.cumsum(share) + _ONE // 2) // _ONE
        return np.diff(made, prepend=0) > 0

    @cached_property
    def begins(self) -> npt.NDArray[np.int64]:
        """The first micro-batch of each step, and the first after the fade, int64 [steps + 1]."""
        sizes = np.where(self.own, self.now, self.before)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    @property
    def batches(self) -> int:
        """The number of micro-batches."""
        return int(self.begins[-1])

    @property
    def batches_before(self) -> int:
        """The number of micro-batches that the stage before makes."""
        return int((~self.own).sum()) * self.before

    def is_own(self, batch: int) -> bool:
        """Return whether the stage makes its micro-batch `batch`, counted from 0, itself."""
        if batch >= self.batches:
            return True
        step = int(np.searchsorted(self.begins, batch, side="right")) - 1
        return bool(self.own[step])


__all__ = ["Fade", "FadeKind"]
