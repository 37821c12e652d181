"""Loaders with worker processes, for tests."""

from __future__ import annotations

import gc
import os
from pathlib import Path

from trees import A, B, C, batches, leaf, not_third, samples

from energy_data.context import WorkerConfig
from energy_data.loader.dataset import Dataset
from energy_data.loader.loader import Loader
from energy_data.loader.pool import Pool, PoolOptions
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.filter import FilterSpec
from energy_data.spec import Spec

BLEND = BlendSpec((Part(A, 5), Part(B, 2), Part(C, 1), Part(leaf("d", 23), 0.5)))
STREAM = batches(FilterSpec(of=samples(BLEND), predicate=not_third), 4)

OPTIONS = {"prefetch", "start_method", "arena_bytes", "timeout_s", "on_timeout", "max_restarts"}


def worker_loader(
    spec: Spec = STREAM, workers: int = 2, rank: int = 0, ranks: int = 1, lanes: int = 8, **facts
) -> Loader:
    """A loader over `spec`; `facts` are of the pool or of the dataset."""
    options = {name: facts.pop(name) for name in OPTIONS & set(facts)}
    config = WorkerConfig(rank, ranks, workers, lanes=lanes)
    dataset = Dataset(spec=spec, worker_config=config, **facts)
    return Loader(dataset, Pool(dataset, PoolOptions(**options)) if workers else None)


def processes(loader: Loader) -> list[int]:
    """The process ids of a loader's workers."""
    return [worker.process.pid for worker in getattr(loader._host, "_workers", {}).values()]


def descriptors() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def children(process: int | None = None) -> set[int]:
    """The processes under one, however deep."""
    found, front = set(), {process or os.getpid()}
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents.setdefault(int(fields[1]), set()).add(int(entry.name))
    while front:
        front = set().union(*(parents.get(one, set()) for one in front))
        found |= front
    return found


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
