"""Loaders with worker processes, for tests."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from trees import A, B, C, batches, leaf, not_third, samples

from energy_data.core.spec import Spec
from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.factory import host_of
from energy_data.loading.loader import Loader
from energy_data.loading.workers.pool import PoolOptions
from energy_data.loading.workers.process import WorkerProcess
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.filter import FilterSpec

BLEND = BlendSpec((Part(A, 5), Part(B, 2), Part(C, 1), Part(leaf("d", 23), 0.5)))
STREAM = batches(FilterSpec(of=samples(BLEND), predicate=not_third), 4)

SHARED = Path("/dev/shm")
QUICK = ["fork", "thread"]  # start methods: one of processes, and the one of threads
SPAWN = pytest.param("spawn", marks=pytest.mark.slow)  # each process imports torch again
OPTIONS = {
    "prefetch",
    "start_method",
    "arena_bytes",
    "timeout_s",
    "start_timeout_s",
    "fail_on_timeout",
    "max_restarts",
}


def worker_loader(
    spec: Spec = STREAM, workers: int = 2, rank: int = 0, ranks: int = 1, lanes: int = 8, **facts
) -> Loader:
    """A loader over `spec`; `facts` are of the pool or of the dataset."""
    options = {name: facts.pop(name) for name in OPTIONS & set(facts)}
    config = WorkerConfig(rank, ranks, workers, lanes=lanes)
    dataset = SavableDataset(spec=spec, worker_config=config, **facts)
    return Loader(dataset, host_of(dataset, PoolOptions(**options), pin_memory=False))


def crew(loader: Loader) -> list:
    """The workers of a loader."""
    return list(getattr(loader._host, "_workers", {}).values())


def processes(loader: Loader) -> list[int]:
    """The process ids of a loader's workers."""
    return [worker.process.pid for worker in crew(loader) if isinstance(worker, WorkerProcess)]


def threads() -> list[threading.Thread]:
    """The worker threads that are there."""
    return [one for one in threading.enumerate() if one.name.startswith("energy_data worker")]


def descriptors(process: int | None = None) -> int:
    """How many files a process has open, this one if none is named."""
    gc.collect()
    return len(list(Path(f"/proc/{process or 'self'}/fd").iterdir()))


def stats() -> Iterator[tuple[int, list[str]]]:
    """The processes that are alive, each with its state, parent, group, session and so on."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    yield int(entry.name), fields


def children(process: int | None = None) -> set[int]:
    """The processes under one, however deep."""
    found, front = set(), {process or os.getpid()}
    parents = {}
    for child, (_, parent, *_) in stats():
        parents.setdefault(int(parent), set()).add(child)
    while front:
        front = set().union(*(parents.get(one, set()) for one in front))
        found |= front
    return found


def session(leader: int) -> set[int]:
    """The processes of a session, orphans too."""
    return {process for process, fields in stats() if int(fields[3]) == leader}


def named_memory(processes: set[int]) -> set[str]:
    """The files of /dev/shm that processes have open or mapped, or that are called after them."""
    found = set()
    for process in processes:
        with suppress(OSError):  # it has ended
            mapped = Path(f"/proc/{process}/maps").read_text().splitlines()
            found |= {line.split(maxsplit=5)[5] for line in mapped if " /dev/shm/" in line}
            for file in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):  # it was closed
                    found.add(str(file.readlink()))
    ids = {str(process) for process in processes}
    named = {str(file) for file in SHARED.iterdir() if ids & set(re.split(r"[\W_]+", file.name))}
    return named | {file for file in found if file.startswith(f"{SHARED}/")}


def left_in(files: set[str]) -> set[str]:
    """Those of some files that are still there."""
    return {file for file in files if Path(file).exists()}


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
