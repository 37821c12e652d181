"""A long run holds no more memory, descriptors, processes and slots at its end than early on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from benchmarks.measure_soak import grows  # noqa: E402 - benchmarks are not installed


@pytest.mark.parametrize("batches", [200, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_nothing_grows_in_a_long_run(batches):
    command = [sys.executable, "-m", "benchmarks.measure_soak", "--batches", str(batches)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["grows"] == [], done.stderr
    assert told["batches"] == told["last"]["batches"] == batches


def test_what_grows_is_noticed():
    flat = {"own_mb": 300.0, "descriptors": 9, "processes": 5, "shared_mb": 1, "slots_in_use": 3}
    assert grows([flat] * 30) == []
    assert grows([{**flat, "descriptors": 9 + n} for n in range(30)]) == ["descriptors"]
    assert grows([{**flat, "own_mb": 300 + n / 2} for n in range(30)]) == ["own_mb"]
    assert grows([{**flat, "slots_in_use": 4}] * 30) == ["slots_in_use"]
