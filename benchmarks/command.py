"""What the commands share: the peers' environment, processes of their own, medians and tables."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = "energy_data_"
WITHOUT_BOUNDS = "mosaicml-streaming==0.13.0"  # peers.txt says why
Rows = list[dict[str, Any]]


def names(folder: Path) -> list[str]:
    """Return the names of what the folder has one file each of."""
    return sorted(path.stem for path in folder.glob("[!_]*.py"))


def peers_python() -> str:
    """Return the Python that has all loaders; make its environment if there is none."""
    if given := os.environ.get("PEERS_PYTHON"):
        return given
    folder = ROOT / ".venv-peers"
    python, done = str(folder / "bin" / "python"), folder / "done"
    wanted = ROOT / "benchmarks" / "peers.txt"
    told = wanted.read_text()
    if not done.is_file() or done.read_text() != told:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        pip = [python, "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "-r", str(wanted), "-e", f"{ROOT}[parquet,remote]"], check=True)
        subprocess.run([*pip, "--no-deps", WITHOUT_BOUNDS], check=True)
        done.write_text(told)
    return python


def run_python(python: str, module: str, *arguments: Any) -> str:
    """Run a module of ours with the peers' Python and return the last line it prints."""
    settings = {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",  # as torchrun sets it
        "DISABLE_VERSION_CHECK": "1",  # litdata's, of the network
        "PYTHONWARNINGS": "ignore",
    }
    command = [python, "-m", module, *map(str, arguments)]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **settings}, capture_output=True, text=True
    )
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{ended.stdout}{ended.stderr}")
    return (ended.stdout.splitlines() or [""])[-1]


def middle(rows: Rows, field: str) -> float:
    """Return the median of a field over repetitions, 0 if there are none."""
    return float(median([row[field] for row in rows] or [0.0]))


def show(lines: list[list[str]]) -> None:
    """Print a table, as Markdown."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = ["-" * width for width in widths]
    for cells in (lines[0], rule, *lines[1:]):
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        print(f"| {' | '.join(padded)} |")


class Circumstances:
    """When, on what, and beside how much else something is measured, from now on."""

    def __init__(self) -> None:
        info = Path("/proc/cpuinfo").read_text().splitlines()
        models = {text.partition(":")[2].strip() for text in info if text.startswith("model name")}
        self._cores = f"{os.cpu_count()} cores of {' / '.join(models) or platform.machine()}"
        self._began = datetime.now(UTC).isoformat(timespec="minutes")
        self._load, self._ticks = os.getloadavg()[0], _ticks()

    def told(self) -> str:
        """Return them in words. "Stolen": what other virtual machines had of the time asked for."""
        asked, stolen = (now - then for now, then in zip(_ticks(), self._ticks, strict=True))
        loads = f"load {self._load:.1f} to {os.getloadavg()[0]:.1f}"
        return f"{self._began}, {self._cores}, {loads}, {stolen / max(asked, 1):.0%} stolen"


def _ticks() -> tuple[int, int]:
    """Return the ticks of all cores that were asked for, and those of them that were stolen."""
    user, nice, system, _idle, _io, irq, softirq, stolen, *_ = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    )
    return user + nice + system + irq + softirq + stolen, stolen
