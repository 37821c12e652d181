"""The program for torchrun trains on some ranks, and continues on others with the same losses."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "train_ddp.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def losses(output):
    return [float(loss) for loss in re.findall(r"\b0\.\d{6}\b", output)]


def test_a_run_that_is_stopped_continues_on_other_ranks_with_the_same_losses(tmp_path, gloo_ranks):
    stopped = [*TORCHRUN, "2", str(PROGRAM), str(tmp_path / "run"), "3"]
    done = subprocess.run(stopped, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    program = PROGRAM.read_text()
    (rest,) = gloo_ranks.run(program, tmp_path, 1, str(tmp_path / "run"), "6")
    (alone,) = gloo_ranks.run(program, tmp_path, 1, str(tmp_path / "unbroken"), "6")
    both = losses(done.stdout) + losses(rest.output)
    assert len(both) == 6, rest
    assert losses(alone.output) == both, alone


def test_the_loop_of_the_page_is_that_of_the_program():
    page = (ROOT / "docs" / "docs-per-step.md").read_text()
    (loop,) = re.findall(r"^```python\n(for batch in loader:\n[^`]*no_sync[^`]*)```", page, re.M)
    lines = [line.strip() for line in PROGRAM.read_text().splitlines()]
    program = [line for line in lines if not line.startswith("total")]
    assert "\n".join(line.strip() for line in loop.splitlines()) in "\n".join(program)
