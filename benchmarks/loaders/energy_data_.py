"""Ours, with the same settings as Energon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.case import Batch, Case
from energy_data import RawTensor, TaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energy_data.loading.workers.pool import StartMethod


def batches(
    case: Case,
    folder: Path,
    batch_size: int,
    num_workers: int,
    start_method: StartMethod = "forkserver",
    task_encoder: TaskEncoder[Any, Any, Any, dict[str, Any]] | None = None,
) -> Iterator[Batch]:
    raw = case.raw_tensor if task_encoder is None else None  # text we decode unasked
    decoders = {case.part: RawTensor(*raw)} if raw else None
    dataset = get_train_dataset(
        case.metadataset(folder),
        batch_size=batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=case.neighbours,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=num_workers),
        task_encoder=task_encoder,
        decoders=decoders,
    )
    for batch in get_loader(dataset, start_method=start_method):
        yield {"keys": batch["__key__"], "values": batch[case.part]}
