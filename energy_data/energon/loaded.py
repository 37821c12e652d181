"""Loaded datasets: what `build_train_datasets` is given, one for each dataset of a mixture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, Generic, TypeVar

from attrs import field, frozen

from energy_data.data.files.stores import FileStore
from energy_data.data.registry import open_store
from energy_data.energon.cooking import is_crude
from energy_data.energon.dataset import SavableDataset, changed
from energy_data.energon.trees import references_of, with_references
from energy_data.nodes.blend import BlendSpec
from energy_data.nodes.blend_epochized import BlendEpochizedSpec
from energy_data.nodes.concat import ConcatSpec
from energy_data.nodes.leaves import Leaf, leaf_entries
from energy_data.nodes.references import OrderSpec

T = TypeVar("T")


class DatasetBlendMode(Enum):
    """What the numbers beside loaded datasets are."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@frozen(kw_only=True)
class BaseCoreDatasetFactory(Generic[T]):
    """One dataset of a mixture, before cooking and encoding."""

    samples: SavableDataset[T]  # its samples: without end in training, once in validation

    @property
    def order(self) -> OrderSpec:
        """The order its samples are read in."""
        references = references_of(self.samples.spec)
        assert references is not None
        return references.of

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves that are read: one, but for a part of a mixture that is not a plain blend."""
        return [leaf for _, leaf in leaf_entries(self.order)]

    @property
    def paths(self) -> list[Path]:
        """The paths of the datasets."""
        return [Path(str(getattr(leaf.source, "path", leaf.id))) for leaf in self.leaves]

    @property
    def is_crude(self) -> bool:
        """Whether samples are dicts of parts, for cookers."""
        return all(is_crude(leaf) for leaf in self.leaves)

    @property
    def subflavors(self) -> dict[str, Any]:
        """What the metadataset says about the samples."""
        source = self.leaves[0].source
        return dict(getattr(getattr(source, "inner", source), "subflavors", {}))

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[T]:
        """Return one pass over the samples; the argument is taken for Energon's sake."""
        return changed(self.samples, spec=with_references(self.samples.spec, deal=1))

    def as_file_store(self) -> FileStore[bytes]:
        """Return the files of the dataset, by key."""
        return open_store(self.paths[0])

    def __len__(self) -> int:
        """Return how many samples one pass has, over all ranks."""
        return ceil(self.order.size)


@frozen(kw_only=True)
class LoadedDataset(Generic[T]):
    """A dataset of a mixture, and how much of it is drawn; also a pair (dataset, weight)."""

    dataset: BaseCoreDatasetFactory[T]
    weight: float | None = None
    repetitions: float | Fraction | None = None
    aux: Mapping[str, FileStore[Any]] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the dataset without end and its weight, as older versions of Energon had them."""
        yield self.as_dataset()
        yield 1.0 if self.weight is None else self.weight

    def as_dataset(self) -> SavableDataset[T]:
        """Return its samples: without end in training, once in validation."""
        return self.dataset.samples


class LoadedDatasets(list[LoadedDataset[Any]]):
    """The loaded datasets of a mixture, which remember it as a whole."""

    def __init__(self, datasets: Sequence[LoadedDataset[Any]], whole: SavableDataset[Any]) -> None:
        super().__init__(datasets)
        self.whole = whole
        self._as_made = list(datasets)

    @property
    def as_made(self) -> bool:
        """Whether the list is as it was when it was made."""
        return list(self) == self._as_made


@frozen
class Mixture:
    """A mixture taken apart."""

    mode: DatasetBlendMode
    parts: list[tuple[OrderSpec, Fraction]] = field(factory=list)


def taken_apart(order: OrderSpec) -> Mixture:
    """Return the datasets of a mixture with their weights or repetitions, nested ones multiplied.

    What is not a plain blend, a blend by repetitions or a concatenation stays one part.
    """
    if isinstance(order, BlendSpec):
        return Mixture(DatasetBlendMode.DATASET_WEIGHT, list(_weighted(order, Fraction(1))))
    if isinstance(order, BlendEpochizedSpec):
        return Mixture(DatasetBlendMode.SAMPLE_REPETITIONS, list(_times(order, Fraction(1))))
    if isinstance(order, ConcatSpec):
        parts = [part for of in order.parts for part in taken_apart(of).parts]  # type: ignore[arg-type]  # below reading, all are orders
        return Mixture(DatasetBlendMode.NONE, [(of, Fraction(1)) for of, _ in parts])
    return Mixture(DatasetBlendMode.NONE, [(order, Fraction(1))])


def _weighted(order: OrderSpec, weight: Fraction) -> Iterator[tuple[OrderSpec, Fraction]]:
    if not isinstance(order, BlendSpec):
        yield order, weight
        return
    total = sum(order.weights)
    for part, own in zip(order.parts, order.weights, strict=True):
        if own:
            yield from _weighted(part.of, weight * own / total)  # type: ignore[arg-type]  # as above


def _times(order: OrderSpec, times: Fraction) -> Iterator[tuple[OrderSpec, Fraction]]:
    if not isinstance(order, BlendEpochizedSpec):
        yield order, times
        return
    for part in order.parts:
        if part.repetitions:
            yield from _times(part.of, times * Fraction(part.repetitions))
