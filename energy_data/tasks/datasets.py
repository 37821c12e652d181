"""Datasets made of others: mapped, filtered, shuffled, repeated, limited, blended, mixed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from attrs import evolve

from energy_data.core.context import WorkerConfig
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset, items_per_pass
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.passes import LimitSpec
from energy_data.tasks.batching import batch_list
from energy_data.tasks.trees import (
    BaseWrapperDataset,
    Config,
    batched,
    blended,
    concatenated,
    dataset_of,
    mapped,
    on_failure,
    pairs_of,
    references_of,
    repeated,
    tree_of,
    with_references,
)

log = logging.getLogger(__name__)

T = TypeVar("T")


class MapDataset(BaseWrapperDataset[T], Generic[T]):
    """Applies a function to each item."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        map_fn: Callable[[Any], T | Iterator[T]],
        *,
        stateless_map_fn: bool = False,
        map_fn_config: Config = None,
        failure_tolerance: int = 100,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Map a dataset.

        Args:
            dataset: What is mapped.
            map_fn: The function; it must depend on the item alone. It may raise SkipSample. A
                generator function may yield any number of items for one.
            stateless_map_fn: Ignored: the function must be stateless in any case.
            map_fn_config: Ignored: states do not contain functions.
            failure_tolerance: Failures in a row after which the run stops; 0: never.
            worker_config: Must be that of the dataset, which is the default.
        """
        policy = on_failure(dataset.worker_config, failure_tolerance)
        spec = mapped(tree_of(dataset), map_fn, policy)
        super().__init__(spec, [dataset], worker_config)


class IterMapDataset(BaseWrapperDataset[T], Generic[T]):
    """Applies a function of iterators. It is called once per item, with an iterator of one."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        iter_map_fn: Callable[[Iterator[Any]], Iterator[T]],
        *,
        len_map_fn: Callable[[int], int] | None = None,
        stateless_iter_fn: bool = False,
        iter_map_fn_config: Config = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Map a stream.

        Args:
            dataset: What is mapped.
            iter_map_fn: The function. It yields any number of items for one, and must not keep
                state between items.
            len_map_fn: Ignored.
            stateless_iter_fn: Must be True. A function that keeps state between items cannot be
                saved; write a node, or pack or group with a task encoder.
            iter_map_fn_config: Ignored.
            worker_config: Must be that of the dataset, which is the default.
        """
        if not stateless_iter_fn:
            raise SpecError(
                "IterMapDataset: a function that keeps state between items cannot be saved and "
                "restored. If it keeps none, pass stateless_iter_fn=True; otherwise pack or group "
                "with a task encoder."
            )
        policy = on_failure(dataset.worker_config)
        spec = mapped(tree_of(dataset), partial(_each, iter_map_fn), policy)
        super().__init__(spec, [dataset], worker_config)


def _each(iter_map_fn: Callable[[Iterator[Any]], Iterator[Any]], item: Any) -> Iterator[Any]:
    yield from iter_map_fn(iter([item]))


class FilterDataset(BaseWrapperDataset[T], Generic[T]):
    """Keeps the items for which a function returns True."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        *,
        filter_fn: Callable[[T], bool],
        filter_fn_config: Config = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Filter a dataset.

        Args:
            dataset: What is filtered.
            filter_fn: The function; it must depend on the item alone.
            filter_fn_config: Ignored.
            worker_config: Must be that of the dataset, which is the default.
        """
        super().__init__(
            FilterSpec(of=tree_of(dataset), predicate=filter_fn), [dataset], worker_config
        )


class ShuffleBufferDataset(BaseWrapperDataset[T], Generic[T]):
    """Shuffles samples among `size` neighbours. There is no buffer: the order itself is shuffled.

    The dataset must yield samples as they are read, possibly blended, cooked, filtered or mapped
    one to one. SpecError otherwise.
    """

    def __init__(
        self, dataset: SavableDataset[T], size: int, *, worker_config: WorkerConfig | None = None
    ) -> None:
        """Shuffle a dataset; `worker_config` must be that of the dataset."""
        spec = tree_of(dataset)
        references = references_of(spec)
        if references is None:
            raise SpecError(
                "ShuffleBufferDataset: it must wrap samples as they are read, because it changes "
                "their order. Apply it before blending items, batching, packing or functions that "
                "yield several items, or use the shuffle_buffer_size of get_train_dataset."
            )
        shuffle = evolve(references.shuffle, buffer_size=size)
        super().__init__(with_references(spec, shuffle=shuffle), [dataset], worker_config)


class GcDataset(BaseWrapperDataset[T], Generic[T]):
    """The dataset, unchanged. Workers hold few objects, so they need no control of collection."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        *,
        worker_config: WorkerConfig | None = None,
        every_n_iter: int = 10,
        freeze: bool = True,
    ) -> None:
        """Wrap a dataset; the other arguments are ignored."""
        super().__init__(tree_of(dataset), [dataset], worker_config)


