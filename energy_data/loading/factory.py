"""`get_loader`: a loader of a dataset, with its workers, device and steps."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

import torch
from attrs import evolve

from energy_data.core.worker_config import WorkerConfig
from energy_data.data.files.cache import CachePool
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.lanes import InProcess, LaneRunner
from energy_data.loading.loader import Loader
from energy_data.loading.savable_loader import SavableDataLoader
from energy_data.loading.steps.grouper import StepGrouper, for_steps
from energy_data.loading.transport.device import Cuda, OnDevice
from energy_data.loading.workers.pool import PoolOptions, WorkerPool
from energy_data.loading.workers.protocol import StartMethod
from energy_data.order.step_rules import DocsPerStep

T = TypeVar("T")


def get_savable_loader(
    dataset: SavableDataset[T],
    *,
    worker_config: WorkerConfig | None = None,
    checkpoint_every_sec: float = 60,
    checkpoint_every_min_n_samples: int | None = None,
    n_checkpoints: int | None = None,
    gc_collect_every_n_steps: int = 10,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    watchdog_timeout_seconds: float | None = 60,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
    start_method: StartMethod = "fork",
    worker_type: Literal["fork", "thread", "main"] | None = None,
    gc_freeze_at_start: bool = True,
    arena_bytes: int = 4 << 30,
    max_restarts: int = 3,
    pin_memory: bool | Literal["auto"] = "auto",
    device: str | torch.device | None = None,
    docs_per_step: DocsPerStep | int | None = None,
) -> SavableDataLoader[T]:
    """Return a loader of the dataset: iterate over it, save it, restore it.

    The arguments do not change the batches.

    Args:
        dataset: What to read. Its `worker_config.num_workers` is the number of workers. With 0,
            batches are made in this thread on demand, and most of the rest does not matter.
        worker_config: That of the dataset; SpecError if it is another.
        checkpoint_every_sec: Accepted and ignored, as are the next three: workers need no
            checkpoints, and no garbage collection.
        checkpoint_every_min_n_samples: Accepted and ignored.
        n_checkpoints: Accepted and ignored.
        gc_collect_every_n_steps: Accepted and ignored.
        prefetch_factor: Batches that each worker prepares in advance, at most.
        cache_pool: Where task encoders get the files that they requested in advance.
        watchdog_timeout_seconds: A worker that sends nothing for this time is reported with its
            sample and stack; None: never.
        watchdog_initial_timeout_seconds: The same for the first batch of a worker, including
            its start. None: `watchdog_timeout_seconds`.
        fail_on_timeout: Raise an error after that time. Otherwise the worker process is replaced,
            and the stream continues unchanged. A thread cannot be replaced: it always raises.
        start_method: How workers start. "fork" needs no `if __name__ == "__main__":` and takes
            lambdas. "forkserver" and "spawn" are safe with threads and CUDA in this process.
            "thread": threads of this process; see docs/workers.md.
        worker_type: Energon 8's name of it, which takes precedence. "main": no workers.
        gc_freeze_at_start: Accepted and ignored, as above.
        arena_bytes: Shared memory per worker process, at most. It grows as needed.
        max_restarts: How often a worker that dies at the same batch is restarted.
        pin_memory: Register the shared memory with CUDA once, so that batches of workers are
            pinned without a copy. Threads copy theirs. "auto": where there is a GPU. A batch may be
            dropped while `batch.to(device, non_blocking=True)` runs, if that is on the stream that
            is current when the next batch is requested.
        device: Copy batches to this device, one in advance, on a separate stream.
        docs_per_step: Group micro-batches into optimizer steps that hold this many documents over
            all ranks: a number, or `DocsPerStep`; see docs/docs-per-step.md. None: the rules of the
            metadataset, if it has any.
    """
    if not isinstance(dataset, SavableDataset):
        raise SpecError(
            f"get_loader: dataset must be a SavableDataset, got {dataset!r:.80}. Pass what "
            f"get_train_dataset or get_val_dataset returns."
        )
    if worker_config is not None and worker_config != dataset.worker_config:
        raise SpecError(
            f"get_loader: worker_config is {worker_config}, that of the dataset is "
            f"{dataset.worker_config}. Leave it out."
        )
    if worker_type not in (None, "fork", "thread", "main"):
        raise SpecError(
            f"worker_type: must be 'fork', 'thread' or 'main', got {worker_type!r}. Use "
            f"start_method for others."
        )
    if worker_type == "main":
        config = evolve(dataset.worker_config, num_workers=0)
        dataset = dataset.replace(worker_config=config)
    elif worker_type is not None:
        start_method = worker_type
    rules = DocsPerStep.of(docs_per_step) or dataset.docs_per_step
    options = PoolOptions(
        prefetch=prefetch_factor,
        start_method=start_method,
        arena_bytes=arena_bytes,
        timeout_s=watchdog_timeout_seconds,
        start_timeout_s=watchdog_initial_timeout_seconds,
        fail_on_timeout=fail_on_timeout,
        max_restarts=max_restarts,
    )
    run = dataset if cache_pool is None else dataset.replace(cache=cache_pool)
    run = run if rules is None else for_steps(run, rules)
    host = host_of(run, options, pin_memory=pin_memory, device=device)
    loader = Loader(run, host, in_steps=rules is not None)
    return loader if rules is None else StepGrouper(loader, rules)


get_loader = get_savable_loader


def host_of(
    dataset: SavableDataset[Any],
    options: PoolOptions,
    *,
    pin_memory: bool | Literal["auto"] = "auto",
    device: str | torch.device | None = None,
) -> LaneRunner:
    """Return what runs the lanes of a dataset: this thread, or workers.

    pin_memory: "auto" pins if there is a GPU. device: of the batches; None: they stay on the CPU.
    """
    cuda = Cuda()
    host: LaneRunner = InProcess(dataset)
    if dataset.worker_config.num_workers:
        pinned = cuda.available() if pin_memory == "auto" else pin_memory
        host = WorkerPool(dataset, evolve(options, cuda=cuda if pinned else None))
    if device is not None and torch.device(device).type != "cpu":
        host = OnDevice(host, torch.device(device), dataset.worker_config.world_size, cuda)
    return host
