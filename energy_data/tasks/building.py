"""How a task encoder builds datasets: override these methods to change blending or batching.

Older versions of Energon pass fewer arguments. Overrides written for those are called with the
arguments that they accept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

from attrs import evolve, frozen

from energy_data.core.context import WorkerConfig
from energy_data.core.packing import Packing
from energy_data.core.spec import Spec
from energy_data.core.user_call import CALL, ErrorPolicy, FunctionInfo
from energy_data.data.files.cache import CachePool, NoCachePool
from energy_data.data.files.stores import FileStore, PrimaryFileStore
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.buffered import gives_parts
from energy_data.nodes.pack import PackSpec
from energy_data.nodes.read import ReadSpec
from energy_data.tasks.batches import BatchDataset, GroupBatchDataset, PackingDataset
from energy_data.tasks.cooking import Cooker, cooked, cooked_alike, cooked_by_leaf, recipe_of
from energy_data.tasks.datasets import (
    BlendDataset,
    ConcatDataset,
    EpochizeDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    RepeatDataset,
    ShuffleBufferDataset,
)
from energy_data.tasks.mixture import DatasetBlendMode, LoadedDataset, LoadedDatasets
from energy_data.tasks.stateless import get_failure_tolerance, stateless
from energy_data.tasks.trees import on_failure, with_references

# A finite pass is dealt to the lanes batch by batch. Where the number of samples in a batch is not
# known in advance (packs, groups, generators), this many neighbours are dealt at a time: few, so
# that lanes get equal shares, and neighbours, so that they are read together.
UNCOUNTED_DEAL = 8


class Building:
    """The part of a task encoder that builds datasets."""

    __default_failure_tolerance__: int | None
    cookers: Sequence[Cooker[Any]]
    decoder: Any

    @property
    def packing(self) -> Packing | None:
        """How to pack encoded samples by size. None: by `select_samples_to_pack`, or not at all."""
        return None

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
    def cache(self) -> CachePool:
        """The cache pool of the loader. Without one, a pool that reads on demand."""
        pool: CachePool | None = CALL.function.cache if CALL.function else None
        return pool or NoCachePool()

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

        Args:
            datasets: The datasets to mix.
            worker_config: Which part of the run this process is.
            batch_size: Samples per batch; None: samples are not batched.
            batch_drop_last: Drop the short batch at the end of a pass.
            packing_buffer_size: Samples that packs are selected from; None: no packing.
            virtual_epoch_length: Batches of this rank in an epoch; 0: no epochs.
            shuffle_buffer_size: Neighbouring draws of a dataset that are shuffled; None: none.
            blend_mode: Whether datasets have weights or repetitions.
            repeat: Continue without end.
        """
        if not datasets:
            raise SpecError("build_train_datasets: there are no datasets. Pass at least one.")
        if isinstance(datasets, LoadedDatasets) and datasets.as_made:
            dataset = self._whole(datasets)
            if not repeat:
                dataset = self._once(dataset, packing_buffer_size)
        else:
            dataset = self._mixed(datasets, blend_mode, repeat=repeat)
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
        dataset = _logging(dataset, "train", worker_config, level=1)
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
        if not datasets:
            raise SpecError("build_val_datasets: there are no datasets. Pass at least one.")
        if isinstance(datasets, LoadedDatasets) and datasets.as_made:
            dataset = self._once(self._whole(datasets), packing_buffer_size)
        else:
            each = [self._load_dataset(loaded, 0, worker_config) for loaded in datasets]
            dataset = ConcatDataset(*each) if len(each) > 1 else each[0]
        dataset = self.build_encode_sample(dataset, worker_config=worker_config)
        dataset = self.build_batch(
            dataset,
            batch_size=batch_size,
            batch_drop_last=batch_drop_last,
            packing_buffer_size=packing_buffer_size,
            worker_config=worker_config,
        )
        if limit is not None and limit > 0:
            dataset = LimitDataset(dataset, length=limit, reset_after_epoch=True)
        return _logging(dataset, "val", worker_config, level=2)

    def build_encode_sample(
        self, dataset: SavableDataset[Any], *, worker_config: WorkerConfig
    ) -> SavableDataset[Any]:
        """Return the dataset with its samples encoded, or pre-encoded."""
        before, whole = self._function("preencode_sample"), self._function("encode_sample")
        if before and whole:
            raise SpecError(
                f"{type(self).__name__}: it overrides both preencode_sample and encode_sample, and "
                f"one would never be called. Override preencode_sample and postencode_sample, or "
                f"encode_sample."
            )
        return self._mapped(dataset, before or whole)

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
        batcher: Callable[[list[Any]], Any] = getattr(self, "batch")  # noqa: B009 - a method of `TaskEncoder`
        tolerance = self._tolerance(batcher)
        last = self._function("encode_batch")
        is_default = not (last or self._function("batch"))
        if last and not (gives_parts(batcher) or gives_parts(last)):
            batcher, last = BatchAndEncode(batcher, last), None
        if criterion := self._function("batch_group_criterion"):
            dataset = GroupBatchDataset(
                dataset,
                fixed_batch_size=batch_size,
                sample_group_key=criterion,
                batcher=batcher,
                drop_last=batch_drop_last,
                failure_tolerance=tolerance,
            )
        elif batch_size is None:
            return dataset
        else:
            dataset = BatchDataset(
                dataset, batch_size, batcher, drop_last=batch_drop_last, failure_tolerance=tolerance
            )
            if is_default:
                dataset = dataset.replace(spec=_showing_none(dataset.spec))
        return self._mapped(dataset, last)

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
        return dataset.replace(spec=cooked(dataset.spec, self, recipe, self._policy(dataset)))

    def _load_dataset(
        self,
        dataset: LoadedDataset[Any],
        worker_rotation_offset: int,
        worker_config: WorkerConfig,
    ) -> SavableDataset[Any]:
        """Return one pass over a dataset; crude samples are cooked if there are cookers."""
        samples = dataset.dataset.build(worker_rotation_offset)
        if not self.cookers:
            return samples
        policy = self._policy(samples)
        if len(dataset.dataset.leaves) > 1:  # a part of a mixture that is not a plain blend
            return samples.replace(spec=cooked_by_leaf(samples.spec, self, policy))
        if not dataset.dataset.is_crude:
            return samples
        return self.build_cook_crude_sample(
            samples,
            worker_config=worker_config,
            subflavors=dataset.dataset.subflavors,
            get_primary_aux=dataset.dataset.as_file_store,
            aux=dataset.aux,
        )

    def _whole(self, datasets: LoadedDatasets) -> SavableDataset[Any]:
        """Return the mixture as the metadataset nests it, cooked."""
        whole = datasets.whole
        if not self.cookers:
            return whole
        parts = [self._load_dataset(loaded, 0, whole.worker_config) for loaded in datasets]
        return whole.replace(spec=cooked_alike(whole.spec, [part.spec for part in parts]))

    def _once(
        self, dataset: SavableDataset[Any], packing_buffer_size: int | None
    ) -> SavableDataset[Any]:
        """Return one pass over a mixture, dealt to the lanes in runs of neighbours."""
        deal = 1 if self.is_counted(packing_buffer_size) else UNCOUNTED_DEAL
        return dataset.replace(spec=with_references(dataset.spec, deal=deal))

    def is_counted(self, packing_buffer_size: int | None) -> bool:
        """Return whether each sample of a batch is made of one sample that was read."""
        several = map(self._function, ("encode_sample", "preencode_sample", "postencode_sample"))
        return not (
            packing_buffer_size is not None
            or self.packing is not None
            or self._function("batch_group_criterion")
            or any(map(gives_parts, several))
        )

    def _mixed(
        self,
        datasets: Sequence[LoadedDataset[Any]],
        blend_mode: DatasetBlendMode,
        *,
        repeat: bool,
    ) -> SavableDataset[Any]:
        """Return a mixture of datasets that were chosen by the user, not by a metadataset."""
        parts: list[tuple[SavableDataset[Any], float]] = []
        for loaded in datasets:
            dataset = self._load_dataset(loaded, 0, loaded.as_dataset().worker_config)
            if blend_mode is DatasetBlendMode.DATASET_WEIGHT or (
                repeat and blend_mode is DatasetBlendMode.NONE
            ):
                weight = 1.0 if loaded.weight is None else loaded.weight
                parts.append((RepeatDataset(dataset), weight))
            else:
                times = float(1 if loaded.repetitions is None else loaded.repetitions)
                size = len(loaded.dataset) * times
                parts.append((RepeatDataset(dataset, repeats=times), size))
        mixed: SavableDataset[Any] = BlendDataset(*parts)
        return RepeatDataset(mixed) if repeat else mixed

    def _packed(self, dataset: SavableDataset[Any], buffer_size: int | None) -> SavableDataset[Any]:
        """Return the dataset with its samples post-encoded, and packed if the task packs."""
        after = self._function("postencode_sample")
        if buffer_size is None or self.packing is not None:
            dataset = self._mapped(dataset, after)
            if self.packing is None:
                return dataset
            size = {} if buffer_size is None else {"buffer_size": buffer_size}
            return dataset.replace(spec=PackSpec(of=dataset.spec, packing=self.packing, **size))
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
            sample_encoder_failure_tolerance=self._tolerance(after) if after else 0,
        )

    def _mapped(
        self, dataset: SavableDataset[Any], function: Callable[[Any], Any] | None
    ) -> SavableDataset[Any]:
        if function is None:
            return dataset
        return MapDataset(dataset, function, failure_tolerance=self._tolerance(function))

    def _policy(self, dataset: SavableDataset[Any]) -> ErrorPolicy:
        return on_failure(dataset.worker_config, self.__default_failure_tolerance__ or 0)

    def _tolerance(self, function: Callable[..., Any]) -> int:
        return get_failure_tolerance(function, self.__default_failure_tolerance__)

    def _function(self, name: str) -> Callable[..., Any] | None:
        """Return the method `name` if there is something to do, None if it is the default."""
        raise NotImplementedError  # implemented by `TaskEncoder`


