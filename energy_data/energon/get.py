"""Energon's ways to a dataset: from a path to batches, by a task encoder."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from energy_data.core.context import WorkerConfig
from energy_data.data.decode.parts import SampleDecoder
from energy_data.energon.building import called_as_it_takes
from energy_data.energon.dataset import SavableDataset
from energy_data.energon.encoder import DefaultTaskEncoder, TaskEncoder
from energy_data.energon.loaded import BaseCoreDatasetFactory, LoadedDatasets
from energy_data.energon.metadatasets import load_dataset
from energy_data.errors import SpecError

log = logging.getLogger(__name__)

T = TypeVar("T")
Encoder = TaskEncoder[Any, Any, Any, T]


def get_train_dataset(
    path: str | Path | Mapping[str, Any],
    *,
    split_part: str = "train",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    shuffle_buffer_size: int | None = 100,
    max_samples_per_sequence: int | None = 100,
    virtual_epoch_length: int = 0,
    shuffle_over_epochs_multiplier: int | None = 1,
    task_encoder: Encoder[T] | None = None,
    repeat: bool = True,
    **kwargs: Any,
) -> SavableDataset[T]:
    """Return the training stream of a metadataset, or of a dataset, for this rank.

    Args:
        path: A metadataset (.yaml, or the same as a dict), or a dataset.
        split_part: The split to read.
        worker_config: Which part of the run this process is; by default that of
            torch.distributed, or of the launcher.
        batch_size: Samples per batch; None: samples are not batched.
        batch_drop_last: Leave out the short batch at the end of a pass.
        packing_buffer_size: Samples that the task encoder selects packs from; None: no packing.
        shuffle_buffer_size: Neighbouring draws of a dataset that are mixed; None: none.
        max_samples_per_sequence: Neighbouring samples that are read together; None: file order.
        virtual_epoch_length: Batches of this rank in an iteration; 0: without end.
        shuffle_over_epochs_multiplier: Multiplies that of the metadataset; see there.
        task_encoder: What is made of samples and batches.
        repeat: Go on without end; else one pass.
        kwargs: Arguments of older versions, and `allow_modules`: the modules and folders with code
            that a metadataset or a dataset.yaml may name. See docs/migrating-from-energon.md.

    Raises:
        SpecError: With all faults of the metadataset, each with its place.
    """
    encoder: Any = task_encoder or DefaultTaskEncoder()
    config = worker_config or WorkerConfig.default_worker_config()
    old = _other_arguments(kwargs, encoder)
    takes_shuffle = "shuffle_buffer_size" in signature(encoder.build_train_datasets).parameters
    loaded = load_dataset(path).get_datasets(
        training=True,
        split_part=split_part,
        worker_config=config,
        shuffle_buffer_size=None if takes_shuffle else shuffle_buffer_size,
        max_samples_per_sequence=max_samples_per_sequence,
        parallel_shard_iters=old.parallel_shard_iters,
        shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier,
        decoder=encoder.decoder,
        allow_modules=old.allow_modules,
    )
    built: SavableDataset[T] = called_as_it_takes(
        encoder.build_train_datasets,
        datasets=loaded.datasets,
        worker_config=config,
        batch_size=batch_size,
        batch_drop_last=batch_drop_last,
        packing_buffer_size=packing_buffer_size,
        virtual_epoch_length=virtual_epoch_length,
        shuffle_buffer_size=shuffle_buffer_size,
        blend_mode=loaded.blend_mode,
        repeat=repeat,
    )
    return built


def get_val_dataset(
    path: str | Path | Mapping[str, Any],
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: Encoder[T] | None = None,
    **kwargs: Any,
) -> SavableDataset[T]:
    """Return the validation stream: one pass over all datasets, in order, the same each time.

    Args:
        path: A metadataset (.yaml, or the same as a dict), or a dataset.
        split_part: The split to read.
        worker_config: Which part of the run this process is; by default that of
            torch.distributed, or of the launcher.
        batch_size: Samples per batch; None: samples are not batched.
        batch_drop_last: Leave out the short batch.
        packing_buffer_size: Samples that the task encoder selects packs from; None: no packing.
        limit: The first so many batches of each rank; None or 0: all.
        task_encoder: What is made of samples and batches.
        kwargs: Arguments of older versions, and `allow_modules`: the modules and folders with code
            that a metadataset or a dataset.yaml may name. See docs/migrating-from-energon.md.

    Raises:
        SpecError: With all faults of the metadataset, each with its place.
    """
    encoder: Any = task_encoder or DefaultTaskEncoder()
    datasets, options = _validation(path, split_part, worker_config, encoder, kwargs)
    options |= {
        "batch_size": batch_size,
        "batch_drop_last": batch_drop_last,
        "packing_buffer_size": packing_buffer_size,
        "limit": limit,
    }
    built: SavableDataset[T] = called_as_it_takes(
        encoder.build_val_datasets, datasets=datasets, **options
    )
    return built


def get_val_datasets(
    path: str | Path | Mapping[str, Any],
    *,
    split_part: str = "val",
    worker_config: WorkerConfig | None = None,
    batch_size: int | None,
    batch_drop_last: bool = False,
    packing_buffer_size: int | None = None,
    limit: int | None = None,
    task_encoder: Encoder[T] | None = None,
    **kwargs: Any,
) -> list[tuple[SavableDataset[T], BaseCoreDatasetFactory[Any]]]:
    """Return the validation stream of each dataset by itself, with the dataset it is of.

    The arguments are those of `get_val_dataset`.
    """
    encoder: Any = task_encoder or DefaultTaskEncoder()
    datasets, options = _validation(path, split_part, worker_config, encoder, kwargs)
    options |= {
        "batch_size": batch_size,
        "batch_drop_last": batch_drop_last,
        "packing_buffer_size": packing_buffer_size,
        "limit": limit,
    }
    return [
        (
            called_as_it_takes(encoder.build_val_datasets, datasets=[loaded], **options),
            loaded.dataset,
        )
        for loaded in datasets
    ]


def _validation(
    path: str | Path | Mapping[str, Any],
    split_part: str,
    worker_config: WorkerConfig | None,
    encoder: Any,
    kwargs: dict[str, Any],
) -> tuple[LoadedDatasets, dict[str, Any]]:
    old = _other_arguments(kwargs, encoder)
    config = worker_config or WorkerConfig.default_worker_config()
    loaded = load_dataset(path).get_datasets(
        training=False,
        split_part=split_part,
        worker_config=config,
        decoder=encoder.decoder,
        allow_modules=old.allow_modules,
    )
    return loaded.datasets, {"worker_config": config}


_OLD_DECODING = {"image_decode", "av_decode", "video_decode_audio"}


class _Others(NamedTuple):
    """What further arguments say about datasets."""

    parallel_shard_iters: int | None
    allow_modules: Sequence[str]


def _other_arguments(kwargs: dict[str, Any], encoder: Any) -> _Others:
    """Do what arguments of older versions ask of the task encoder; return the rest.

    SpecError for those that nobody knows.
    """
    left = dict(kwargs)
    others = _Others(left.pop("parallel_shard_iters", None), left.pop("allow_modules", ()))
    if left.pop("auto_decode", True) is False:
        encoder.decoder = None
    decoding = {name: left.pop(name) for name in _OLD_DECODING & left.keys()}
    if decoding:
        encoder.decoder = SampleDecoder(**decoding)
    for name in ("handler", "ignore_decoder_errors"):
        if name in left:
            log.warning("%s: it is not used; set global_error_handler of the WorkerConfig", name)
            left.pop(name)
    if left:
        raise SpecError(
            f"get_train_dataset, get_val_dataset: they have no argument "
            f"{', '.join(map(repr, sorted(left)))}. See "
            f"docs/migrating-from-energon.md for what became of them."
        )
    return others
