"""Runs of real trainers go on exactly, on other ranks, from what they have saved themselves."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from place import TRAINERS_PYTHON

PROGRAM = Path(__file__).with_name("trainers.py")
RAY_PROGRAM = PROGRAM.with_name("ray_trainer.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(TRAINERS_PYTHON).exists(), reason="the trainers are not installed"),
]


def train(trainer, folder, ranks, steps, name):
    """The micro-batches of a run in the order of the run, and their losses."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    is_launched = ranks > 1 or trainer.startswith("deepspeed")  # which needs a process group
    program = [*(torchrun if is_launched else []), str(PROGRAM), trainer]
    if trainer == "ray":
        program = [str(RAY_PROGRAM), str(ranks)]
    path = f"{Path(TRAINERS_PYTHON).parent}:{os.environ['PATH']}"  # DeepSpeed looks for ninja
    done = subprocess.run(
        [TRAINERS_PYTHON, *program, str(folder), str(steps), name],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PATH": path,
             "PYTHONPATH": str(PROGRAM.parents[2])},
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    files = [file.read_text() for file in sorted(folder.glob(f"{name}-*.jsonl"))]
    lines = [list(map(json.loads, file.splitlines())) for file in files]
    return [line for round_ in zip(*lines, strict=True) for line in round_]


@pytest.mark.parametrize(
    ("trainer", "saved"),
    [
        ("lightning", 8),
        ("accelerate", 8),
        ("transformers", 7),
        ("deepspeed", 7),
        ("deepspeed-pipeline", 7),
        ("ray", 7),
    ],
)
def test_what_two_ranks_have_saved_continues_on_one(trainer, saved, tmp_path):
    lines = (json.dumps({"x": n / 60}) for n in range(60))
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n")
    unbroken = train(trainer, tmp_path, 1, 12, "unbroken")
    both = train(trainer, tmp_path, 2, saved, "begun") + train(trainer, tmp_path, 1, 12, "resumed")
    assert [keys for keys, _ in both] == [keys for keys, _ in unbroken]
    assert [loss for _, loss in both] == pytest.approx([loss for _, loss in unbroken], rel=1e-5)
    assert unbroken[-1][1] < unbroken[0][1]
