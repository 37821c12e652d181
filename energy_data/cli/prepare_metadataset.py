"""Preparing a metadataset: its joins are computed now, and not at the start of a run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from energy_data.metadataset.compile import compile_split
from energy_data.metadataset.load import load
from energy_data.metadataset.opening import Options
from energy_data.references import distinct_leaves, leaf_entries
from energy_data.sources.open import open_source
from energy_data.sources.typed import open_typed
from energy_data.trust import Trust


def prepare_metadataset(path: Path) -> Iterator[str]:
    """Open all datasets of all splits, which computes joins; yield a line for each split.

    Code that it names is run if the environment allows it: see `energy_data.trust`.
    """
    metadataset = load(path)
    trust = Trust.of()
    options = Options(trust=trust, open_typed=partial(open_typed, trust=trust))
    for split in metadataset.splits:
        spec = compile_split(metadataset, split, open_source=open_source, options=options)
        samples = sum(
            leaf.num_samples for leaf in distinct_leaves([leaf for _, leaf in leaf_entries(spec)])
        )
        yield f"{path}: {split}: {samples:,} samples"
