"""Mixtures divided into loaded datasets, one per leaf: the input of `build_train_datasets`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, Generic, TypeVar

from attrs import frozen

from energy_data.core.context import WorkerConfig
from energy_data.core.user_call import reraise_exception
from energy_data.data.files.stores import FileStore
from energy_data.data.registry import open_store
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec
from energy_data.nodes.leaf import Leaf, Shuffle, leaf_entries
from energy_data.nodes.passes import ConcatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.order.schedule import Clock
from energy_data.tasks.cooking import is_crude, subflavors_of
from energy_data.tasks.trees import with_references

T = TypeVar("T")


class DatasetBlendMode(Enum):
    """Whether loaded datasets have weights or repetitions."""

    NONE = "none"
    DATASET_WEIGHT = "dataset_weight"
    SAMPLE_REPETITIONS = "sample_repetitions"


@frozen(kw_only=True)
class Reading:
    """How the samples of an order tree are read."""

    worker_config: WorkerConfig
    seed: int
    shuffle: Shuffle
    deal: int = 0  # neighbours dealt to a lane at a time in a finite pass; 0: without end
    clock: Clock | None = None  # of weights that change over the run
    keys: bool = True  # samples get `__restore_key__`, which identifies them

    def __call__(self, order: OrderSpec) -> SavableDataset[Any]:
        """Return the samples of an order tree as a dataset."""
        handler = self.worker_config.global_error_handler
        references = ReferencesSpec(
            of=order, shuffle=self.shuffle, deal=self.deal, clock=self.clock
        )
        return SavableDataset(
            spec=ReadSpec(
                of=references,
                on_error="raise" if handler is reraise_exception else "skip",
                handler=handler,
                keys=self.keys,
            ),
            worker_config=self.worker_config,
            seed=self.seed,
            from_start=bool(self.deal),
        )


@frozen(kw_only=True)
class BaseCoreDatasetFactory(Generic[T]):
    """One dataset of a mixture, before cooking and encoding."""

    order: OrderSpec  # the order its samples are read in
    read: Callable[[OrderSpec], SavableDataset[T]]

    @property
    def samples(self) -> SavableDataset[T]:
        """The samples: without end in training, once in validation."""
        return self.read(self.order)

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves that are read: one, unless this is a part that is not a plain blend."""
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
        """The subflavors that the metadataset gives to the samples."""
        return subflavors_of(self.leaves[0])

    def build(self, worker_rotation_offset: int = 0) -> SavableDataset[T]:
        """Return one pass over the samples. The argument is ignored."""
        samples = self.samples
        return samples.replace(spec=with_references(samples.spec, deal=1))

    def as_file_store(self) -> FileStore[bytes]:
        """Return the files of the dataset, by key."""
        return open_store(self.paths[0])

    def __len__(self) -> int:
        """Return how many samples one pass has, over all ranks."""
        return ceil(self.order.size)


@frozen(kw_only=True)
class LoadedDataset(Generic[T]):
    """A dataset of a mixture and how much of it is drawn. It unpacks as (dataset, weight)."""

    dataset: BaseCoreDatasetFactory[T]
    weight: float | None = None
    repetitions: float | Fraction | None = None
    aux: Mapping[str, FileStore[Any]] | None = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the dataset and its weight, the form of older versions of Energon."""
        yield self.as_dataset()
        yield 1.0 if self.weight is None else self.weight

    def as_dataset(self) -> SavableDataset[T]:
        """Return the samples: without end in training, once in validation."""
        return self.dataset.samples


class LoadedDatasets(list[LoadedDataset[Any]]):
    """The loaded datasets of a mixture, with the mixture as the metadataset nests it."""

    def __init__(self, order: OrderSpec, read: Callable[[OrderSpec], SavableDataset[Any]]) -> None:
        self.order, self.read = order, read
        self.blend_mode, parts = divided(order)
        weighted = self.blend_mode is DatasetBlendMode.DATASET_WEIGHT
        repeated = self.blend_mode is DatasetBlendMode.SAMPLE_REPETITIONS
        super().__init__(
            LoadedDataset(
                dataset=BaseCoreDatasetFactory(order=of, read=read),
                weight=float(amount) if weighted else None,
                repetitions=amount if repeated else None,
                aux=next(leaf for _, leaf in leaf_entries(of)).aux or None,
            )
            for of, amount in parts
        )
        self._as_made: Sequence[LoadedDataset[Any]] = tuple(self)

    @property
    def whole(self) -> SavableDataset[Any]:
        """The samples of the whole mixture."""
        return self.read(self.order)

    @property
    def as_made(self) -> bool:
        """Whether the list is unchanged."""
        return tuple(self) == self._as_made


def divided(order: OrderSpec) -> tuple[DatasetBlendMode, list[tuple[OrderSpec, Fraction]]]:
    """Return the datasets of a mixture with their weights or repetitions, nested ones multiplied.

    Only blends with constant weights, blends by repetitions and concatenations are divided.
    """
    if isinstance(order, BlendSpec) and order.weights:
        return DatasetBlendMode.DATASET_WEIGHT, list(_weighted(order, Fraction(1)))
    if isinstance(order, BlendEpochizedSpec):
        return DatasetBlendMode.SAMPLE_REPETITIONS, list(_times(order, Fraction(1)))
    if isinstance(order, ConcatSpec):
        parts = [part for of in order.parts for part in divided(of)[1]]  # type: ignore[arg-type]  # below reading, all are orders
        return DatasetBlendMode.NONE, [(of, Fraction(1)) for of, _ in parts]
    return DatasetBlendMode.NONE, [(order, Fraction(1))]


def _weighted(order: OrderSpec, weight: Fraction) -> Iterator[tuple[OrderSpec, Fraction]]:
    if not isinstance(order, BlendSpec) or not order.weights:
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
