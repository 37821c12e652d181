"""The demo's training process: goes on from a saved state, and tells what it got.

    python -m energy_data.cli.demo.stream META STATE RANK WORLD_SIZE BATCH_SIZE BATCHES

prints one line of JSON per micro-batch.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from energy_data.api import get_loader, get_train_dataset
from energy_data.core.context import WorkerConfig
from energy_data.loading.rank_loader import RankLoader

Batch = dict[str, Any]


def make_loader(meta: Path, batch_size: int, config: WorkerConfig) -> RankLoader[Batch]:
    """Return the loader of one rank of the demo's training run."""
    return get_loader(get_train_dataset(meta, batch_size=batch_size, worker_config=config))


def digest(batch: Batch) -> str:
    """Return 16 hex digits over all that is in a batch."""
    found = hashlib.blake2b(digest_size=8)
    for name in sorted(batch):
        found.update(name.encode())
        for value in batch[name]:
            raw = value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value)
            found.update(raw if isinstance(raw, bytes) else raw.encode())
    return found.hexdigest()


def continuation(
    meta: Path, state: Any, *, rank: int, world_size: int, batch_size: int, batches: int
) -> Iterator[dict[str, Any]]:
    """Yield number, first key and digest of the next micro-batches of one rank.

    state: of the whole run. batches: so many of the run are given out by all ranks together.
    """
    loader = make_loader(meta, batch_size, WorkerConfig(rank, world_size))
    loader.load_state_dict(state)
    last = loader.last_batch
    first = 0 if last is None else last + 1
    numbers = [n for n in range(first, first + batches) if n % world_size == rank]
    for number, batch in zip(numbers, islice(loader, len(numbers)), strict=True):
        yield {"batch": number, "key": batch["__key__"][0], "digest": digest(batch)}


def _main(meta: str, state: str, *numbers: str) -> None:
    rank, world_size, batch_size, batches = map(int, numbers)
    for told in continuation(
        Path(meta),
        json.loads(Path(state).read_text()),
        rank=rank,
        world_size=world_size,
        batch_size=batch_size,
        batches=batches,
    ):
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    _main(*sys.argv[1:])
