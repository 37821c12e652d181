"""The host of a dataset: what its worker config and its options ask for."""

from __future__ import annotations

from typing import Any, Literal

import torch
from attrs import evolve

from energy_data.loading.lanes import InProcess, LaneRunner
from energy_data.loading.run import Run
from energy_data.loading.transport.cuda import Cuda
from energy_data.loading.transport.device import OnDevice
from energy_data.loading.workers.pool import PoolOptions, ProcessPool
from energy_data.loading.workers.thread import ThreadPool


def host_of(
    dataset: Run[Any],
    options: PoolOptions,
    *,
    pin_memory: bool | Literal["auto"] = "auto",
    device: str | torch.device | None = None,
) -> LaneRunner:
    """Return what makes the batches of a dataset: this thread, or workers.

    pin_memory: "auto" pins where there is a GPU. device: where batches go; None: they stay.
    """
    cuda = Cuda()
    host: LaneRunner = InProcess()
    if dataset.worker_config.num_workers:
        pinned = cuda.available() if pin_memory == "auto" else pin_memory
        if options.start_method == "thread":
            host = ThreadPool(dataset, evolve(options, pin=cuda.pinner if pinned else None))
        else:
            host = ProcessPool(dataset, evolve(options, pin=cuda.pin if pinned else None))
    if device is not None and torch.device(device).type != "cpu":
        host = OnDevice(host, torch.device(device), dataset.worker_config.world_size, cuda)
    return host
