"""Takes batches of 1 KB for a long time, and prints one line of JSON: does anything grow?

Two workers; every 16th batch is 17 KB, so that it travels in a slot; the trainer keeps the last
three, saves its state now and then, and looks at memory, descriptors and slots at even distances.
"""

import argparse
import json
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import descendants, leave, memory_mb
from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.loader import Loader
from energy_data.loading.workers.pool import PoolOptions, WorkerPool
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.testing import NumberSource

LOOKS = 40  # at what is used, over the run; the first quarter of them is warm-up
KEPT = 3
STATES = 1000  # batches between two states that are taken
FLAT_MB = 4.0  # of all processes; what an allocator's mood costs


def collated(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    number = samples[0]["number"]
    batch = {"numbers": torch.full((128,), number)}
    if number % 16 == 0:
        batch["large"] = torch.full((16, 1024), number % 256, dtype=torch.uint8)
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1_000_000)
    asked = parser.parse_args()
    read = ReadSpec(of=ReferencesSpec(of=LeafSpec(Leaf(id="soak", source=NumberSource(100_003)))))
    dataset = SavableDataset(
        spec=BatchSpec(of=read, batch_size=1, collate=collated),
        worker_config=WorkerConfig(0, 1, 2, lanes=8),
    )
    loader = Loader(dataset, WorkerPool(dataset, PoolOptions(prefetch=4)))
    kept: deque[Any] = deque(maxlen=KEPT)
    looks, began = [], time.perf_counter()
    for count, batch in enumerate(loader, 1):
        kept.append(batch)
        assert batch["numbers"][0] == batch["numbers"][-1]
        if count % STATES == 0:
            loader.state_dict()
            loader.stats()
        if count % max(asked.batches // LOOKS, 1) == 0:
            looks.append({"batches": count, **look(loader)})
            print(json.dumps(looks[-1]), file=sys.stderr, flush=True)
        if count == asked.batches:
            break
    steady = looks[len(looks) // 4 :]
    told = {
        "batches": asked.batches,
        "minutes": round((time.perf_counter() - began) / 60, 2),
        "first": steady[0],
        "last": steady[-1],
        "most": {name: max(each[name] for each in steady) for name in steady[0]},
        "grows": grows(steady),
    }
    print(json.dumps(told), flush=True)
    leave()


def look(loader: Loader[Any]) -> dict[str, Any]:
    """Return what is used now, by the trainer and all processes it started."""
    pids = [pid for pid, _ in descendants()]
    return {
        "pss_mb": round(memory_mb(), 1),  # with a part of the libraries that others use too
        "own_mb": round(sum(map(own_mb, pids)), 1),
        "descriptors": sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in pids),
        "processes": len(pids),
        "slots_in_use": loader.stats().slots_in_use,
        "shared_mb": round(shared_mb(), 1),
    }


def own_mb(pid: int) -> float:
    """Return the memory of a process that is of no file: its part of it, if a fork shares it."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:")) / 1024


def shared_mb() -> float:
    """Return how much of the arenas is there: all slots, free ones too."""
    table = Path("/proc/self/smaps").read_text().split("memfd:energy_data")[1:]
    return sum(int(part.partition("Rss:")[2].split()[0]) for part in table) / 1024


def grows(looks: list[dict[str, Any]]) -> list[str]:
    """Return what is more in the last third of the looks than ever in the first."""
    third = max(len(looks) // 3, 1)
    margins = {"own_mb": FLAT_MB, "descriptors": 0, "processes": 0, "shared_mb": 0.5}
    found = [
        name
        for name, margin in margins.items()
        if min(each[name] for each in looks[-third:])
        > max(each[name] for each in looks[:third]) + margin
    ]
    if any(each["slots_in_use"] > KEPT for each in looks):
        found.append("slots_in_use")
    return found


if __name__ == "__main__":
    main()
