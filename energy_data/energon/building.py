"""How a task encoder builds datasets: what a task overrides to blend or batch in its own way.

Older versions of Energon pass fewer arguments to these methods and give datasets as pairs
(dataset, weight); what is overridden for them is called as they would have called it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any

from energy_data.core.context import WorkerConfig
from energy_data.core.user_call import ErrorPolicy
from energy_data.data.files.stores import FileStore
from energy_data.energon.batches import BatchDataset, GroupBatchDataset, PackingDataset
from energy_data.energon.cooking import cooked, cooked_alike, cooked_by_leaf, recipe_of
from energy_data.energon.dataset import SavableDataset, changed
from energy_data.energon.epochs import EpochizeDataset, LimitDataset, RepeatDataset
from energy_data.energon.loaded import DatasetBlendMode, LoadedDataset, LoadedDatasets
from energy_data.energon.mapping import LogSampleDataset, MapDataset, ShuffleBufferDataset
from energy_data.energon.mixing import BlendDataset, ConcatDataset
from energy_data.energon.trees import on_failure, with_references
from energy_data.errors import SpecError
from energy_data.tasks.cooking import Cooker
from energy_data.tasks.stateless import get_failure_tolerance


class Building:
    """The part of a task encoder that puts datasets together."""

    __default_failure_tolerance__: int | None
    cookers: Sequence[Cooker[Any]]

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
            datasets: What is mixed.
            worker_config: Which part of the run this process is.
            batch_size: Samples per batch; None: samples are not batched.
            batch_drop_last: Leave out the short batch at the end of a pass.
            packing_buffer_size: Samples that packs are selected from; None: no packing.
            virtual_epoch_length: Batches of this rank in an epoch; 0: no epochs.
            shuffle_buffer_size: Neighbouring draws of a dataset that are mixed; None: none.
            blend_mode: Whether datasets have weights or repetitions.
            repeat: Go on without end.
        """
        if not datasets:
            raise SpecError("build_train_datasets: it got no datasets.")
        if isinstance(datasets, LoadedDatasets) and datasets.as_made:
            dataset = self._whole(datasets, repeat=repeat)
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
        if virtual_epoch_length > 0:
            dataset = EpochizeDataset(dataset, length=virtual_epoch_length)
        return _logging(dataset, "train", worker_config, level=1)

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
            raise SpecError("build_val_datasets: it got no datasets.")
        each = [self._load_dataset(loaded, 0, worker_config) for loaded in datasets]
        dataset: SavableDataset[Any] = ConcatDataset(*each) if len(each) > 1 else each[0]
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
        """Return the dataset packed, grouped and batched, as far as the task does so."""
        if packing_buffer_size is not None:
            dataset = self._packed(dataset, packing_buffer_size)
        else:
            dataset = self._mapped(dataset, self._function("postencode_sample"))
        batch = getattr(self, "batch")  # noqa: B009 - of the task encoder this is a part of
        tolerance = self._tolerance(batch)
        if criterion := self._function("batch_group_criterion"):
            dataset = GroupBatchDataset(
                dataset,
                fixed_batch_size=batch_size,
                sample_group_key=criterion,
                batcher=batch,
                drop_last=batch_drop_last,
                failure_tolerance=tolerance,
            )
        elif batch_size is None:
            return dataset
        else:
            dataset = BatchDataset(
                dataset,
                batch_size,
                batch,
                drop_last=batch_drop_last,
                failure_tolerance=tolerance,
            )
        return self._mapped(dataset, self._function("encode_batch"))

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
        return changed(dataset, spec=cooked(dataset.spec, self, recipe, self._policy(dataset)))

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
            return changed(samples, spec=cooked_by_leaf(samples.spec, self, policy))
        if not dataset.dataset.is_crude:
            return samples
        return self.build_cook_crude_sample(
            samples,
            worker_config=worker_config,
            subflavors=dataset.dataset.subflavors,
            get_primary_aux=dataset.dataset.as_file_store,
            aux=dataset.aux,
        )

    def _whole(self, datasets: LoadedDatasets, *, repeat: bool) -> SavableDataset[Any]:
        """Return the mixture as the metadataset says it, nested as it is there."""
        whole = datasets.whole
        parts = [self._load_dataset(loaded, 0, whole.worker_config) for loaded in datasets]
        whole = changed(whole, spec=cooked_alike(whole.spec, [part.spec for part in parts]))
        return whole if repeat else changed(whole, spec=with_references(whole.spec, deal=1))

    def _mixed(
        self,
        datasets: Sequence[LoadedDataset[Any]],
        blend_mode: DatasetBlendMode,
        *,
        repeat: bool,
    ) -> SavableDataset[Any]:
        """Return a mixture of datasets that are not all of their metadataset, or others."""
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

    def _packed(self, dataset: SavableDataset[Any], buffer_size: int) -> SavableDataset[Any]:
        select = self._function("select_samples_to_pack")
        pack = self._function("pack_selected_samples")
        if select is None or pack is None:
            raise SpecError(
                f"{type(self).__name__}: packing_buffer_size needs both select_samples_to_pack and "
                f"pack_selected_samples. Override them, or leave packing_buffer_size out."
            )
        after = self._function("postencode_sample")
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
        raise NotImplementedError  # the task encoder that mixes this in knows its own defaults


def called_as_it_takes(method: Callable[..., Any], **arguments: Any) -> Any:
    """Call a method with those of the arguments that it has, as older versions have fewer."""
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
