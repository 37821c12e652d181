"""Run a program that imports `megatron.energon` with energy_data in its place.

python -m energy_data.energon program.py ARGUMENTS
python -m energy_data.energon -m module ARGUMENTS
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from energy_data.energon.alias import install


def main() -> None:
    """Run the program of the command line."""
    is_module = sys.argv[1:2] == ["-m"]
    argv = sys.argv[2:] if is_module else sys.argv[1:]
    if not argv:
        sys.exit(__doc__)
    install()
    sys.argv = argv
    if is_module:
        runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(argv[0]).resolve().parent)
        runpy.run_path(argv[0], run_name="__main__")


main()
