"""Datasets made of others: mapped, filtered, limited, batched, grouped, packed.

The names and parameters are Energon's. Of all of them:

worker_config: Must be that of the datasets, which is the default.
failure_tolerance: Failures of the function in a row after which the run stops; 0: never.
Functions must depend on their arguments alone. They may raise SkipSample to skip the item. Where
the docstring says so, a generator function may yield any number of items for one. States do not
contain functions: arguments such as `map_fn_config` and `stateless_map_fn` are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from energy_data.core.spec import Spec
from energy_data.core.user_call import ErrorPolicy, gives_parts
from energy_data.core.worker_config import WorkerConfig
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset, items_per_pass
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.encode import EncodeSpec, FlatMapSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.group import GroupSpec
from energy_data.nodes.passes import LimitSpec
from energy_data.nodes.select_pack import PackFailures, SelectPackSpec
from energy_data.tasks.collate import batch_list
from energy_data.tasks.functions import DEFAULT_TOLERANCE
from energy_data.tasks.orders import (
    BaseWrapperDataset,
    BlendDataset,
    references_of,
    tree_of,
    uncounted,
    with_references,
)

log = logging.getLogger(__name__)

T = TypeVar("T")
Config = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None


class MapDataset(BaseWrapperDataset[T], Generic[T]):
    """Applies a function to each item; it may be a generator."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        map_fn: Callable[[Any], T | Iterator[T]],
        *,
        stateless_map_fn: bool = False,
        map_fn_config: Config = None,
        failure_tolerance: int = DEFAULT_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Map a dataset."""
        of, policy = tree_of(dataset), dataset.worker_config.error_policy(failure_tolerance)
        super().__init__(mapped(of, map_fn, policy), [dataset], worker_config)


class IterMapDataset(MapDataset[T], Generic[T]):
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
        """Map a stream. SpecError without `stateless_iter_fn=True`: no state can be saved."""
        if not stateless_iter_fn:
            raise SpecError(
                "IterMapDataset: a function that keeps state between items cannot be saved and "
                "restored. If it keeps none, pass stateless_iter_fn=True; otherwise pack or group "
                "with a task encoder."
            )
        super().__init__(dataset, partial(_each, iter_map_fn), worker_config=worker_config)


def mapped(spec: Spec, function: Callable[[Any], Any], policy: ErrorPolicy) -> Spec:
    """Return a tree whose items are mapped by a function of the user, possibly a generator."""
    if gives_parts(function):
        if spec.replay_blocker():
            return FlatMapSpec(of=spec, function=function, on_failure=policy)
        spec = uncounted(spec)
    return EncodeSpec(of=spec, encode=function, on_failure=policy)


def _each(iter_map_fn: Callable[[Iterator[Any]], Iterator[Any]], item: Any) -> Iterator[Any]:
    yield from iter_map_fn(iter([item]))


class LogSampleDataset(MapDataset[T], Generic[T]):
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
        function = partial(_logged, mode, get_keys_fn or _keys)
        super().__init__(dataset, function, worker_config=worker_config)


def _logged(mode: str, get_keys_fn: Callable[[Any], list[str] | None], item: Any) -> Any:
    if (keys := get_keys_fn(item)) is not None:
        log.info("%s: %s", mode, keys)
    return item


def _keys(item: Any) -> list[str] | None:
    keys = item.get("__key__") if isinstance(item, dict) else getattr(item, "__key__", None)
    return [keys] if isinstance(keys, str) else keys


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
        """Filter a dataset."""
        spec = FilterSpec(of=tree_of(dataset), predicate=filter_fn)
        super().__init__(spec, [dataset], worker_config)


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
        """Set the length of an epoch: `length` items of this rank, or `num_epochs` passes."""
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
        """Limit a dataset to `length` items of this rank. `reset_after_epoch` is ignored."""
        spec = LimitSpec(of=tree_of(dataset), length=length * dataset.worker_config.world_size)
        super().__init__(spec, [dataset], worker_config)


class BatchDataset(BaseWrapperDataset[T], Generic[T]):
    """Batches of `batch_size` samples; the last of a pass may be short.

    A pass over samples is dealt to the lanes batch by batch, so at most one batch is short.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        batch_size: int,
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        batcher_config: Config = None,
        drop_last: bool = False,
        failure_tolerance: int = DEFAULT_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Batch a dataset. `batcher` makes a batch of a list of samples; it may be a generator.

        drop_last: drop the short batch.
        """
        of, policy = tree_of(dataset), dataset.worker_config.error_policy(failure_tolerance)
        references = references_of(of)
        is_finite = references is not None and bool(references.deal)
        if is_finite:
            of = with_references(of, deal=batch_size, drop_last=drop_last)
        elif (below := references_of(of, counted=False)) is not None and not below.deal:
            of = with_references(of, batch=batch_size)  # most generators yield one of each sample
        several = gives_parts(batcher)
        spec: Spec = BatchSpec(
            of=of,
            batch_size=batch_size,
            collate=batch_list if several else batcher,
            drop_last=drop_last,
            aligned=is_finite,
            on_failure=policy,
        )
        if several:
            spec = mapped(spec, batcher, policy)
        super().__init__(spec, [dataset], worker_config)


class MixBatchDataset(BatchDataset[T], Generic[T]):
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
        """Mix pairs (dataset, weight), given one by one or in one sequence.

        batch_mix_fn: makes one batch of a list of items; by default the list.
        """
        blend = BlendDataset[Any](*dataset_weights, worker_config=worker_config)
        super().__init__(blend, batch_size, batch_mix_fn)


class GroupBatchDataset(BaseWrapperDataset[T], Generic[T]):
    """Batches of samples with equal keys. States hold waiting samples as references."""

    def __init__(
        self,
        dataset: SavableDataset[Any],
        fixed_batch_size: int | None,
        sample_group_key: Callable[[Any], tuple[Hashable, int | None]],
        batcher: Callable[[list[Any]], Any],
        *,
        batcher_stateless: bool = False,
        batcher_config: Config = None,
        drop_last: bool = False,
        failure_tolerance: int = DEFAULT_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Group a dataset by the key that `sample_group_key` returns, with a batch size or None.

        fixed_batch_size: samples per batch; None: as `sample_group_key` returns. drop_last: drop
        the groups that are not full at the end of a pass.
        """
        spec = GroupSpec(
            of=uncounted(tree_of(dataset)),
            batch_size=fixed_batch_size,
            criterion=sample_group_key,
            collate=batcher,
            drop_last=drop_last,
            on_failure=dataset.worker_config.error_policy(failure_tolerance),
        )
        super().__init__(spec, [dataset], worker_config)