class LogSampleDataset(BaseWrapperDataset[T], Generic[T]):
    """Logs the keys of each item in the process that makes it."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        mode: Literal["train", "val"],
        worker_config: WorkerConfig | None = None,
        get_keys_fn: Callable[[T], list[str] | None] | None = None,
    ) -> None:
        """Log a dataset.

        Args:
            dataset: What is logged, with level INFO to the logger `energy_data.tasks.datasets`.
            mode: The first word of each line.
            worker_config: Must be that of the dataset, which is the default.
            get_keys_fn: Returns the keys of an item; None: nothing is logged. Default: `__key__`.
        """
        policy = on_failure(dataset.worker_config)
        spec = mapped(tree_of(dataset), partial(_logged, mode, get_keys_fn or _keys), policy)
        super().__init__(spec, [dataset], worker_config)


def _logged(mode: str, get_keys_fn: Callable[[Any], list[str] | None], item: Any) -> Any:
    if (keys := get_keys_fn(item)) is not None:
        log.info("%s: %s", mode, keys)
    return item


def _keys(item: Any) -> list[str] | None:
    keys = item.get("__key__") if isinstance(item, dict) else getattr(item, "__key__", None)
    return [keys] if isinstance(keys, str) else keys


class EpochizeDataset(BaseWrapperDataset[T], Generic[T]):
    """Epochs of a given length; the next one continues where the last one ended."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        length: int | None = None,
        worker_config: WorkerConfig | None = None,
        *,
        num_epochs: int | None = None,
    ) -> None:
        """Set the length of an epoch: either `length` or `num_epochs`.

        Args:
            dataset: What is iterated.
            length: Items of this rank.
            worker_config: Must be that of the dataset, which is the default.
            num_epochs: The length in passes over the data.
        """
        if (length is None) == (num_epochs is None):
            raise SpecError(
                f"EpochizeDataset: give one of length and num_epochs, got length={length}, "
                f"num_epochs={num_epochs}."
            )
        if length is None:
            assert num_epochs is not None
            ranks = dataset.worker_config.world_size
            length = -int(-items_per_pass(dataset.spec) * num_epochs // ranks)
        if length < 1:
            raise SpecError(f"EpochizeDataset: an epoch must have >= 1 items, got {length}.")
        super().__init__(tree_of(dataset), [dataset], worker_config, virtual_epoch_length=length)


class RepeatDataset(BaseWrapperDataset[T], Generic[T]):
    """Repeats a dataset a number of times, or without end."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        *,
        repeats: float | None = None,
        restart: bool = True,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Repeat a dataset.

        Args:
            dataset: What is repeated. A dataset without end is not changed.
            repeats: Number of passes; None: without end. A fraction is allowed for samples as
                they are read: each then occurs floor or ceil of it times.
            restart: Must be True: each iteration starts again.
            worker_config: Must be that of the dataset, which is the default.
        """
        if not restart:
            raise SpecError(
                "RepeatDataset: restart=False is not supported. Remove it, and iterate once only."
            )
        if repeats is not None and not 0 < repeats < float("inf"):
            raise SpecError(f"RepeatDataset: repeats must be > 0 and finite, got {repeats}.")
        super().__init__(repeated(tree_of(dataset), repeats), [dataset], worker_config)


class LimitDataset(BaseWrapperDataset[T], Generic[T]):
    """The first items of a dataset; each iteration starts at its beginning."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        length: int,
        *,
        reset_after_epoch: bool = False,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Limit a dataset.

        Args:
            dataset: What is limited.
            length: Items of this rank.
            reset_after_epoch: Ignored: the dataset restarts in any case.
            worker_config: Must be that of the dataset, which is the default.
        """
        spec = LimitSpec(of=tree_of(dataset), length=length * dataset.worker_config.world_size)
        super().__init__(spec, [dataset], worker_config)


class BlendDataset(BaseWrapperDataset[T], Generic[T]):
    """Items of several datasets, each in proportion to its weight, exact in every lane.

    When a dataset ends, the others continue. The blend ends with the last one.
    """

    def __init__(self, *dataset_weights: Any, worker_config: WorkerConfig | None = None) -> None:
        """Blend datasets.

        Args:
            dataset_weights: Pairs (dataset, weight), one by one or in one sequence; weights are
                relative.
            worker_config: Must be that of the datasets, which is the default.
        """
        pairs = pairs_of(dataset_weights, "BlendDataset")
        datasets = [dataset for dataset, _ in pairs]
        spec = blended([tree_of(dataset) for dataset in datasets], [weight for _, weight in pairs])
        super().__init__(spec, datasets, worker_config)


class ConcatDataset(BaseWrapperDataset[T], Generic[T]):
    """The items of several finite datasets, one dataset after another in each lane."""

    def __init__(self, *datasets: Any, worker_config: WorkerConfig | None = None) -> None:
        """Concatenate datasets; `worker_config` must be that of the datasets."""
        if not datasets:
            raise SpecError("ConcatDataset: it has no datasets. Give at least one.")
        each = [dataset_of(one, "ConcatDataset") for one in datasets]
        super().__init__(concatenated([tree_of(one) for one in each]), each, worker_config)


class MixBatchDataset(BaseWrapperDataset[T], Generic[T]):
    """Batches of items from several datasets, in proportion to their weights.

    The datasets should have batches of one sample; larger batches are mixed as single items.
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
            worker_config: Must be that of the datasets, which is the default.
        """
        pairs = pairs_of(dataset_weights, "MixBatchDataset")
        datasets = [dataset for dataset, _ in pairs]
        blend = blended([tree_of(dataset) for dataset in datasets], [weight for _, weight in pairs])
        spec = batched(blend, batch_size, batch_mix_fn, on_failure(datasets[0].worker_config))
        super().__init__(spec, datasets, worker_config)
