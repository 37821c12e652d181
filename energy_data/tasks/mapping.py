"""Datasets whose items are those of another, changed, tested, logged or shuffled."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from attrs import evolve

from energy_data.core.context import WorkerConfig
from energy_data.errors import SpecError
from energy_data.loading.run import Run
from energy_data.nodes.filter import FilterSpec
from energy_data.tasks.trees import mapped, on_failure, references_of, with_references
from energy_data.tasks.wrapper import BaseWrapperDataset, tree_of

log = logging.getLogger(__name__)

T = TypeVar("T")
Config = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None


class MapDataset(BaseWrapperDataset[T], Generic[T]):
    """A function of each item."""

    def __init__(
        self,
        dataset: Run[Any],
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
        dataset: Run[Any],
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
        dataset: Run[T],
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
        self, dataset: Run[T], size: int, *, worker_config: WorkerConfig | None = None
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
        dataset: Run[T],
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
        dataset: Run[T],
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
