"""Measures the way from nothing to the first batch in this process, and prints a line of JSON.

With `--save`, writes states at some positions into a folder instead. A state at 10^8 batches is
made from those at the first positions: places of lanes are linear in the number of batches. That
holds for every tree without filters, and is checked here at a position that can be reached.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from attrs import evolve

from benchmarks.case import find_case
from benchmarks.measure import cpu_seconds, leave
from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.core.arrays import Int64s
from energy_data.core.sample import Sample
from energy_data.data import registry
from energy_data.data.source import Source
from energy_data.data.tar.source import WebdatasetSource
from energy_data.errors import SampleError
from energy_data.loading.checkpoint.run_state import RunState

NUM_WORKERS, LANES, BATCH_SIZE = 2, 16, 256
QUIET_S = 1.0  # until workers have made all that they may make ahead


class Counted(Source):
    """A source that writes down, in one file for all processes, how many samples were read."""

    def __init__(self, of: WebdatasetSource, log: str) -> None:
        self.of, self.log = of, log

    def __len__(self) -> int:
        return len(self.of)

    @property
    def fingerprint(self) -> str:
        """The source's."""
        return self.of.fingerprint

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the source's samples."""
        return self.read_together([self], np.zeros(len(indices), np.int64), indices)

    @classmethod
    def read_together(
        cls, sources: Sequence[Self], numbers: Int64s, indices: Int64s, *, rows: bool = False
    ) -> list[Sample | SampleError]:
        """Return samples of several sources, read as one block."""
        log = os.open(sources[0].log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(log, f"{len(indices)}\n".encode())
        os.close(log)
        of = [one.of for one in sources]
        return WebdatasetSource.read_together(of, numbers, indices, rows=rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True)
    parser.add_argument("--folder", required=True, type=Path, help="of the data of all cases")
    parser.add_argument("--states", required=True, type=Path, help="a folder")
    parser.add_argument("--position", required=True, help="`fresh`, or batches of the whole run")
    parser.add_argument("--save", action="store_true")
    asked = parser.parse_args()
    path = asked.states / f"{asked.position}.json"
    if asked.save:
        path.write_text(json.dumps(state_at(asked, int(asked.position))))
        return

    log = asked.states / "reads"
    log.unlink(missing_ok=True)
    cpu_s, begin = cpu_seconds(), time.perf_counter()
    loader = get_loader(dataset_of(asked, NUM_WORKERS, str(log)))
    state = None if asked.position == "fresh" else json.loads(path.read_text())
    if state:
        loader.load_state_dict(state)
    stream = iter(loader)
    made_s = time.perf_counter()
    batch = next(stream)
    wall_s = time.perf_counter() - begin
    assert len(batch["__key__"]) == BATCH_SIZE
    time.sleep(QUIET_S)
    reads = sum(map(int, log.read_text().split()))
    cpu_s = cpu_seconds() - cpu_s  # with what the workers made ahead meanwhile
    # Two batches ahead of each of two workers, and none of them the second of its lane.
    lanes = min(LANES, 2 * NUM_WORKERS + 1)
    measured = {
        "case": asked.case,
        "position": asked.position,
        "wall_ms": wall_s * 1000,
        "restore_ms": (made_s - begin) * 1000,
        "cpu_ms": cpu_s * 1000,
        "reads": reads,
        "reads_must": lanes * BATCH_SIZE,
        "state_bytes": len(json.dumps(state)) if state else 0,
        "first_key": batch["__key__"][0],
    }
    print(json.dumps(measured), flush=True)
    leave()


def dataset_of(asked: argparse.Namespace, num_workers: int, log: str | None = None) -> Any:
    """Return the training stream of a case; with `log`, of sources that count."""
    if log:
        tars = registry.FORMATS[-1]
        registry.FORMATS[-1] = tars._replace(
            open=lambda path, options: Counted(WebdatasetSource(path, options), log)
        )
    case = find_case(asked.case)
    return get_train_dataset(
        case.metadataset(asked.folder / case.name),
        batch_size=BATCH_SIZE,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(0, 1, num_workers, lanes=LANES),
    )


def state_at(asked: argparse.Namespace, position: int) -> dict[str, Any]:
    """Return the state after `position` batches of the run, without making them all."""
    loader = get_loader(dataset_of(asked, 0))
    stream = iter(loader)
    states = []
    start = position % LANES
    for number in range(start + 3 * LANES + 1):
        if number >= start and (number - start) % LANES == 0:
            states.append(RunState.from_dict(loader.state_dict()))
        next(stream)
    first, second, third, fourth = states
    assert extrapolated(first, second, 2) == third
    assert extrapolated(first, second, 3) == fourth
    found = extrapolated(first, second, (position - start) // LANES)
    assert found.batch == position
    return found.to_dict()


def extrapolated(first: RunState, second: RunState, rounds: int) -> RunState:
    """Return the state after `rounds` batches of each lane more than `first`."""

    def line(a: Any, b: Any) -> Any:
        if isinstance(a, tuple):
            return tuple(line(x, y) for x, y in zip(a, b, strict=True))
        return a + (b - a) * rounds if type(a) is int else a

    places = {
        lane: {
            path: {name: line(value, second.places[lane][path][name]) for name, value in at.items()}
            for path, at in place.items()
        }
        for lane, place in first.places.items()
    }
    nexts = {lane: line(batch, second.nexts[lane]) for lane, batch in first.nexts.items()}
    return evolve(first, nexts=nexts, clock=line(first.clock, second.clock), places=places)


if __name__ == "__main__":
    main()
