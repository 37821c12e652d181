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


CASES = {"text": 6000, "blend": 6000, "large_stack": 640, "packed_ids": 500}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of the data of some cases, small."""
    everything = tmp_path_factory.mktemp("data")
    for name, num_samples in CASES.items():
        weights = (1, 2) if name == "blend" else (1,)
        case = replace(find_case(name), num_samples=num_samples, weights=weights)
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


def assert_measured(folder, case, loader, num_workers):
    where = ["--case", case, "--folder", folder, "--loader", loader]
    told = measured("measure", *where, "--samples", 1024, "--num-workers", num_workers)
    assert told["batches"] == -(-1024 // find_case(case).batch_size)
    assert min(told[name] for name in ("cpu_us", "wall_us", "wait_ms", "first_s", "pss_mb")) > 0


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("loader", ["", "encoder", "forkserver", "threads", "typed"])
def test_ours(folder, loader, num_workers):
    assert_measured(folder, "blend", f"energy_data_{loader}", num_workers)


@pytest.mark.parametrize("case", ["large_stack", "packed_ids"])
@pytest.mark.parametrize("loader", ["energy_data_", "energy_data_typed", "torch_", "webdataset_"])
def test_whole_pipelines(folder, case, loader):
    assert_measured(folder, case, loader, num_workers=1)


def test_a_loader_that_does_not_read_the_data_of_a_case_is_left_out(folder):
    where = ["--case", "text", "--folder", folder, "--loader", "pyarrow_"]
    assert measured("measure", *where) is None


def test_a_store_and_a_resumed_start(folder, tmp_path, monkeypatch):
    pytest.importorskip("moto")
    names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"]
    for name in names:
        monkeypatch.setenv(name, "us-east-1")
    data, log, cache = folder / "text" / "tars" / "000", tmp_path / "log", tmp_path / "cache"
    command = [sys.executable, "-m", "benchmarks.store", data, "data", "1", "inf", log]
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{int(store.stdout.readline())}")
        where = ["--case", "text", "--loader", "energy_data_", "--url", "s3://bench/data"]
        where += ["--cache", cache, "--state", tmp_path / "state", "--num-workers", 1]
        cache.mkdir()
        told = measured("measure_remote", *where)
        assert min(told["first_s"], told["mb_per_s"], told["cpu_s"]) > 0
        assert sum(int(line.split()[0]) for line in log.read_text().splitlines()) > 1_000_000
        assert measured("measure_remote", *where, "--resume")["first_s"] > 0
        store.kill()


@pytest.mark.parametrize("case", ["text", "blend"])
def test_restoring(folder, tmp_path, case):
    where = ["--case", case, "--folder", folder, "--states", tmp_path]
    for position in ("fresh", "100", "1000000"):
        if position != "fresh":
            measured("measure_restore", *where, "--position", position, "--save")
        told = measured("measure_restore", *where, "--position", position)
        assert 0 < told["reads"] <= told["reads_must"]
