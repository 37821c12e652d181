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
from energy_data.nodes.limit import LimitSpec
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
    """A function of each item."""

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
            map_fn: The function; it must depend on the item alone. It may raise SkipSample, and may
                be a generator function, which gives any number of items for one.
            stateless_map_fn: Accepted and ignored: it must always be.
            map_fn_config: Accepted and ignored: states do not contain functions.
            failure_tolerance: Failures in a row after which the run stops; 0: never.
            worker_config: That of the dataset, which is the default.
        """
        policy = on_failure(dataset.worker_config, failure_tolerance)
        spec = mapped(tree_of(dataset), map_fn, policy)
        super().__init__(spec, [dataset], worker_config)


class IterMapDataset(BaseWrapperDataset[T], Generic[T]):
    """A function of the stream of items, called for each item with an iterator over it alone."""

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
            iter_map_fn: The function. It gives any number of items for one, and keeps nothing from
                one item to the next.
            len_map_fn: Accepted and ignored.
            stateless_iter_fn: Say so: True. A function that keeps items from one to the next could
                not be saved; write a node, or pack or group with a task encoder.
            iter_map_fn_config: Accepted and ignored.
            worker_config: That of the dataset, which is the default.
        """
        if not stateless_iter_fn:
            raise SpecError(
                "IterMapDataset: a function that keeps items from one to the next cannot be saved "
                "and restored. If it does not, pass stateless_iter_fn=True; if it does, pack or "
                "group with a task encoder."
            )
        policy = on_failure(dataset.worker_config)
        spec = mapped(tree_of(dataset), partial(_each, iter_map_fn), policy)
        super().__init__(spec, [dataset], worker_config)


def _each(iter_map_fn: Callable[[Iterator[Any]], Iterator[Any]], item: Any) -> Iterator[Any]:
    yield from iter_map_fn(iter([item]))


class FilterDataset(BaseWrapperDataset[T], Generic[T]):
    """The items that pass a test."""

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
            filter_fn: The test; it must depend on the item alone.
            filter_fn_config: Accepted and ignored.
            worker_config: That of the dataset, which is the default.
        """
        super().__init__(
            FilterSpec(of=tree_of(dataset), predicate=filter_fn), [dataset], worker_config
        )


class ShuffleBufferDataset(BaseWrapperDataset[T], Generic[T]):
    """Samples mixed with `size` neighbours. There is no buffer: the order itself is a shuffled one.

    It must stand over samples as they are read (blended, cooked, filtered, mapped one to one);
    elsewhere it is an error.
    """

    def __init__(
        self, dataset: SavableDataset[T], size: int, *, worker_config: WorkerConfig | None = None
    ) -> None:
        """Shuffle a dataset; `worker_config` is that of the dataset, which is the default."""
        spec = tree_of(dataset)
        references = references_of(spec)
        if references is None:
            raise SpecError(
                "ShuffleBufferDataset: it must stand over samples as they are read, for the order "
                "is set there. Put it below what blends, batches, packs or gives several items for "
                "one, or use the shuffle_buffer_size of get_train_dataset."
            )
        shuffle = evolve(references.shuffle, buffer_size=size)
        super().__init__(with_references(spec, shuffle=shuffle), [dataset], worker_config)


class GcDataset(BaseWrapperDataset[T], Generic[T]):
    """The dataset as it is: garbage is collected without help, as workers hold no large objects."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        *,
        worker_config: WorkerConfig | None = None,
        every_n_iter: int = 10,
        freeze: bool = True,
    ) -> None:
        """Wrap a dataset; the other arguments are taken for Energon's sake."""
        super().__init__(tree_of(dataset), [dataset], worker_config)


class LogSampleDataset(BaseWrapperDataset[T], Generic[T]):
    """The dataset, with the keys of each item logged where it is made."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        mode: Literal["train", "val"],
        worker_config: WorkerConfig | None = None,
        get_keys_fn: Callable[[T], list[str] | None] | None = None,
    ) -> None:
        """Log a dataset.

        Args:
            dataset: What is logged: level INFO of the logger `energy_data.energon.mapping`.
            mode: Stands in each line.
            worker_config: That of the dataset, which is the default.
            get_keys_fn: The keys of an item, None to log nothing; by default its `__key__`.
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
    """Epochs of a length of one's own; the next goes on where the last ended."""

    def __init__(
        self,
        dataset: SavableDataset[T],
        length: int | None = None,
        worker_config: WorkerConfig | None = None,
        *,
        num_epochs: int | None = None,
    ) -> None:
        """Set the length of an epoch, by one of two.

        Args:
            dataset: What is iterated.
            length: Items of this rank.
            worker_config: That of the dataset, which is the default.
            num_epochs: As many items as so many passes over the data have.
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
    """A dataset played several times, or for ever."""

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
            dataset: What is repeated; training data that is repeated already stays as it is.
            repeats: How many times, a fraction for samples (each sample then comes floor or ceil
                of it times); None: for ever.
            restart: True: iterated again, it begins again. False is not possible.
            worker_config: That of the dataset, which is the default.
        """
        if not restart:
            raise SpecError(
                "RepeatDataset: restart=False is not possible: an iteration after the last would "
                "have nothing. Iterate once only."
            )
        if repeats is not None and not 0 < repeats < float("inf"):
            raise SpecError(f"RepeatDataset: repeats must be > 0 and finite, got {repeats}.")
        super().__init__(repeated(tree_of(dataset), repeats), [dataset], worker_config)


class LimitDataset(BaseWrapperDataset[T], Generic[T]):
    """The first items of a dataset; each iteration begins anew."""

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
            reset_after_epoch: Taken for Energon's sake; the dataset begins anew in any case, as it
                does there.
            worker_config: That of the dataset, which is the default.
        """
        spec = LimitSpec(of=tree_of(dataset), length=length * dataset.worker_config.world_size)
        super().__init__(spec, [dataset], worker_config)


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
