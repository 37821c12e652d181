"""Metadatasets as objects: their contents, and their datasets loaded."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attrs import field, frozen

from energy_data.config.compile import compile_split
from energy_data.config.leaves import is_metadataset, leaf_uses
from energy_data.config.load import LoadedMetadataset, load
from energy_data.config.opening import Options
from energy_data.core.context import WorkerConfig
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import SpecError
from energy_data.nodes.leaf import Shuffle
from energy_data.tasks.mixture import DatasetBlendMode, LoadedDatasets, Reading

PathLike = str | Path


@frozen(kw_only=True)
class LoadedDatasetList:
    """The datasets of a mixture, and whether they have weights or repetitions."""

    datasets: LoadedDatasets
    blend_mode: DatasetBlendMode


@frozen
class TraversedDatasetReference:
    """One dataset of a metadataset, as it would be opened."""

    path: Path
    split_part: str
    aux: dict[str, str] = field(factory=dict)
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
        parallel_shard_iters: int | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        decoder: Any = None,
        allow_modules: Iterable[str] = (),
    ) -> LoadedDatasetList:
        """Return the datasets of a split, opened, with their weights or repetitions.

        Args:
            training: Whether the stream is endless and draws from blends.
            split_part: The split.
            worker_config: Which part of the run this process is.
            shuffle_buffer_size: Neighbouring draws of a dataset that are shuffled; None: none.
            max_samples_per_sequence: Neighbouring samples that are read together; None: all.
            parallel_shard_iters: Sequences that are mixed at a time; None: 16.
            shuffle_over_epochs_multiplier: As the key of that name in a metadataset.
            decoder: Decodes parts; None: they stay bytes.
            allow_modules: Modules and folders with code that files may name.
        """
        trust = ImportPolicy.of(allow_modules)
        read = Reading(
            worker_config=worker_config,
            seed=worker_config.seed_offset,
            shuffle=Shuffle(
                buffer_size=shuffle_buffer_size or 0,
                sequence_length=max_samples_per_sequence or 0,
                parallel_sequences=parallel_shard_iters or 16,
            ),
            deal=0 if training else 1,
        )
        order = compile_split(
            self.metadataset(),
            split_part,
            open_source=partial(open_typed, decoder=decoder, policy=trust),
            mode="train" if training else "val",
            options=Options(
                shuffle_over_epochs_multiplier=shuffle_over_epochs_multiplier, trust=trust
            ),
        )
        datasets = LoadedDatasets(order, read)
        return LoadedDatasetList(datasets=datasets, blend_mode=datasets.blend_mode)

    def traverse(self, *, split_part: str) -> list[TraversedDatasetReference]:
        """Return the datasets of a split, without opening them."""
        found = []
        for leaf in leaf_uses(self.metadataset().tree(split_part)):
            aux = {name: store.path for name, store in leaf.aux.items()}
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
        given = {
            "split_part": self.split_part,
            "subflavors": self.subflavors,
            "dataset_config": self.dataset_config,
            "split_config": self.split_config,
        }
        about = {name: value for name, value in given.items() if value}
        if not about:
            return load(self.path)
        node = {"path": os.path.abspath(self.path), **about}  # noqa: PTH100 - keeps links
        return load({"splits": dict.fromkeys(("train", "val", "test"), node)})


@frozen(init=False)
class Metadataset(DatasetLoaderInterface):
    """A metadataset by its path or by its contents."""

    path: PathLike
    splits: Mapping[str, Any] | None

    def __init__(self, path: PathLike, splits: Mapping[str, Any] | None = None) -> None:
        """Read the file at `path`; or use `splits`, with paths relative to the folder of `path`."""
        self.__attrs_init__(path, splits)

    def metadataset(self) -> LoadedMetadataset:
        """Return it, read and checked."""
        if self.splits is None:
            return load(self.path)
        return load({"splits": self.splits}, base_dir=Path(self.path).parent)


class MetadatasetV2(Metadataset):
    """A metadataset; the two versions of Energon are one here."""


@frozen
class _Given(DatasetLoaderInterface):
    """A metadataset as a mapping."""

    contents: Mapping[str, Any]

    def metadataset(self) -> LoadedMetadataset:
        return load(self.contents)


def load_dataset(path: PathLike | Mapping[str, Any]) -> DatasetLoaderInterface:
    """Return a loader for a dataset, a metadataset (.yaml), or a metadataset as a dict."""
    if isinstance(path, Mapping):
        return _Given(path)
    if is_metadataset(str(path)):
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
