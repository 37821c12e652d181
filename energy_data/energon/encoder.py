"""Energon's task encoders: what a task does with samples and batches, and with whole datasets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MethodType
from typing import Any, Generic, TypeVar

from energy_data.core.rng import sample_seed
from energy_data.core.user_call import CALL
from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.files.cache import CachePool, NoCachePool
from energy_data.data.files.stores import FileStore, PrimaryFileStore
from energy_data.energon.building import Building
from energy_data.tasks.batching import Batcher, batch_fields, generic_batch
from energy_data.tasks.cooking import Cooker
from energy_data.tasks.fields import as_type, fields_of
from energy_data.tasks.stateless import DEFAULT_TOLERANCE, stateless

T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Building, Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Makes batches of samples; override what the task needs.

    sample -> (`cookers`, of crude samples) -> `encode_sample` or `preencode_sample` ->
    (`select_samples_to_pack` -> `postencode_sample` -> `pack_selected_samples`, if packing) ->
    `batch`, of samples that `batch_group_criterion` puts together -> `encode_batch` -> batch.

    Each function must depend on its arguments alone: then the stream is the same on any number of
    ranks and workers, and after any restart. Randomness comes from `energy_data.sample_rng()`, or
    with `@stateless(restore_seeds=True)` from the global generators. A function may raise
    SkipSample to leave its item out; any other error goes to the handler of the worker config, by
    default into the log, and the item is left out too, up to a number of failures in a row.
    """

    __default_failure_tolerance__: int | None = DEFAULT_TOLERANCE

    cookers: Sequence[Cooker[Any]] = ()
    decoder: Any = SampleDecoder()
    """Makes values of the parts of samples and of files; None: they stay bytes."""

    @stateless
    def cook_crude_sample(
        self, sample: Any, cooker: Cooker[Any], aux: Mapping[str, FileStore[Any]]
    ) -> Any:
        """Return a crude sample cooked, with the file stores and the cache the cooker needs."""
        needs: dict[str, Any] = dict(aux)
        if cooker.need_cache:
            needs["cache"] = self.cache
        if cooker.need_primary:
            needs["primary"] = PrimaryFileStore(aux["primary"], current_key=sample["__key__"])
        return cooker.cook(sample, **needs)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        """Return the encoded form of a sample, or, as a generator, any number of forms."""
        return sample

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        """Return what is needed of a sample to select it for a pack; a generator gives several."""
        return sample

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        """Return the encoded form of a sample that was selected."""
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Return packs: which samples of a full buffer go together, in which order."""
        raise NotImplementedError("select_samples_to_pack: packing needs it; it is not overridden.")

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Return the samples of a pack as one."""
        raise NotImplementedError("pack_selected_samples: packing needs it; it is not overridden.")

    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """Return the group a sample is batched in, and its batch size (None: the one of all)."""
        return None, None

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        """Return samples as one batch of the type of the first, tensors padded and stacked."""
        return self._batch(samples, type(samples[0]))

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        """Return a batch as the trainer gets it, or, as a generator, any number of batches."""
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
        """Return whether a method is not that of one of the base classes, by default of this."""
        if not isinstance(bound_method, MethodType):
            return True
        function = bound_method.__func__
        own = bases or (TaskEncoder,)
        return not any(getattr(base, function.__name__, None) is function for base in own)

    def _function(self, name: str) -> Callable[..., Any] | None:
        """Return the method `name` if there is something to do, None if it is the default."""
        method: Callable[..., Any] = getattr(self, name)
        return method if self._is_overridden(method) else None

    @property
    def current_batch_index(self) -> int:
        """The number in the run of the micro-batch that is being made; see `Loader.last_batch`."""
        return CALL.batch

    @property
    def current_sample_index(self) -> int:
        """A number of 63 bits for what the running function works on: unique but for collisions.

        It is made of the seed, the function's place and the sample, and is no count.
        """
        return sample_seed() >> 1

    @property
    def cache(self) -> CachePool:
        """The cache pool of the loader; without one, a pool that reads when asked."""
        pool: CachePool | None = CALL.function.cache if CALL.function else None
        return pool or NoCachePool()


class DefaultTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """The task encoder used when none is given; it converts to types, field by field.

    A type is a dataclass, a NamedTuple or `dict`. Names of fields must match; a type may leave
    `__key__` and the other fields that describe a sample out.
    """

    def __init__(
        self,
        *,
        encoded_sample_type: type[T_encoded_sample] | None = None,
        raw_batch_type: type[T_raw_batch] | None = None,
        batch_type: type[T_batch] | None = None,
    ) -> None:
        """Say what `encode_sample`, `batch` and `encode_batch` convert to; None: nothing."""
        self._encoded_sample_type = encoded_sample_type
        self._raw_batch_type = raw_batch_type
        self._batch_type = batch_type

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        """Return the sample as the type of encoded samples."""
        return _converted(sample, self._encoded_sample_type)

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        """Return samples as one of the type of raw batches, tensors padded and stacked."""
        kind = self._raw_batch_type or type(samples[0])
        return self._batch(samples, kind, {"__subflavors__": list})

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        """Return the batch as the type of batches."""
        return _converted(batch, self._batch_type)

    def _function(self, name: str) -> Callable[..., Any] | None:
        types = {"encode_sample": self._encoded_sample_type, "encode_batch": self._batch_type}
        if name in types and types[name] is None:
            method: Callable[..., Any] = getattr(self, name)
            return method if self._is_overridden(method, (DefaultTaskEncoder,)) else None
        return super()._function(name)


class AugmentTaskEncoder(TaskEncoder[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Another task encoder with some functions changed: override them, and call `super()`."""

    def __init__(self, task_encoder: TaskEncoder[Any, Any, Any, Any]) -> None:
        """Say what does everything that is not overridden here."""
        self._task_encoder = task_encoder
        self.cookers, self.decoder = task_encoder.cookers, task_encoder.decoder

    def encode_sample(self, sample: Any) -> Any:
        """Return what the other task encoder makes of it."""
        return self._task_encoder.encode_sample(sample)

    def preencode_sample(self, sample: Any) -> Any:
        """Return what the other task encoder makes of it."""
        return self._task_encoder.preencode_sample(sample)

    def postencode_sample(self, sample: Any) -> Any:
        """Return what the other task encoder makes of it."""
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

    def batch(self, samples: list[Any]) -> Any:
        """Return the batch of the other task encoder."""
        return self._task_encoder.batch(samples)

    def encode_batch(self, batch: Any) -> Any:
        """Return what the other task encoder makes of it."""
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
