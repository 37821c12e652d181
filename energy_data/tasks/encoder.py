"""`TaskEncoder`: the functions of a task, and how datasets of batches are built of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, Generic, Self, TypeVar

import attrs

from energy_data.core.spec import Spec
from energy_data.core.user_call import gives_parts
from energy_data.core.worker_config import WorkerConfig
from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.files.stores import FileStore, PrimaryFileStore
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.packing import Packing
from energy_data.nodes.select_pack import PackedSamplesOutput
from energy_data.tasks.collate import (
    Batcher,
    as_type,
    batch_fields,
    collate,
    generic_batch,
    has_fields,
)
from energy_data.tasks.datasets import (
    BatchDataset,
    EpochizeDataset,
    GroupBatchDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    PackingDataset,
)
from energy_data.tasks.functions import (
    DEFAULT_TOLERANCE,
    BatchAndEncode,
    Cooker,
    RunningCall,
    cooked,
    recipe_of,
    stateless,
)
from energy_data.tasks.mixture import DatasetBlendMode, LoadedDataset, blended, samples_of
from energy_data.tasks.orders import (
    ConcatDataset,
    ShuffleBufferDataset,
    uncounted,
)

T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")

_OF_SAMPLES = ("encode_sample", "preencode_sample", "postencode_sample")
_OF_LISTS = ("select_samples_to_pack", "pack_selected_samples", "batch")
HOOKS = (*_OF_SAMPLES, *_OF_LISTS, "batch_group_criterion", "encode_batch")


class TaskEncoder(RunningCall, Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """Turns samples into batches. Override the methods that the task needs.

    sample -> `cookers`, for crude samples -> `encode_sample` or `preencode_sample` ->
    if packing: `select_samples_to_pack` -> `postencode_sample` -> `pack_selected_samples`, or
    `packing` -> `batch`, of samples in one group of `batch_group_criterion` -> `encode_batch`.

    Each function must depend on its arguments alone. Then the stream is the same on any number of
    ranks and workers, and after any restart. Randomness comes from `energy_data.sample_rng()`, or
    with `@stateless(restore_seeds=True)` from the global generators. A function may raise
    SkipSample to skip its item. Any other error goes to the error handler of the worker config,
    which logs it by default, and the item is skipped too, up to 100 failures in a row.

    Methods that are not overridden are not called, and cost nothing. Override the `build_*` methods
    to change blending or batching.
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

    def select_samples_to_pack(
        self, samples: list[Any]
    ) -> list[list[Any]] | PackedSamplesOutput[Any]:
        """Return packs: lists of samples of a full buffer, in order.

        A `PackedSamplesOutput` also has samples, or parts of them, that the next buffer begins
        with.
        """
        raise NotImplementedError("select_samples_to_pack: packing needs it; it is not overridden.")

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """Return the samples of a pack as one."""
        raise NotImplementedError("pack_selected_samples: packing needs it; it is not overridden.")

    @property
    def packing(self) -> Packing | None:
        """How to pack encoded samples by size. None: by `select_samples_to_pack`, or not at all."""
        return None

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

    @stateless
    def encode_batch(self, batch: Any) -> Any:
        """Return a batch for the trainer; a generator may yield any number of batches."""
        return batch

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

    @property
    def params(self) -> dict[str, Any]:
        """The parameters that a stage of a run may change, with their values.

        By default the fields of a dataclass or attrs class; other classes have none.
        """
        if is_dataclass(self):
            return {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        cls: type[Any] = type(self)
        own = attrs.fields(cls) if attrs.has(cls) else ()
        names = [one.name for one in own if one.init and one.alias == one.name]
        return {name: getattr(self, name) for name in names}

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
    def has_functions(self) -> bool:
        """Whether functions of the task see samples, which then need `__restore_key__`."""
        return bool(self.cookers or self.packing or any(map(self._function, HOOKS)))

    def is_counted(self, packing_buffer_size: int | None) -> bool:
        """Return whether each sample of a batch is made of one sample that was read."""
        if packing_buffer_size is not None or self.packing:
            return False
        several = any(gives_parts(self._function(name)) for name in _OF_SAMPLES)
        return not (several or self._function("batch_group_criterion"))

    def build_train_datasets(
        self,
        *,
        datasets: list[LoadedDataset[Any]],
        worker_config: WorkerConfig,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        virtual_epoch_length: int = 0,
        shuffle_buffer_size: int | None = None,
        blend_mode: DatasetBlendMode = DatasetBlendMode.NONE,
        repeat: bool = True,
    ) -> SavableDataset[Any]:
        """Return the training dataset of a mixture, down to batches.

        `datasets` are mixed as the metadataset nests them, or if you changed the list, by their
        weights or repetitions, as `blend_mode` says. The rest is as in `get_train_dataset`.
        """
        join = partial(blended, datasets, mode=blend_mode, repeat=repeat)
        dataset = samples_of(self, datasets, join, once=not repeat)
        if shuffle_buffer_size is not None and shuffle_buffer_size > 1:
            dataset = ShuffleBufferDataset(dataset, size=shuffle_buffer_size)
        dataset = self.build_encode_sample(dataset, worker_config=worker_config)
        dataset = self.build_batch(
            dataset,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            worker_config=worker_config,
        )
        if worker_config.should_log(1):
            dataset = LogSampleDataset(dataset, mode="train")
        if virtual_epoch_length > 0:
            dataset = EpochizeDataset(dataset, length=virtual_epoch_length)
        return dataset

    def build_val_datasets(
        self,
        *,
        datasets: list[LoadedDataset[Any]],
        worker_config: WorkerConfig,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        limit: int | None = None,
    ) -> SavableDataset[Any]:
        """Return the validation dataset: one pass over all datasets, down to batches.

        limit: batches of this rank; None or 0: all. The rest is as in `build_train_datasets`.
        """
        dataset = samples_of(self, datasets, lambda each: ConcatDataset(*each), once=True)
        dataset = self.build_encode_sample(dataset, worker_config=worker_config)
        dataset = self.build_batch(
            dataset,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            worker_config=worker_config,
        )
        if limit:
            dataset = LimitDataset(dataset, length=limit)
        if worker_config.should_log(2):
            dataset = LogSampleDataset(dataset, mode="val")
        return dataset

    def build_encode_sample(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig
    ) -> SavableDataset[Any]:
        """Return the dataset with its samples encoded, or pre-encoded."""
        before, full = self._function("preencode_sample"), self._function("encode_sample")
        if before and full:
            raise SpecError(
                f"{type(self).__name__}: it overrides both preencode_sample and encode_sample, and "
                f"one would never be called. Override preencode_sample and postencode_sample, or "
                f"encode_sample."
            )
        return self._mapped(dataset, before or full)

    def build_batch(
        self,
        dataset: SavableDataset[Any],
        *,
        batch_size: int | None,
        batch_drop_last: bool = False,
        packing_buffer_size: int | None = None,
        worker_config: WorkerConfig,
    ) -> SavableDataset[Any]:
        """Return the dataset packed, grouped and batched, as the task requires."""
        dataset = self._packed(dataset, packing_buffer_size)
        batcher: Callable[[list[Any]], Any] = self.batch
        last = self._function("encode_batch")
        if last and not (gives_parts(batcher) or gives_parts(last)):
            batcher, last = BatchAndEncode(batcher, last), None
        tolerance = self._tolerance(self.batch)
        options: Any = {"drop_last": batch_drop_last, "failure_tolerance": tolerance}
        if criterion := self._function("batch_group_criterion"):
            dataset = GroupBatchDataset(dataset, batch_size, criterion, batcher, **options)
        elif batch_size is None:
            return dataset
        else:
            dataset = BatchDataset(dataset, batch_size, batcher, **options)
            spec = dataset.spec
            if isinstance(spec, BatchSpec) and not self._sees_samples(spec.of):
                # No function of the user sees the samples: their tensors may be rows of the batch.
                return dataset.replace(spec=attrs.evolve(spec, shows_none=True, on_failure=None))
        return self._mapped(dataset, last)

    def _sees_samples(self, of: Spec) -> bool:
        """Return whether a function of the task sees samples of this spec, or makes their batch."""
        if isinstance(of, PackSpec) and of.packing.rows is not None:
            return any(map(self._function, ("batch", "encode_batch")))
        return self.has_functions or getattr(of, "keys", True)

    def build_cook_crude_sample(
        self,
        dataset: SavableDataset[Any],
        *,
        worker_config: WorkerConfig,
        subflavors: Mapping[str, Any],
        get_primary_aux: Callable[[], FileStore[Any]],
        aux: Mapping[str, FileStore[Any]] | None = None,
    ) -> SavableDataset[Any]:
        """Return a dataset of crude samples, cooked by the cooker for these subflavors."""
        recipe = recipe_of(self, subflavors, get_primary_aux, aux or {}, "the dataset")
        return cooked(dataset, self, recipe)

    def _load_dataset(
        self,
        dataset: LoadedDataset[Any],
        worker_rotation_offset: int,
        worker_config: WorkerConfig,
    ) -> SavableDataset[Any]:
        """Return one pass over a dataset; crude samples are cooked if there are cookers."""
        loaded = dataset.dataset
        samples = loaded.build(worker_rotation_offset)
        if not self.cookers:
            return samples
        if len(loaded.leaves) > 1 or not loaded.is_crude:
            return cooked(samples, self)
        return self.build_cook_crude_sample(
            samples,
            worker_config=worker_config,
            subflavors=loaded.subflavors,
            get_primary_aux=loaded.as_file_store,
            aux=dataset.aux,
        )

    def _packed(self, dataset: SavableDataset[Any], buffer_size: int | None) -> SavableDataset[Any]:
        """Return the dataset with its samples post-encoded, and packed."""
        after = self._function("postencode_sample")
        if self.packing is not None:
            spec = uncounted(self._mapped(dataset, after).spec)
            size = {} if buffer_size is None else {"buffer_size": buffer_size}
            return dataset.replace(spec=PackSpec(of=spec, packing=self.packing, **size))
        if buffer_size is None:
            return self._mapped(dataset, after)
        select = self._function("select_samples_to_pack")
        pack = self._function("pack_selected_samples")
        if select is None or pack is None:
            raise SpecError(
                f"{type(self).__name__}: packing_buffer_size needs `packing`, or both "
                f"select_samples_to_pack and pack_selected_samples. Override them, or leave "
                f"packing_buffer_size out."
            )
        return PackingDataset(
            dataset,
            buffer_size,
            select,
            pack,
            sample_encoder=after,
            pre_packer_failure_tolerance=self._tolerance(select),
            final_packer_failure_tolerance=self._tolerance(pack),
            sample_encoder_failure_tolerance=self._tolerance(after),
        )

    def _mapped(
        self, dataset: SavableDataset[Any], function: Callable[[Any], Any] | None
    ) -> SavableDataset[Any]:
        if function is None:
            return dataset
        return MapDataset(dataset, function, failure_tolerance=self._tolerance(function))

    def _tolerance(self, function: Callable[..., Any] | None) -> int:
        """Return the failures in a row of a function after which the run stops; 0: never."""
        return getattr(function, "__failure_tolerance__", self.__default_failure_tolerance__) or 0

    def _function(self, name: str) -> Callable[..., Any] | None:
        """Return the method `name`; None for a default of this package, which does nothing."""
        method: Callable[..., Any] = getattr(self, name)
        return None if method.__module__.startswith(__package__) else method
