"""Merged transforms are those of Energon, pixel by pixel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from place import PYTHON

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path(PYTHON).exists(), reason="Energon is not installed"),
]


def test_merged_transforms_are_those_of_energon_pixel_by_pixel():
    here = Path(__file__).parent
    environ = {**os.environ, "PYTHONPATH": str(here.parents[1])}
    done = subprocess.run(
        [PYTHON, here / "merged.py"], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("compared 195\n")
