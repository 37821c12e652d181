"""Weights & Biases and TensorBoard keep the names and numbers of `stats().scalars()`."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from place import TRAINERS_PYTHON

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(TRAINERS_PYTHON).exists(), reason="the trainers are not installed"),
]

PROGRAM = """
import sys
import wandb
from pathlib import Path
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter
from energy_data import WorkerConfig, get_loader, get_train_dataset

Path("x.jsonl").write_text("{}\\n" * 20)
dataset = get_train_dataset("x.jsonl", batch_size=4, worker_config=WorkerConfig(lanes=1))
loader, step = get_loader(dataset), 7
for _ in range(3):
    loader.next_batch()
with wandb.init(mode="offline", project="test") as run, SummaryWriter("board") as writer:
    exec(sys.argv[1])
    run.log({"next": 1}, step=step + 1)  # before it, the step may get more
    found = dict(run.summary)
expected = loader.stats().scalars()
assert expected["data/drawn/x.jsonl:train"] == 12
assert {name: found[name] for name in expected} == expected
board = EventAccumulator("board").Reload()
for name, value in expected.items():
    (event,) = board.Scalars(name)
    assert (event.step, round(event.value, 4)) == (7, round(value, 4))
"""


def test_the_block_of_the_page_logs_all_scalars_under_their_names(tmp_path):
    page = (ROOT / "docs" / "loading.md").read_text()
    (block,) = re.findall(r"^```python\n(run\.log.*?)^```$", page, re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        [TRAINERS_PYTHON, "-c", PROGRAM, block], capture_output=True, text=True, check=False,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
