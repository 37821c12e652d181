"""The program for torchrun trains on some ranks, and continues on others with the same losses."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "train_fsdp.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def losses(output):
    return [float(loss) for loss in re.findall(r"\b0\.\d{6}\b", output)]


@pytest.mark.slow
def test_a_run_that_is_stopped_continues_on_other_ranks_with_the_same_losses(tmp_path, gloo_ranks):
    begun = subprocess.run(
        [*TORCHRUN, PROGRAM, tmp_path / "run", "3"], capture_output=True, text=True, check=False
    )
    assert begun.returncode == 0, begun.stderr
    found = []
    for name in ("run", "unbroken"):
        (alone,) = gloo_ranks.run(PROGRAM.read_text(), tmp_path, 1, str(tmp_path / name), "6")
        assert alone.code == 0, alone.output
        found.append(losses(alone.output))
    assert len(found[0]) == 3
    assert losses(begun.stdout) + found[0] == pytest.approx(found[1], abs=2e-6)


def test_the_loop_of_the_page_is_that_of_the_program():
    page = (ROOT / "docs" / "docs-per-step.md").read_text()
    (loop,) = re.findall(
        r"^```python\n(for batch in loader:\n[^`]*set_requires[^`]*)```", page, re.M
    )
    lines = [line.strip() for line in PROGRAM.read_text().splitlines()]
    program = [line for line in lines if not line.startswith("total")]
    assert "\n".join(line.strip() for line in loop.splitlines()) in "\n".join(program)
