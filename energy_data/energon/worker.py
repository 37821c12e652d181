"""Energon's `WorkerConfig`."""

from __future__ import annotations

from attrs import field, frozen
from torch import distributed

from energy_data.core.context import WorkerConfig as _WorkerConfig
from energy_data.core.context import default_worker_config
from energy_data.core.failures import ErrorHandler, log_exception, reraise_exception


@frozen(eq=False)
class WorkerConfig(_WorkerConfig):
    """Which part of a run this process is, and what the run does about errors.

    Its `lanes` are ours: give them if the number of ranks may change during the run (see
    `energy_data.WorkerConfig`).
    """

    seed_offset: int = field(default=0, kw_only=True)  # the seed of the run: order and randomness
    worker_debug_path: str | None = field(default=None, kw_only=True)  # taken, and not used
    worker_log_level: int = field(default=0, kw_only=True)  # 1: log the keys of each batch
    global_error_handler: ErrorHandler = field(default=log_exception, kw_only=True, repr=False)
    restore_error_handler: ErrorHandler = field(
        default=reraise_exception, kw_only=True, repr=False
    )  # taken, and not used: what cannot be made again is always an error

    @staticmethod
    def default_worker_config(
        num_workers: int = 4, data_parallel_group: distributed.ProcessGroup | None = None
    ) -> WorkerConfig:
        """Return the part this process has: from torch.distributed if initialised, else alone."""
        if data_parallel_group is None:
            found = default_worker_config(num_workers)
            return WorkerConfig(found.rank, found.world_size, num_workers)
        return WorkerConfig(
            distributed.get_rank(data_parallel_group),
            distributed.get_world_size(data_parallel_group),
            num_workers,
            data_parallel_group=data_parallel_group,
        )

    def global_rank(self) -> int:
        """Return the rank of this process among all, not only those of the data-parallel group."""
        if self.data_parallel_group is None:
            return self.rank
        return distributed.get_global_rank(self.data_parallel_group, self.rank)

    def should_log(self, level: int) -> bool:
        """Return whether what is of this level is logged."""
        return level <= self.worker_log_level

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same part of the same run."""
        if not isinstance(other, _WorkerConfig):
            return NotImplemented
        ours, theirs = (
            (c.rank, c.world_size, c.num_workers, c.num_lanes, getattr(c, "seed_offset", 0))
            for c in (self, other)
        )
        return ours == theirs

    def __hash__(self) -> int:
        return hash((self.rank, self.world_size, self.num_workers))
