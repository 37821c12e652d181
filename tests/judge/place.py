"""Where the real Energon is installed."""

import os
from pathlib import Path

_OURS = Path(__file__).parents[2] / ".venv-judge" / "bin" / "python"  # `make test-slow` makes it

PYTHON = os.environ.get("ENERGY_DATA_ENERGON_PYTHON", str(_OURS))
