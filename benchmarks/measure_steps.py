"""Measures what a rank waits for micro-batches, with and without steps; one of several processes.

The stream costs next to nothing to make, and the trainer sleeps between two micro-batches, as one
does that waits for a GPU. Rank 0 prints a line of JSON for each way.
"""

import argparse
import json
import statistics
import time
from itertools import islice
from typing import Any

from attrs import evolve
from torch import distributed

from energy_data import DocsPerStep, Loader, Sample, SavableDataset, WorkerConfig, get_loader
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.tasks.encoders import DefaultTaskEncoder
from energy_data.testing import NumberSource

WARM_UP = 64
WAYS = ("without", "known", "1", "4", "16")  # or the lookahead


def counted(samples: list[Sample]) -> dict[str, Any]:
    keys = [sample["__key__"] for sample in samples]
    return {"__key__": keys, "__docs__": sum(sample["number"] for sample in samples) % 17}


def loader_of(way: str, dataset: SavableDataset) -> Loader:
    if way == "without":
        return get_loader(dataset)
    if way == "known":
        encoder = DefaultTaskEncoder()
        of = EncodeSpec(of=dataset.spec.of, encode=encoder.encode_sample)
        spec = evolve(dataset.spec, of=of, collate=encoder.batch)
        return get_loader(evolve(dataset, spec=spec), docs_per_step=DocsPerStep(target=256))
    return get_loader(dataset, docs_per_step=DocsPerStep(target=256, lookahead=int(way)))


def waits_ms(loader: Loader, count: int, sleep_s: float) -> list[float]:
    """Return how long each of `count` micro-batches was waited for."""
    found, iterator = [], iter(loader)
    for _ in islice(iterator, WARM_UP):
        time.sleep(sleep_s)
    for _ in range(count):
        began = time.perf_counter()
        next(iterator)
        found.append(1000 * (time.perf_counter() - began))
        time.sleep(sleep_s)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--sleep-ms", type=float, default=2.0, help="default: %(default)s")
    asked = parser.parse_args()

    distributed.init_process_group("gloo")
    source = NumberSource(100_000)
    read = ReadSpec(of=ReferencesSpec(of=LeafSpec(Leaf(id="numbers", source=source))))
    spec = BatchSpec(of=read, batch_size=4, collate=counted)
    dataset = SavableDataset(spec=spec, worker_config=WorkerConfig.default_worker_config(0))
    for way in WAYS:
        loader = loader_of(way, dataset)
        distributed.barrier()
        found = sorted(waits_ms(loader, asked.batches, asked.sleep_ms / 1000))
        loader.close()
        row = {
            "way": way,
            "ranks": distributed.get_world_size(),
            "median_ms": statistics.median(found),
            "mean_ms": statistics.mean(found),
            "p95_ms": found[int(0.95 * len(found))],
        }
        if distributed.get_rank() == 0:
            print(json.dumps(row), flush=True)
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
