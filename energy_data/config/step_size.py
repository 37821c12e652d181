"""What a step of a stage is, in micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energy_data.config.builder import Builder
from energy_data.errors import SpecError

FOR_STEPS = ("microbatches_per_step", "global_batch_size")


def with_steps(pipeline: Builder[Any], steps: Mapping[str, Any]) -> Builder[Any]:
    """Return the pipeline with what a step is. SpecError if it cannot be."""
    if not steps:
        return pipeline
    if len(steps) > 1:
        raise SpecError("both `microbatches_per_step` and `global_batch_size` are given. Keep one.")
    ((name, value),) = steps.items()
    if type(value) is not int or value < 1:
        raise SpecError(f"{name}: must be a whole number >= 1, got {value!r}.")
    if name == "global_batch_size":
        if value % pipeline.samples_per_batch:
            raise SpecError(
                f"global_batch_size: must be a multiple of the batch size "
                f"{pipeline.samples_per_batch}, got {value}."
            )
        value //= pipeline.samples_per_batch
    return pipeline.with_step_size(value)
