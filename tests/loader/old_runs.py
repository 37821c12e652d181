"""Runs whose states earlier versions of energy_data saved: `old_states/*.json`.

Each file was written by the code of the commit it names (`PYTHONPATH=THAT_CODE python old_runs.py
NAME COMMIT > old_states/NAME.json`): the `states` its ranks saved after `ROUNDS` batches each, and
the batches that followed there. When the format changes, save with the code before the change, and
leave the files that are there.
"""

import io
import json
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from energy_data import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energy_data.core.packing import Packing

BLEND = """splits:
  train:
    blend:
      - {path: ./a, weight: 2}
      - blend_epochized:
          - {path: ./b, repetitions: 1}
          - {path: ./c, repetitions: 2}
        weight: 1
"""
STAGED = """splits:
  train:
    staged:
      unit: microbatches
      stages:
        - {name: first, for: 16, path: ./a}
        - {name: second, for: 8, blend: [{path: ./a, weight: 1}, {path: ./b, weight: 3}]}
        - {name: third, path: ./a}
"""
PACKED = """splits:
  train:
    staged:
      unit: microbatches
      stages:
        - {name: first, for: 8, params: {size: 6, packing_buffer_size: 6}, path: ./a}
        - {name: second, path: ./a}
"""
ROUNDS = 10
# name -> metadataset, ranks that saved, arguments of get_loader
RUNS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "version_1": (BLEND, 2, {}),
    "version_2": (BLEND, 2, {}),
    "version_3_steps": (BLEND, 1, {"docs_per_step": 7}),
    "version_4": (BLEND, 2, {}),
    "version_4_staged": (STAGED, 2, {}),
    "version_5": (BLEND, 2, {}),
    "version_5_steps": (BLEND, 1, {"docs_per_step": 7}),
    "version_5_staged": (STAGED, 2, {}),
    "version_5_moved": (STAGED, 2, {}),
    "version_5_packs": (PACKED, 2, {}),
    "version_6": (BLEND, 2, {}),
    "version_6_steps": (BLEND, 1, {"docs_per_step": 7}),
    "version_6_staged": (STAGED, 2, {}),
    "version_6_moved": (STAGED, 2, {}),
    "version_6_packs": (PACKED, 2, {}),
}
ALONE = {"version_5_moved": 3, "version_6_moved": 3}  # micro-batches on one rank before


@dataclass
class Packs(DefaultTaskEncoder):
    """Packs texts up to a size, by their numbers."""

    size: int = 0  # 0: as they are

    @property
    def packing(self) -> Packing | None:
        return (
            Packing(limits={"size": self.size}, lengths=size_of, pack=pack) if self.size else None
        )


def size_of(sample: dict[str, Any]) -> dict[str, int]:
    return {"size": int(str(sample["txt"])[1:]) % 5 + 1}


def pack(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {**samples[0], "txt": " ".join(str(sample["txt"]) for sample in samples)}


def write(folder: Path, metadataset: str) -> Path:
    """Write the shards and the metadataset; the same bytes whenever and wherever."""
    for name, count in (("a", 50), ("b", 30), ("c", 20)):
        (folder / name).mkdir()
        with tarfile.open(folder / name / "shard_0.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(count):
                info = tarfile.TarInfo(f"{name}_{number:04d}.txt")
                info.size = len(f"{name}{number}")
                tar.addfile(info, io.BytesIO(f"{name}{number}".encode()))
    path = folder / "meta.yaml"
    path.write_text(metadataset)
    return path


def loaders(path: Path, ranks: int, **arguments: Any) -> list[Any]:
    """Return the loaders of all ranks of a run."""
    return [
        get_loader(
            get_train_dataset(
                path,
                batch_size=3,
                shuffle_buffer_size=10,
                max_samples_per_sequence=5,
                seed=4,
                task_encoder=Packs() if "size:" in path.read_text() else None,
                worker_config=WorkerConfig(rank=rank, world_size=ranks, lanes=4),
            ),
            **arguments,
        )
        for rank in range(ranks)
    ]


def next_of(rank: Any) -> int:
    """Return the number in the run of a rank's next micro-batch."""
    return min(row[0] for row in rank.state_dict()["places"].values())


def batches(ranks: list[Any], number: int) -> list[list[str]]:
    """Return the texts of the next batches, in the order of the run."""
    rounds = zip(*map(iter, sorted(ranks, key=next_of)), strict=True)
    return [list(map(str, batch["txt"])) for made in islice(rounds, number) for batch in made]


def main() -> None:
    """Save the states of a run with whatever energy_data is imported."""
    name, commit = sys.argv[1:]
    metadataset, ranks, arguments = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), metadataset)
        made = loaders(path, ranks, **arguments)
        if name in ALONE:
            (one,) = loaders(path, 1, **arguments)
            batches([iter(one)], ALONE[name])
            for loader in made:
                loader.restore_state_global(one.state_dict())
        started = [iter(loader) for loader in made]
        batches(started, ROUNDS)
        states = [loader.state_dict() for loader in made]
        said = {"saved_by": commit, "states": states, "after": batches(started, 24 // ranks)}
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
