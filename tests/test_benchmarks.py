"""What measures ours still runs: it knows more of the inside than users do."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from energy_data.data.prepare import prepare

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.case import find_case  # noqa: E402 - benchmarks are not installed
from benchmarks.data import write_metadataset, write_tars  # noqa: E402

pytestmark = pytest.mark.slow  # up to half a minute each, for what no user needs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of the data of two cases, small."""
    everything = tmp_path_factory.mktemp("data")
    for name, weights in [("text", (1,)), ("blend", (1, 2))]:
        case = replace(find_case(name), num_samples=6000, weights=weights)
        each = case.num_samples // len(weights)
        for number, tars in enumerate(case.tars(everything / name)):
            write_tars(case, range(number * each, (number + 1) * each), tars)
            prepare(tars)
        write_metadataset(case, everything / name)
    return everything


def measured(module, *arguments):
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


@pytest.mark.parametrize("case", ["text", "blend"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("loader", ["", "encoder", "fork", "threads"])
def test_loaders(folder, case, num_workers, loader):
    where = ["--case", case, "--folder", folder, "--loader", f"energy_data_{loader}"]
    told = measured("measure", *where, "--samples", 1024, "--num-workers", num_workers)
    assert told["samples"] == 1024
    assert told["cpu_s_per_100k"] > 0
    assert told["pss_mb"] > 0


@pytest.mark.parametrize("kind", ["16MiB", "1KB"])
def test_transport(kind):
    where = ["--loader", "energy_data_", "--kind", kind, "--num-workers", 1]
    told = measured("measure_transport", *where, "--seconds", 0.1, "--touch")
    assert told["batches"] >= 10
    assert told["gb_per_s"] > 0


@pytest.mark.parametrize("case", ["text", "blend"])
def test_restoring(folder, tmp_path, case):
    where = ["--case", case, "--folder", folder, "--states", tmp_path]
    for position in ("fresh", "100", "1000000"):
        if position != "fresh":
            measured("measure_restore", *where, "--position", position, "--save")
        told = measured("measure_restore", *where, "--position", position)
        assert 0 < told["reads"] <= told["reads_must"]
