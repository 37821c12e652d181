"""From tars to an exact resume in half a minute: `make demo`, or `python examples/demo.py FOLDER`.

Writes two datasets made from Python's own library, prepares them, trains on a blend, saves half-way
and resumes in new processes, on one rank and on two. Exits with 1 if a resumed batch differs.
"""

import ast
import hashlib
import json
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from webdataset import ShardWriter

from energy_data import WorkerConfig, get_loader, get_train_dataset

SAMPLES, BATCHES, BATCH_SIZE, LANES = 2_000, 200, 32, 8
METADATASET = """\
# Of 10 samples, 7 are source files and 3 are docstrings: in every lane, at every moment.
splits:
  train:
    blend:
      - {weight: 7, path: ./sources, subflavors: {task: code}}
      - {weight: 3, path: ./docstrings, subflavors: {task: prose}}
  val:
    concat:  # each sample once, in order
      - path: ./sources
      - path: ./docstrings
"""


def sources() -> Iterator[dict[str, Any]]:
    """Yield the source files of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib"}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).with_suffix("")
        if not skipped & set(name.parts) and not name.name.startswith("__"):
            text = path.read_text("utf-8", errors="replace")
            yield {"__key__": str(name).replace(".", "_"), "txt": text}


def docstrings() -> Iterator[dict[str, Any]]:
    """Yield the docstrings of the standard library, each with its name and line."""
    for sample in sources():
        try:
            module = ast.parse(sample["txt"])
        except SyntaxError:  # some files are wrong on purpose
            continue
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and (
                text := ast.get_docstring(node)
            ):
                facts = {"name": node.name, "line": node.lineno}
                key = f"{sample['__key__']}/{node.lineno}"
                yield {"__key__": key, "txt": text, "json": facts}


def energy_data(*arguments: object) -> None:
    """Run a command as a user would."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ energy-data {' '.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "energy_data.cli.main", *words], check=True)


def loader_of(meta: Path, config: WorkerConfig) -> Any:
    """Return the loader of one rank."""
    return get_loader(get_train_dataset(meta, batch_size=BATCH_SIZE, worker_config=config))


def digest(batch: dict[str, Any]) -> str:
    """Return 16 hex digits over everything in a batch."""
    found = hashlib.blake2b(digest_size=8)
    for name in sorted(batch):
        for value in batch[name]:
            raw = (
                value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
            )
            found.update(raw)
    return found.hexdigest()


def resume(meta: Path, rank: int, world_size: int) -> None:
    """Print the digests of the second half of the batches: what one rank of a new run gets."""
    loader = loader_of(meta, WorkerConfig(rank, world_size))
    loader.load_state_dict(json.loads(meta.with_name("state.json").read_text()))
    print(json.dumps([digest(batch) for batch in islice(loader, BATCHES // 2 // world_size)]))


def resumed(meta: Path, world_size: int) -> list[str]:
    """Return the digests of all ranks of a new run, in the order of the micro-batches."""
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(meta.parent), str(rank), str(world_size)],
            stdout=subprocess.PIPE,
        )
        for rank in range(world_size)
    ]
    found = [json.loads(process.communicate()[0]) for process in ranks]
    return [one for round_ in zip(*found, strict=True) for one in round_]


def main(folder: Path) -> None:
    """Run the whole way."""
    for name, samples in (("sources", sources()), ("docstrings", docstrings())):
        (folder / name).mkdir(parents=True, exist_ok=True)
        with ShardWriter(f"{folder / name}/shard-%03d.tar", maxcount=50, verbose=0) as shards:
            for sample in islice(samples, SAMPLES):
                shards.write(sample)
        energy_data("prepare", folder / name, "--split-ratio", "8,1,1", "--force-overwrite")
    meta = folder / "demo.yaml"
    meta.write_text(METADATASET)
    run = ("--batches", BATCHES, "--batch-size", BATCH_SIZE, "--lanes", LANES)
    energy_data("inspect", meta, *run)

    print(f"\nTraining for {BATCHES} micro-batches of {BATCH_SIZE} samples in {LANES} lanes")
    loader, drawn, rest = loader_of(meta, WorkerConfig(lanes=LANES)), Counter[str](), list[str]()
    for number, batch in enumerate(track(islice(loader, BATCHES), total=BATCHES), start=1):
        drawn.update(subflavors["task"] for subflavors in batch["__subflavors__"])
        if number > BATCHES // 2:
            rest.append(digest(batch))
        if number == BATCHES // 2:
            meta.with_name("state.json").write_text(json.dumps(loader.state_dict()))
    print("drawn:", ", ".join(f"{count:,} x {task}" for task, count in drawn.items()))

    for world_size in (1, 2):
        if resumed(meta, world_size) != rest:
            sys.exit(f"resumed on {world_size} ranks: the batches differ. Please report this.")
        print(f"resumed on {world_size} rank(s): all {len(rest)} micro-batches are identical")


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "demo-data")
    if len(sys.argv) > 2:
        resume(folder / "demo.yaml", *map(int, sys.argv[2:]))
    else:
        main(folder)
