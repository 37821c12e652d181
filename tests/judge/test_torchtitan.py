"""Runs of the real torchtitan continue exactly on other data-parallel degrees."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from page import block
from place import TRAINERS_PYTHON
from token_files import write_datatrove

HERE = Path(__file__).parent
CHECKPOINT = "checkpoint/step-3"
WINDOWS = "{path: corpus.ds, split_part: train, seq_len: 33, stride: 32, cu_seqlens: true}"
OPTIONS = """
    --hf_assets_path . --training.seq_len 32 --training.local_batch_size 2
    --training.global_batch_size 8 --training.steps 5 --training.disable_cuda_graphs
    --training.mixed_precision_param float32 --parallelism.spmd_backend partial_dtensor
    --debug.seed 0 --checkpoint.enable --checkpoint.interval 3 --validator.freq 2
    --validator.steps 2 --metrics.disable_color_printing
    --dataloader.lanes 8 --dataloader.num_workers 1
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(TRAINERS_PYTHON).exists(), reason="the trainers are not installed"),
]


def train(folder, config, ranks, name, *options):
    """The micro-batches of a run of 5 steps in the order of the run, and their losses."""
    done = subprocess.run(
        [
            TRAINERS_PYTHON, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={ranks}", str(HERE / "titan_on_cpu.py"), "--module", "titan_on_cpu",
            "--config", config, "--dump_folder", name, *OPTIONS.split(), *options,
        ],
        env={
            **os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{HERE.parents[1]}:{HERE}:{folder}",
        },
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "validate step:  4" in done.stdout, done.stdout
    files = {file.stem.split("-")[1]: file.read_text() for file in folder.glob(f"{name}-*.jsonl")}
    lines = [list(map(json.loads, files[rank].splitlines())) for rank in sorted(files)]
    return [line for round_ in zip(*lines, strict=True) for line in round_]


@pytest.fixture
def folder(tmp_path):
    """A corpus, its metadataset, a tokenizer, and the config of the page."""
    write_datatrove(tmp_path / "corpus", [[n] * (5 + n % 50) for n in range(1, 200)])
    (tmp_path / "run.yaml").write_text(f"splits: {{train: {WINDOWS}, val: {WINDOWS}}}")
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model}))
    (tmp_path / "my_run.py").write_text(block("torchtitan"))
    return tmp_path


@pytest.mark.parametrize(("config", "peers", "ranks"), [("windows", 2, 1), ("packs", 1, 4)])
def test_what_two_ranks_have_saved_continues_on_other_ranks(folder, config, peers, ranks):
    tensor_parallel = f"--parallelism.tensor_parallel_degree={peers}"
    unbroken = train(folder, config, 2 * peers, "unbroken", tensor_parallel)
    texts = {file.read_text() for file in folder.glob("unbroken-*.jsonl")}
    assert len(texts) == 2  # tensor-parallel peers read the same
    shutil.copytree(folder / "unbroken" / CHECKPOINT, folder / "resumed" / CHECKPOINT)
    resumed, expected = train(folder, config, ranks, "resumed"), unbroken[3 * 4 :]
    assert [tokens for tokens, _ in resumed] == [tokens for tokens, _ in expected]
    assert [loss for _, loss in resumed] == pytest.approx([loss for _, loss in expected], rel=1e-5)
    assert len({str(tokens) for tokens, _ in unbroken}) == 5 * 4
