"""Task encoders: what a task makes of samples and batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import fields, is_dataclass, replace
from types import MethodType
from typing import Any, Generic, Self, TypeVar

import attrs

from energy_data.core.packing import Packing
from energy_data.core.rows import without_rows
from energy_data.tasks.collate import collate

T_sample = TypeVar("T_sample")
T_encoded = TypeVar("T_encoded")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Generic[T_sample, T_encoded, T_raw_batch, T_batch]):
    """Turns samples into batches in three steps; override what the task needs.

    sample -> `encode_sample` -> encoded sample -> `batch` -> raw batch -> `encode_batch` -> batch.
    Each step may raise `SkipSample` to leave its sample or batch out. The steps must depend on
    their arguments alone: then the stream is the same on any number of ranks and workers. An
    `encode_sample` that is a generator gives several samples for one.

    Encoded samples are packed between the first two steps if there is a `packing`; or, with
    `packing_buffer_size`, as `select_samples_to_pack` and `pack_selected_samples` say. Then
    `preencode_sample` may stand in place of `encode_sample`, and `postencode_sample` makes the rest
    of what was selected: so what waits in the buffer stays small.
    """

    @property
    def packing(self) -> Packing | None:
        """How to pack encoded samples by size; by default None: they are not packed so."""
        return None

    def encode_sample(self, sample: T_sample) -> T_encoded:
        """Return the encoded form of one sample; by default the sample itself."""
        return sample  # type: ignore[return-value]  # the default is for T_encoded = T_sample

    def preencode_sample(self, sample: T_sample) -> Any:
        """Return what is packed, or given to `postencode_sample`; by default `encode_sample`."""
        return self.encode_sample(sample)

    def postencode_sample(self, sample: Any) -> T_encoded:
        """Return the encoded form of a sample that was selected; by default the sample itself."""
        encoded: T_encoded = sample
        return encoded

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Return the samples of a full buffer in lists that are packed together.

        Return the samples themselves, not copies; those that are in no list are left out.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how samples are packed")

    def pack_selected_samples(self, samples: list[T_encoded]) -> T_encoded:
        """Return the samples of one list as one sample."""
        raise NotImplementedError(f"{type(self).__name__} does not say how samples are packed")

    def batch_group_criterion(self, sample: T_encoded) -> tuple[Hashable, int | None]:
        """Return the group of a sample, and the batch size of its group or None for the usual.

        A batch then has samples of one group. If it is not overridden, all samples are one group.
        """
        return None, None

    def batch(self, samples: list[T_encoded]) -> T_raw_batch:
        """Return the samples as one batch; by default a dict of stacked tensors or lists."""
        batch: T_raw_batch = collate(samples)
        return batch

    def encode_batch(self, batch: T_raw_batch) -> T_batch:
        """Return the batch as the trainer gets it; by default as it is."""
        return batch  # type: ignore[return-value]  # the default is for T_batch = T_raw_batch

    def collate(self, samples: list[T_encoded]) -> T_batch:
        """Return `encode_batch(batch(samples))`."""
        if "batch" in getattr(self, "__dict__", ()):  # perhaps put there after the run was made
            samples = [without_rows(sample) for sample in samples]
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
    def has_functions(self) -> bool:
        """Whether something of it is called: then samples say which they are, for `sample_rng`."""
        return any(getattr(type(self), name) is not getattr(TaskEncoder, name) for name in _CALLED)

    @property
    def only_collates(self) -> bool:
        """Whether batches are made as by default, so that no code of others sees their samples."""
        ours = MethodType(TaskEncoder.batch, self), MethodType(TaskEncoder.collate, self)
        return (self.batch, self.collate) == ours

    @property
    def sample_encoder(self) -> Callable[[Any], Any] | None:
        """What makes of a sample what is packed, or batched; None costs nothing."""
        return self._overridden("preencode_sample") or self._overridden("encode_sample")

    @property
    def selected_encoder(self) -> Callable[[Any], Any] | None:
        """What is made of a selected sample before it is packed; None costs nothing."""
        return self._overridden("postencode_sample")

    @property
    def selector(self) -> Callable[[Any], Any] | None:
        """What says which samples are packed together; None: nothing does."""
        return self._overridden("select_samples_to_pack")

    @property
    def grouper(self) -> Callable[[Any], Any] | None:
        """What says which samples are batched together; None: nothing does."""
        return self._overridden("batch_group_criterion")

    def _overridden(self, name: str) -> Callable[[Any], Any] | None:
        """Return a method if this class has its own, else None: defaults are not called."""
        if getattr(type(self), name) is getattr(TaskEncoder, name):
            return None
        method: Callable[[Any], Any] = getattr(self, name)
        return method


_CALLED = (
    *("packing", "encode_sample", "preencode_sample", "postencode_sample", "batch", "encode_batch"),
    *("select_samples_to_pack", "pack_selected_samples", "batch_group_criterion", "collate"),
)


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded, T_raw_batch, T_batch]):
    """The task encoder used when none is given; a base for one's own."""
