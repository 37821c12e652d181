"""The splits of a metadataset or a dataset, and their leaves, opened as training reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from energy_data.config.compile import compile_split
from energy_data.config.leaves import leaf_uses
from energy_data.config.load import LoadedMetadataset
from energy_data.config.opening import OpenSource, Options
from energy_data.config.staged import StagedRecipe, below_steps
from energy_data.core.spec import Spec
from energy_data.data.part import prepared_at
from energy_data.data.registry import located, open_source
from energy_data.data.source import Source
from energy_data.data.typed.dataset_yaml import Typing, read_dataset_yaml
from energy_data.data.typed.wrap import open_typed
from energy_data.nodes.leaf import distinct_leaves


def is_staged(metadataset: LoadedMetadataset, split: str) -> bool:
    """Return whether a split has stages. SpecError if there is no such split."""
    return isinstance(below_steps(metadataset.tree(split)), StagedRecipe)


def summary(spec: Spec) -> str:
    """Return how many leaves and samples a tree has."""
    leaves = distinct_leaves(spec)
    samples = sum(leaf.num_samples for leaf in leaves)
    return f"{len(leaves):,} {'leaf' if len(leaves) == 1 else 'leaves'}, {samples:,} samples"


def splits_of(metadataset: LoadedMetadataset, split: str | None = None) -> tuple[str, ...]:
    """Return the splits of a metadataset; of a dataset, its parts that have shards.

    split: the only one that is wanted; None: all.
    """
    if split is not None:
        return (split,)
    if not metadataset.root.any_split:
        return metadataset.splits
    (leaf,) = leaf_uses(metadataset.tree("train"))
    prepared = prepared_at(located(leaf.parts[0].path, leaf.parts[0].storage))
    return ("train",) if prepared is None else tuple(prepared.parts)


def compiled(metadataset: LoadedMetadataset, split: str, *, opened: OpenSource) -> Spec:
    """Return the tree of a split, with its leaves open. Raises what `compile_split` does.

    opened: opens the datasets.
    """
    options = Options(open_typed=opened)
    if split == "train" and is_staged(metadataset, split):
        from energy_data.cli.plan import stream

        params = {"seq_len": 1}  # any length will do
        return stream(metadataset, split, params=params, opened=opened, options=options)
    return compile_split(metadataset, split, open_source=opened, options=options)


def open_declared(path: str | Path, *, dataset_config: str | None = None, **facts: Any) -> Source:
    """Open a dataset: its samples are of the type in its dataset.yaml, or else dicts of parts.

    Code that it names runs if the environment allows it. Raises what `open_typed` does.
    """
    typing = read_dataset_yaml(Path(path), config=dataset_config)
    if typing == Typing():
        return open_source(path, **facts)
    return open_typed(path, typing=typing, **facts)
