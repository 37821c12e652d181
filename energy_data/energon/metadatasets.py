"""Metadatasets as objects: their datasets, loaded or listed."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from energy_data.config.compile import compile_split
from energy_data.config.leaves import is_metadataset, leaf_uses
from energy_data.config.load import LoadedMetadataset, load
from energy_data.config.opening import Options
from energy_data.core.worker_config import WorkerConfig
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import SpecError
from energy_data.tasks.encoder import TaskEncoder
from energy_data.tasks.mixture import DatasetBlendMode, LoadedDataset, Mixture, StreamBuilder

PathLike = str | Path

__all__ = [
    "DatasetLoader",
    "DatasetLoaderInterface",
    "Metadataset",
    "MetadatasetV2",
    "Recipe",
    "load_dataset",
    "prepare_metadataset",
    "prepare_recipe",
    "traverse_metadataset",
    "traverse_recipe",
]


@frozen
class LoadedDatasetList:
    """The datasets of a mixture, and whether they have weights or repetitions."""

    blend_mode: DatasetBlendMode
    datasets: list[LoadedDataset[Any]]


@frozen
class TraversedDatasetReference:
    """One dataset of a metadataset, as it would be opened."""

    path: Path
    split_part: str
    aux: dict[str, Path] = field(factory=dict)
    subflavors: dict[str, Any] = field(factory=dict)


class DatasetLoaderInterface(ABC):
    """A dataset or a metadataset that can be loaded."""

    @abstractmethod
    def metadataset(self) -> LoadedMetadataset:
        """Return it, read and checked."""

    def get_datasets(
        self,
        *,
        training: bool,
        split_part: str,
        worker_config: WorkerConfig,
        shuffle_buffer_size: int | None = None,
        max_samples_per_sequence: int | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        decoder: Any = None,
        allow_modules: Iterable[str] = (),
    ) -> LoadedDatasetList:
        """Return the datasets of a split, opened, with their weights or repetitions.

        training: whether the stream is endless and draws from blends. decoder: decodes parts; None:
        they stay bytes. The other arguments are those of `get_train_dataset`.
        """
        trust, metadataset = ImportPolicy.of(allow_modules), self.metadataset()
        builder = StreamBuilder(
            task_encoder=TaskEncoder(),
            batch_size=None,
            worker_config=worker_config,
            seed=worker_config.seed_offset,
            shuffle_buffer_size=shuffle_buffer_size or 0,
            max_samples_per_sequence=max_samples_per_sequence or 0,
        )
        order = compile_split(
            metadataset,
            split_part,
            open_source=partial(open_typed, decoder=decoder, policy=trust),
            mode="train" if training else "val",
            options=Options(
                shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier, trust=trust
            ),
        )
        samples = builder.samples(order, deal=0 if training else 1)
        mixture = Mixture(samples, None if training else metadataset.tree(split_part))
        return LoadedDatasetList(mixture.blend_mode, list(mixture.datasets))

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """Return the datasets of a split, without opening them."""
        found = []
        for leaf in leaf_uses(self.metadataset().tree(split_part)):
            aux = {name: Path(store.path) for name, store in leaf.aux.items()}
            found += [
                TraversedDatasetReference(
                    Path(part.path), part.split_part, aux, dict(part.subflavors)
                )
                for part in leaf.parts
            ]
        return found

    def prepare(self, split_part: str | None = None) -> Sequence[Path]:
        """Check it with all files it names. Nothing else needs preparation."""
        self.metadataset()
        return ()


@frozen(kw_only=True)
class DatasetLoader(DatasetLoaderInterface):
    """A dataset by its path, with the keys that it would have in a metadataset."""

    path: PathLike
    split_part: str | None = None
    subflavors: Mapping[str, Any] | None = None
    shuffle_over_epochs_multiplier: int | None = 1
    dataset_config: str | None = None
    split_config: str | None = None

    def metadataset(self) -> LoadedMetadataset:
        """Return a metadataset of the one dataset, or the one at the path."""
        given = asdict(self, filter=lambda one, value: value not in (one.default, {}))
        if given.keys() == {"path"}:
            return load(self.path)
        node = {**given, "path": os.path.abspath(self.path)}  # noqa: PTH100 - keeps links
        return load({"splits": dict.fromkeys(("train", "val", "test"), node)})


@frozen
class Metadataset(DatasetLoaderInterface):
    """A metadataset: the file or the mapping `path`, or `splits` with paths relative to `path`."""

    path: PathLike | Mapping[str, Any]
    splits: Mapping[str, Any] | None = None

    def metadataset(self) -> LoadedMetadataset:
        """Return it, read and checked."""
        if self.splits is None or isinstance(self.path, Mapping):
            return load(self.path)
        return load({"splits": self.splits}, base_dir=Path(self.path).parent)


MetadatasetV2 = Recipe = Metadataset  # the versions of Energon are one here


def load_dataset(path: PathLike | Mapping[str, Any]) -> DatasetLoaderInterface:
    """Return a loader for a dataset, a metadataset (.yaml), or a metadataset as a dict."""
    if isinstance(path, Mapping) or is_metadataset(str(path)):
        return Metadataset(path)
    return DatasetLoader(path=path)


def traverse_metadataset(path: PathLike, *, split_part: str) -> list[TraversedDatasetReference]:
    """Return the datasets of one split of a metadataset file, without opening them.

    SpecError if there is no such split, or with every error in the files.
    """
    if not is_metadataset(str(path)):
        raise SpecError(f"{path}: not a metadataset. Pass the path of a .yaml file.")
    return load_dataset(path).traverse(split_part=split_part)


def prepare_metadataset(path: PathLike) -> None:
    """Check a metadataset with all files it names; joins are computed on first use."""
    load_dataset(path).prepare()


traverse_recipe, prepare_recipe = traverse_metadataset, prepare_metadataset  # as in Energon 8