class PackingDataset(BaseWrapperDataset[T], Generic[T]):
    """Packs of samples that a function selects from a buffer.

    States hold the buffer as references: at most 32 bytes per sample.
    """

    def __init__(
        self,
        dataset: SavableDataset[Any],
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]]],
        final_packer: Callable[[list[Any]], Any],
        *,
        final_packer_stateless: bool = False,
        sample_encoder: Callable[[Any], Any] | None = None,
        sample_encoder_stateless: bool = False,
        packer_config: Config = None,
        pre_packer_failure_tolerance: int = DEFAULT_TOLERANCE,
        final_packer_failure_tolerance: int = DEFAULT_TOLERANCE,
        sample_encoder_failure_tolerance: int = DEFAULT_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        """Pack a dataset.

        `pre_packer` returns lists of the `buffer_size` samples that it is called with (fewer at the
        end of a pass). `sample_encoder` encodes each sample of a list, and `final_packer` makes one
        sample of the list; it may be a generator.
        """
        of, config = tree_of(dataset), dataset.worker_config
        policy = config.error_policy(final_packer_failure_tolerance)
        several = gives_parts(final_packer)
        spec: Spec = SelectPackSpec(
            of=uncounted(of),
            select=pre_packer,
            pack=batch_list if several else final_packer,
            encode=sample_encoder,
            buffer_size=buffer_size,
            on_failure=PackFailures(
                select=config.error_policy(pre_packer_failure_tolerance),
                encode=config.error_policy(sample_encoder_failure_tolerance),
                pack=policy,
            ),
        )
        if several:
            spec = mapped(spec, final_packer, policy)
        super().__init__(spec, [dataset], worker_config)
