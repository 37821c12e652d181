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
    both = []
    for ranks, last in ((2, 3), (1, 6)):
        command = [*TORCHRUN, str(ranks), str(PROGRAM), str(tmp_path / "run"), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        both += losses(done.stdout)
    (alone,) = gloo_ranks.run(PROGRAM.read_text(), tmp_path, 1, str(tmp_path / "unbroken"), "6")
    assert len(both) == 6
    assert losses(alone.output) == both, alone


def test_the_loop_of_the_page_is_that_of_the_program():
    page = (ROOT / "docs" / "docs-per-step.md").read_text()
    (loop,) = re.findall(r"^```python\n(for batch in loader:\n[^`]*no_sync[^`]*)```", page, re.M)
    lines = [line.strip() for line in PROGRAM.read_text().splitlines()]
    program = [line for line in lines if not line.startswith("total")]
    assert "\n".join(line.strip() for line in loop.splitlines()) in "\n".join(program)
