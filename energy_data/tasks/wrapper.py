"""Wrapping datasets: a wrapper puts a node over the tree of a dataset.

Nothing is read, and no position is kept, before a loader iterates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from energy_data.core.context import WorkerConfig
from energy_data.core.spec import Spec
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.run import Run
from energy_data.nodes.epochize import EpochizeSpec

T = TypeVar("T")


class BaseWrapperDataset(SavableDataset[T], Generic[T]):
    """A dataset made of others."""

    def __init__(
        self,
        spec: Spec,
        over: Sequence[Run[Any]],
        worker_config: WorkerConfig | None,
        *,
        virtual_epoch_length: int = 0,
    ) -> None:
        first = over[0]
        _check_same_run(over, worker_config, type(self).__name__)
        super().__init__(
            spec=spec,
            worker_config=worker_config or first.worker_config,
            seed=first.seed,
            from_start=all(dataset.from_start for dataset in over),
            even_batches=first.even_batches,
            virtual_epoch_length=virtual_epoch_length,
        )


def tree_of(dataset: Run[Any]) -> Spec:
    """Return the tree of a dataset as others have it: the end of its epochs is a node."""
    length = dataset.virtual_epoch_length * dataset.worker_config.world_size
    return EpochizeSpec(of=dataset.spec, length=length) if length else dataset.spec


def dataset_of(given: Any, where: str) -> Run[Any]:
    """Return a dataset, or the samples of a loaded one. SpecError for anything else."""
    dataset = given.as_dataset() if hasattr(given, "as_dataset") else given
    if not isinstance(dataset, Run):
        raise SpecError(
            f"{where}: it must be a dataset of energy_data, got a {type(given).__name__}. Take "
            f"what get_train_dataset, get_val_dataset or a wrapper returns."
        )
    return dataset


def pairs_of(given: Sequence[Any], name: str) -> list[tuple[Run[Any], float]]:
    """Return (dataset, weight) pairs, given one by one or all in one sequence.

    A LoadedDataset counts as a pair. SpecError for anything else.
    """
    if len(given) == 1 and _is_sequence_of_pairs(given[0]):
        given = list(given[0])
    pairs = []
    for number, pair in enumerate(given):
        try:
            dataset, weight = pair
        except (TypeError, ValueError):
            raise SpecError(
                f"{name}: argument {number} must be a pair (dataset, weight), got {pair!r}."
            ) from None
        dataset = dataset_of(dataset, f"{name}: argument {number}")
        pairs.append((dataset, 1.0 if weight is None else float(weight)))
    if not pairs:
        raise SpecError(f"{name}: it has no datasets. Give at least one pair (dataset, weight).")
    return pairs


def _is_sequence_of_pairs(given: Any) -> bool:
    if not isinstance(given, list | tuple) or not given:
        return False
    return not isinstance(given[0], Run) and isinstance(given[0], Iterable)


def _check_same_run(
    over: Sequence[Run[Any]], worker_config: WorkerConfig | None, name: str
) -> None:
    for dataset in over:
        if worker_config is not None and dataset.worker_config != worker_config:
            raise SpecError(
                f"{name}: its worker_config is {worker_config}, that of a dataset in it is "
                f"{dataset.worker_config}. Give all the same."
            )
        ours, theirs = (
            (one.worker_config, one.seed, one.even_batches) for one in (over[0], dataset)
        )
        if ours != theirs:
            raise SpecError(
                f"{name}: its datasets are of different runs, found {ours} and {theirs}. Give all "
                f"the same worker_config."
            )
