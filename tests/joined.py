"""Joins for tests, of made-up datasets."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from energy_data.data.files.local import whole_file
from energy_data.data.join.source import JoinSource
from energy_data.data.join.table import Kept
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import LeafSpec
from energy_data.testing import NumberSource

FOLDER = Path(gettempdir(), f"energy_data-tests-{os.getuid()}")


def join_leaf(name: str = "j", rows: int = 8) -> LeafSpec:
    """A join whose second dataset has a bad sample, and no match for every fourth row."""
    path = FOLDER / f"join-{rows}.npy"
    if not path.exists():
        numbers = np.arange(rows)
        table = np.stack([numbers, np.where(numbers % 4 == 3, -1, rows - 1 - numbers)], axis=1)
        with whole_file(str(path), 0o600) as file:
            np.save(file, table.astype(np.int32))
    members = (
        NumberSource(rows, f"{name}-left"),
        NumberSource(rows, f"{name}-right", frozenset({1})),
    )
    kept = Kept(str(path), rows)
    source = JoinSource(members, None, None, kept, (0, rows), ("error", "none"))
    return LeafSpec(Leaf(id=name, source=source))
