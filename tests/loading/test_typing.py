"""Batches have the type that the task encoder gives them, for mypy and for pyright."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TYPED = ROOT / "tests" / "loading" / "typed_batches.py"
CHECKERS = {"mypy": ["--strict"], "pyright": ["--pythonpath", sys.executable]}


def checked(checker, file):
    command = [sys.executable, "-m", checker, *CHECKERS[checker], str(file)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("checker", CHECKERS)
def test_batches_are_of_the_type_the_task_encoder_makes(checker):
    done = checked(checker, TYPED)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_wrong_type_would_be_noticed(checker, tmp_path):
    wrong = tmp_path / "wrong.py"
    wrong.write_text(TYPED.read_text() + "\nassert_type(loader.next_batch(), int)\n")
    done = checked(checker, wrong)
    assert done.returncode == 1
    assert "int" in done.stdout
    assert "Batch" in done.stdout
