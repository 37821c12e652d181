"""Task encoders: what a task makes of samples and batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, Self, TypeVar

import attrs

from energy_data.tasks.collate import collate

T_sample = TypeVar("T_sample")
T_encoded = TypeVar("T_encoded")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Generic[T_sample, T_encoded, T_raw_batch, T_batch]):
    """Turns samples into batches in three steps; override what the task needs.

    sample -> `encode_sample` -> encoded sample -> `batch` -> raw batch -> `encode_batch` -> batch.
    Each step may raise `SkipSample` to leave its sample or batch out. The steps must depend on
    their arguments alone: then the stream is the same on any number of ranks and workers.
    """

    def encode_sample(self, sample: T_sample) -> T_encoded:
        """Return the encoded form of one sample; by default the sample itself."""
        return sample  # type: ignore[return-value]  # the default is for T_encoded = T_sample

    def batch(self, samples: list[T_encoded]) -> T_raw_batch:
        """Return the samples as one batch; by default a dict of stacked tensors or lists."""
        batch: T_raw_batch = collate(samples)
        return batch

    def encode_batch(self, batch: T_raw_batch) -> T_batch:
        """Return the batch as the trainer gets it; by default as it is."""
        return batch  # type: ignore[return-value]  # the default is for T_batch = T_raw_batch

    def collate(self, samples: list[T_encoded]) -> T_batch:
        """Return `encode_batch(batch(samples))`."""
        return self.encode_batch(self.batch(samples))

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that a stage of a run may change, with their values.

        By default the fields of a dataclass or attrs class, and none for others.
        """
        if is_dataclass(self):
            return {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        cls: type[Any] = type(self)
        if attrs.has(cls):
            own = [one for one in attrs.fields(cls) if one.init and one.alias == one.name]
            return {one.name: getattr(self, one.name) for one in own}
        return {}

    def with_params(self, **params: Any) -> Self:
        """Return a task encoder like this one with other `params`.

        Override both for a class whose constructor does more than keep its arguments.
        """
        if is_dataclass(self):
            return replace(self, **params)
        if attrs.has(type(self)):
            changed: Self = attrs.evolve(self, **params)  # type: ignore[misc]  # just asked for
            return changed
        raise TypeError(f"{type(self).__name__} has no params, got {', '.join(params)}")

    @property
    def sample_encoder(self) -> Callable[[Any], Any] | None:
        """`encode_sample` if it is overridden, else None, so that the default costs nothing."""
        overridden = type(self).encode_sample is not TaskEncoder.encode_sample
        return self.encode_sample if overridden else None


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded, T_raw_batch, T_batch]):
    """The task encoder used when none is given; a base for one's own."""