@frozen
class BatchAndEncode:
    """`batch`, followed by `encode_batch`."""

    batch: Callable[[list[Any]], Any]
    encode: Callable[[Any], Any]

    @property
    def __name__(self) -> str:
        """The name of the function, for messages and random numbers."""
        return "batch"

    def __call__(self, samples: list[Any]) -> Any:
        """Return the batch. Each function has its own random numbers."""
        raw, info = self.batch(samples), CALL.function
        if info is not None:
            CALL.function = FunctionInfo(
                info.seed, "encode_batch", info.cache, info.requires_identity
            )
        return self.encode(raw)


def _showing_none(spec: Spec) -> Spec:
    """Return the tree without error policy if no function of the user sees the samples."""
    if isinstance(spec, BatchSpec) and isinstance(spec.of, ReadSpec) and not spec.of.keys:
        return evolve(spec, shows_none=True, on_failure=None)
    return spec


def call_with_accepted(method: Callable[..., Any], **arguments: Any) -> Any:
    """Call a method with the arguments that it accepts; overrides may accept fewer."""
    takes = signature(method).parameters
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in takes.values()):
        return method(**arguments)
    return method(**{name: value for name, value in arguments.items() if name in takes})


def _logging(
    dataset: SavableDataset[Any], mode: str, worker_config: WorkerConfig, level: int
) -> SavableDataset[Any]:
    if not worker_config.should_log(level):
        return dataset
    return LogSampleDataset(dataset, mode="train" if mode == "train" else "val")
