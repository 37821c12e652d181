"""Energon's loaders."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from energy_data.core.context import WorkerConfig
from energy_data.data.files.cache import CachePool
from energy_data.energon.dataset import changed
from energy_data.errors import SpecError
from energy_data.loading.hosts import host_of
from energy_data.loading.loader import Loader
from energy_data.loading.run import Run
from energy_data.loading.workers.pool import PoolOptions, StartMethod

T = TypeVar("T")


class SavableDataLoader(Loader[T], Generic[T]):
    """Gives the batches of one rank; saves and restores its place.

    What Energon needs to save (checkpoints in the workers, a garbage collection every so often) is
    not needed here: those arguments are taken, and change nothing.
    """

    def __init__(
        self,
        dataset: Run[T],
        *,
        checkpoint_every_sec: float = 60,
        checkpoint_every_min_n_samples: int | None = None,
        n_checkpoints: int | None = None,
        gc_collect_every_n_steps: int = 10,
        gc_freeze_at_start: bool = True,
        prefetch_factor: int = 2,
        cache_pool: CachePool | None = None,
        watchdog_timeout_seconds: float | None = 60,
        watchdog_initial_timeout_seconds: float | None = None,
        fail_on_timeout: bool = False,
        start_method: StartMethod = "fork",
    ) -> None:
        """Make a loader; processes start with the first batch.

        Args:
            dataset: What is read; its worker config says by how many processes.
            checkpoint_every_sec: Taken for Energon's sake.
            checkpoint_every_min_n_samples: Taken for Energon's sake.
            n_checkpoints: Taken for Energon's sake.
            gc_collect_every_n_steps: Taken for Energon's sake.
            gc_freeze_at_start: Taken for Energon's sake.
            prefetch_factor: Batches each worker is ahead, at most.
            cache_pool: Where task encoders get files that they asked for ahead.
            watchdog_timeout_seconds: A worker silent for so long is reported with its sample and
                stack; None: never.
            watchdog_initial_timeout_seconds: Taken for Energon's sake; the first batch has ten
                times `watchdog_timeout_seconds`.
            fail_on_timeout: Raise then. Otherwise the worker is replaced, and the stream goes on
                as it was.
            start_method: Ours. As in Energon workers are forked, so that scripts need no
                `if __name__ == "__main__":`. With threads or CUDA in the trainer, "forkserver" is
                safer. "thread" needs fail_on_timeout: SpecError without.
        """
        if start_method == "thread" and watchdog_timeout_seconds and not fail_on_timeout:
            raise SpecError(
                "fail_on_timeout: must be True with start_method='thread', got False: a thread "
                "that hangs cannot be replaced. Or pass watchdog_timeout_seconds=None."
            )
        run = dataset if cache_pool is None else changed(dataset, cache=cache_pool)
        options = PoolOptions(
            prefetch=prefetch_factor,
            start_method=start_method,
            timeout_s=watchdog_timeout_seconds,
            on_timeout="raise" if fail_on_timeout else "restart",
        )
        super().__init__(run, host_of(run, options))

    def save_state(self, dst_rank: int) -> dict[str, Any] | None:
        """Return the place of the whole run on rank `dst_rank`; an old name."""
        return self.save_state_global(dst_rank)

    def restore_state(self, state: Any) -> None:
        """Go to a place of the whole run; an old name."""
        self.restore_state_global(state)

    def can_restore_sample(self) -> bool:
        """Return whether single samples can be made again by key: not by a loader."""
        return False

    def config(self) -> Any:
        """Return what decides the stream, as plain data."""
        return self.dataset.spec.describe()

    def __len__(self) -> int:
        """Return how many batches this rank has of one pass over the data."""
        return len(self.dataset)  # type: ignore[arg-type]  # datasets of this package have one


def get_savable_loader(
    dataset: Run[T],
    *,
    worker_config: WorkerConfig | None = None,
    checkpoint_every_sec: float = 60,
    checkpoint_every_min_n_samples: int | None = None,
    n_checkpoints: int | None = None,
    gc_collect_every_n_steps: int = 10,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    watchdog_timeout_seconds: float | None = 60,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
) -> SavableDataLoader[T]:
    """Return a loader of a dataset; the arguments are those of `SavableDataLoader`.

    worker_config: that of the dataset; SpecError if it is another.
    """
    _check_worker_config(dataset, worker_config)
    return SavableDataLoader(
        dataset,
        prefetch_factor=prefetch_factor,
        cache_pool=cache_pool,
        watchdog_timeout_seconds=watchdog_timeout_seconds,
        fail_on_timeout=fail_on_timeout,
    )


def get_loader(
    dataset: Run[T],
    *,
    worker_config: WorkerConfig | None = None,
    prefetch_factor: int = 2,
    cache_pool: CachePool | None = None,
    watchdog_timeout_seconds: float | None = 60,
    watchdog_initial_timeout_seconds: float | None = None,
    fail_on_timeout: bool = False,
) -> SavableDataLoader[T]:
    """Return a loader of a dataset; it can be saved like any other."""
    return get_savable_loader(
        dataset,
        worker_config=worker_config,
        prefetch_factor=prefetch_factor,
        cache_pool=cache_pool,
        watchdog_timeout_seconds=watchdog_timeout_seconds,
        watchdog_initial_timeout_seconds=watchdog_initial_timeout_seconds,
        fail_on_timeout=fail_on_timeout,
    )


def _check_worker_config(dataset: Run[Any], worker_config: WorkerConfig | None) -> None:
    if worker_config is not None and worker_config != dataset.worker_config:
        raise SpecError(
            f"get_loader: its worker_config is {worker_config}, that of the dataset is "
            f"{dataset.worker_config}. Leave it out: the dataset has it."
        )
