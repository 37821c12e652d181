"""Preparing a metadataset: its joins are computed now, and not at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from energy_data.config.load import load
from energy_data.config.prepare import prepare_joins
from energy_data.data.registry import open_source


def prepare_metadataset(path: Path) -> Iterator[str]:
    """Compute the joins of all splits; yield a line for each. No code that it names is run."""
    prepared = prepare_joins(load(path), open_source=open_source)
    if not prepared:
        yield f"{path}: it has no joins, so there is nothing to prepare"
    for one in prepared:
        yield f"{path}: {one.split}: {one.id}: {one.table.rows:,} samples, {one.table.path}"
