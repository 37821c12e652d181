"""Task encoders: the functions of a task that make samples and batches."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import MethodType
from typing import Any, Generic, Self, TypeVar

import attrs

from energy_data.core.packing import Packing
from energy_data.core.rng import sample_seed
from energy_data.core.user_call import CALL
from energy_data.data.decode.parts import SampleDecoder
from energy_data.tasks.batching import (
    Batcher,
    as_type,
    batch_fields,
    fields_of,
    generic_batch,
    has_fields,
)
from energy_data.tasks.building import Building
from energy_data.tasks.collate import collate
from energy_data.tasks.cooking import Cooker
from energy_data.tasks.stateless import DEFAULT_TOLERANCE, stateless

T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Building, Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Turns samples into batches. Override the methods that the task needs.

    sample -> `cookers`, for crude samples -> `encode_sample` or `preencode_sample` ->
    if packing: `select_samples_to_pack` -> `postencode_sample` -> `pack_selected_samples`, or
    `packing` -> `batch`, of samples in one group of `batch_group_criterion` -> `encode_batch`.

    Each function must depend on its arguments alone. Then the stream is the same on any number of
    ranks and workers, and after any restart. Randomness comes from `energy_data.sample_rng()`, or
    with `@stateless(restore_seeds=True)` from the global generators. A function may raise
    SkipSample to skip its item. Any other error goes to the error handler of the worker config,
    which logs it by default, and the item is skipped too, up to 100 failures in a row.

    Methods that are not overridden are not called, and cost nothing.
    """

    __default_failure_tolerance__: int | None = DEFAULT_TOLERANCE

    cookers: Sequence[Cooker[Any]] = ()
    decoder: Any = SampleDecoder()
    """Decodes the parts of samples and files; None: they stay bytes."""

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        """Return the encoded sample; a generator may yield any number of samples."""
        return sample

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        """Return the part of a sample that packing needs; a generator may yield several."""
        return sample

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        """Return the encoded form of a sample that was selected."""
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Return packs: lists of samples of a full buffer, in order."""
        raise NotImplementedError("select_samples_to_pack: packing needs it; it is not overridden.")

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Return the samples of a pack as one."""
        raise NotImplementedError("pack_selected_samples: packing needs it; it is not overridden.")

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """Return the group of a sample and its batch size (None: that of the call)."""
        return None, None

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        """Return samples as one batch.

        Dicts become a dict, see `energy_data.tasks.collate`. Dataclasses and named tuples become
        one of the same type. Tensors are padded with zeros to one shape and stacked; those of packs
        made by `packing` are only stacked, if they are of one shape.
        """
        first = samples[0]
        if isinstance(first, dict) or not has_fields(first):
            return collate(samples, pad=self.packing is None)
        return self._batch(samples, type(first), {"__subflavors__": list})

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        """Return a batch for the trainer; a generator may yield any number of batches."""
        return batch

    def _batch(
        self,
        samples: list[Any],
        result_type: type[Any],
        actions: Mapping[str, Batcher] | None = None,
        default_action: Batcher = generic_batch,
    ) -> Any:
        """Return samples as one value of `result_type`, each field by its action or the default."""
        if hasattr(result_type, "from_samples"):
            return result_type.from_samples(samples)
        return as_type(batch_fields(samples, actions or {}, default_action), result_type)

    def _is_overridden(
        self, bound_method: Callable[..., Any], bases: Sequence[type] | None = None
    ) -> bool:
        """Return whether a method overrides that of the base classes. Default: `TaskEncoder`."""
        if not isinstance(bound_method, MethodType):
            return True
        function = bound_method.__func__
        own = bases or (TaskEncoder,)
        return not any(getattr(base, function.__name__, None) is function for base in own)

    def _function(self, name: str) -> Callable[..., Any] | None:
        """Return the method `name`, or None if it is the default and does nothing."""
        method: Callable[..., Any] = getattr(self, name)
        return method if self._is_overridden(method) else None

    @property
    def has_functions(self) -> bool:
        """Whether functions of the task see samples, which then need `__restore_key__`."""
        return bool(self.cookers or self.packing or any(map(self._function, _HOOKS)))

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that a stage of a run may change, with their values.

        By default the fields of a dataclass or attrs class; other classes have none.
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

        Override both for a class whose constructor does more than store its arguments.
        """
        if is_dataclass(self):
            return replace(self, **params)
        if attrs.has(type(self)):
            changed: Self = attrs.evolve(self, **params)  # type: ignore[misc]  # just asked for
            return changed
        raise TypeError(f"{type(self).__name__} has no params, got {', '.join(params)}")

    @property
    def current_batch_index(self) -> int:
        """The number in the run of the micro-batch that is being made."""
        return CALL.batch

    @property
    def current_sample_index(self) -> int:
        """A 63-bit hash of the seed, the running function and its sample; it is not a count."""
        return sample_seed() >> 1


_HOOKS = (
    *("encode_sample", "preencode_sample", "postencode_sample", "select_samples_to_pack"),
    *("pack_selected_samples", "batch_group_criterion", "batch", "encode_batch"),
)


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """The task encoder used when none is given. It converts to types, field by field.

    A type is a dataclass, a NamedTuple or `dict`. Names of fields must match. A type may lack
    `__key__` and the other fields that describe a sample.
    """

    _encoded_sample_type: type[Any] | None = None
    _raw_batch_type: type[Any] | None = None
    _batch_type: type[Any] | None = None

    def __init__(
        self,
        *,
        encoded_sample_type: type[T_encoded_sample] | None = None,
        raw_batch_type: type[T_raw_batch] | None = None,
        batch_type: type[T_batch] | None = None,
    ) -> None:
        """Set the types that `encode_sample`, `batch` and `encode_batch` convert to."""
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        """Return the sample as the type of encoded samples."""
        return _converted(sample, self._encoded_sample_type)

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        """Return samples as one batch, of the type of raw batches if there is one."""
        if self._raw_batch_type is None:
            return super().batch(samples)
        return self._batch(samples, self._raw_batch_type, {"__subflavors__": list})

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        """Return the batch as the type of batches."""
        return _converted(batch, self._batch_type)

    def _function(self, name: str) -> Callable[..., Any] | None:
        types = {
            "encode_sample": self._encoded_sample_type,
            "batch": self._raw_batch_type,
            "encode_batch": self._batch_type,
        }
        if name in types and types[name] is None:
            method: Callable[..., Any] = getattr(self, name)
            return (
                method if self._is_overridden(method, (DefaultTaskEncoder, TaskEncoder)) else None
            )
        return super()._function(name)


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Changes some functions of another task encoder. Override them, and call `super()`."""

    def __init__(self, task_encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
        """Wrap the task encoder that does everything not overridden here."""
        self._task_encoder = task_encoder
        self.cookers, self.decoder = task_encoder.cookers, task_encoder.decoder

    def encode_sample(self, sample: Any) -> Any:
        """Call the other task encoder."""
        return self._task_encoder.encode_sample(sample)

    def preencode_sample(self, sample: Any) -> Any:
        """Call the other task encoder."""
        return self._task_encoder.preencode_sample(sample)

    def postencode_sample(self, sample: Any) -> Any:
        """Call the other task encoder."""
        return self._task_encoder.postencode_sample(sample)

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Return the packs of the other task encoder."""
        return self._task_encoder.select_samples_to_pack(samples)

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Return the pack of the other task encoder."""
        return self._task_encoder.pack_selected_samples(samples)

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """Return the group of the other task encoder."""
        return self._task_encoder.batch_group_criterion(sample)

    @property
    def packing(self) -> Packing | None:
        """The packing of the other task encoder."""
        return self._task_encoder.packing

    def batch(self, samples: list[Any]) -> Any:
        """Return the batch of the other task encoder."""
        return self._task_encoder.batch(samples)

    def encode_batch(self, batch: Any) -> Any:
        """Call the other task encoder."""
        return self._task_encoder.encode_batch(batch)

    def _function(self, name: str) -> Callable[..., Any] | None:
        method: Callable[..., Any] = getattr(self, name)
        if self._is_overridden(method, (AugmentTaskEncoder, TaskEncoder)):
            return method
        return self._task_encoder._function(name)


def _converted(value: Any, kind: type[Any] | None) -> Any:
    if kind is None or isinstance(value, kind):
        return value
    return as_type(fields_of(value), kind)
