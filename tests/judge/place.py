"""Where the real Energon is installed, the writers of chunks, and the trainers."""

import os
from pathlib import Path

_ROOT = Path(__file__).parents[2]  # `make test-slow` makes the environments

PYTHON = os.environ.get("ENERGY_DATA_ENERGON_PYTHON", f"{_ROOT}/.venv-judge/bin/python")
CHUNKS_PYTHON = os.environ.get("ENERGY_DATA_CHUNKS_PYTHON", f"{_ROOT}/.venv-chunks/bin/python")
TRAINERS_PYTHON = os.environ.get(
    "ENERGY_DATA_TRAINERS_PYTHON", f"{_ROOT}/.venv-trainers/bin/python"
)
