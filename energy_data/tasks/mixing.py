"""Datasets made of several: blended, one after another, mixed within batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from energy_data.core.context import WorkerConfig
from energy_data.errors import SpecError
from energy_data.tasks.batching import batch_list
from energy_data.tasks.trees import batched, blended, concatenated, on_failure
from energy_data.tasks.wrapper import BaseWrapperDataset, dataset_of, pairs_of, tree_of

T = TypeVar("T")


class BlendDataset(BaseWrapperDataset[T], Generic[T]):
    """Items of several datasets, each in proportion to its weight, exact in every lane.

    A dataset that ends leaves its share to the others; the blend ends with the last.
    """

    def __init__(self, *dataset_weights: Any, worker_config: WorkerConfig | None = None) -> None:
        """Blend datasets.

        Args:
            dataset_weights: Pairs (dataset, weight), one by one or in one sequence; weights are
                relative.
            worker_config: That of the datasets, which is the default.
        """
        pairs = pairs_of(dataset_weights, "BlendDataset")
        datasets = [dataset for dataset, _ in pairs]
        spec = blended([tree_of(dataset) for dataset in datasets], [weight for _, weight in pairs])
        super().__init__(spec, datasets, worker_config)


class ConcatDataset(BaseWrapperDataset[T], Generic[T]):
    """The items of several datasets that end, one dataset after another in each lane."""

    def __init__(self, *datasets: Any, worker_config: WorkerConfig | None = None) -> None:
        """Concatenate datasets; `worker_config` is that of the datasets, which is the default."""
        if not datasets:
            raise SpecError("ConcatDataset: it has no datasets. Give at least one.")
        each = [dataset_of(one, "ConcatDataset") for one in datasets]
        super().__init__(concatenated([tree_of(one) for one in each]), each, worker_config)


class MixBatchDataset(BaseWrapperDataset[T], Generic[T]):
    """Batches with items of several datasets, in proportion to their weights.

    The datasets should have batches of one sample; batches of more are mixed as a whole.
    """

    def __init__(
        self,
        *dataset_weights: Any,
        batch_size: int,
        batch_mix_fn: Callable[[list[Any]], Any] = batch_list,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Mix datasets.

        Args:
            dataset_weights: Pairs (dataset, weight), one by one or in one sequence; weights are
                relative.
            batch_size: Items per batch.
            batch_mix_fn: Makes one batch of a list of items; by default the list. It may raise
                SkipSample.
            worker_config: That of the datasets, which is the default.
        """
        pairs = pairs_of(dataset_weights, "MixBatchDataset")
        datasets = [dataset for dataset, _ in pairs]
        blend = blended([tree_of(dataset) for dataset in datasets], [weight for _, weight in pairs])
        spec = batched(blend, batch_size, batch_mix_fn, on_failure(datasets[0].worker_config))
        super().__init__(spec, datasets, worker_config)
