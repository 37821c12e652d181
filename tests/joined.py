"""Joins for tests, of made-up datasets."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from energy_data.data.files.local import atomic_file
from energy_data.data.join import JoinSource
from energy_data.data.join_table import JoinMember, Kept
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
        with atomic_file(str(path), 0o600) as file:
            np.save(file, table.astype(np.int32))
    members = (
        JoinMember(NumberSource(rows, f"{name}-left")),
        JoinMember(NumberSource(rows, f"{name}-right", frozenset({1})), nonmatch="none"),
    )
    source = JoinSource(members, None, None, Kept(str(path), rows), (0, rows))
    return LeafSpec(Leaf(id=name, source=source))
