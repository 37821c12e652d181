"""The part of a run that a process executes: its rank, its workers, and how errors are handled."""

from __future__ import annotations

import os
from math import ceil
from typing import Any

from attrs import Factory, field, frozen
from torch import distributed

from energy_data.core.context import LANES_PER_RANK, SEEDS
from energy_data.core.recipe import MAX_COUNT, check_whole
from energy_data.core.user_call import ErrorHandler, ErrorPolicy, log_exception, reraise_exception
from energy_data.errors import SpecError

_LIMITS = (
    ("rank", 0, MAX_COUNT),
    ("world_size", 1, MAX_COUNT),
    ("num_workers", 0, 2**16),
    ("lanes", 1, 2**20),
    ("seed_offset", *SEEDS),
)


@frozen
class WorkerConfig:
    """The part of a run that this process executes, and how the run handles errors.

    A run has `lanes` lanes on any hardware; rank r of R hosts the lanes = r (mod R). `lanes`
    is fixed for the life of a run and stored in its state. The default is 16 per rank, so set it
    (or restore a state) if the number of ranks may change.

    `rank` and `world_size` default to those of this process: in `data_parallel_group` if
    torch.distributed is initialized, else RANK and WORLD_SIZE, which launchers such as torchrun
    set, else 0 of 1. Ranks that need the same batches, as tensor-parallel peers do, pass both.
    """

    data_parallel_group: distributed.ProcessGroup | None = field(
        default=None, kw_only=True, eq=False, repr=False
    )
    rank: int = field(default=Factory(lambda self: _launched(self.data_parallel_group)[0], True))
    world_size: int = field(
        default=Factory(lambda self: _launched(self.data_parallel_group)[1], True)
    )
    num_workers: int = 0
    seed_offset: int = field(default=0, kw_only=True)  # the seed of the run, unless one is given
    worker_debug_path: str | None = field(default=None, kw_only=True)  # accepted and ignored
    worker_log_level: int = field(default=0, kw_only=True)  # 1: log the keys of each batch
    # Called with the errors of bad samples and of the functions of a task encoder.
    global_error_handler: ErrorHandler = field(
        default=log_exception, kw_only=True, eq=False, repr=False
    )
    # Accepted and ignored: a sample that cannot be read again after a restore is always an error.
    restore_error_handler: ErrorHandler = field(
        default=reraise_exception, kw_only=True, eq=False, repr=False
    )
    lanes: int | None = field(default=None, kw_only=True)
    logical_workers: int | None = field(default=None, kw_only=True, eq=False, repr=False)  # refused

    def __attrs_post_init__(self) -> None:
        if self.logical_workers is not None:
            raise SpecError(
                "WorkerConfig: logical_workers are the lanes of a run, and the workers of a rank "
                "share them. Pass lanes=, a multiple of world_size."
            )
        for name, least, most in _LIMITS:
            if (value := getattr(self, name)) is not None:
                check_whole(f"WorkerConfig: {name}", value, least, most)
        if not 0 <= self.rank < self.world_size:
            raise SpecError(
                f"WorkerConfig: rank must be in [0, world_size), got rank {self.rank} of "
                f"world_size {self.world_size}. Omit both: they default to those of the process "
                f"group or of the launcher."
            )
        if self.data_parallel_group is not None:
            rank, size = _launched(self.data_parallel_group)
            if (self.rank, self.world_size) != (rank, size):
                raise SpecError(
                    f"WorkerConfig: rank {self.rank} of world_size {self.world_size} is not the "
                    f"rank of this process in data_parallel_group, which is {rank} of {size}. "
                    f"Omit rank and world_size."
                )
        if self.lanes is not None and self.lanes % self.world_size:
            raise SpecError(
                f"WorkerConfig: lanes must be a multiple of world_size ({self.world_size}), got "
                f"{self.lanes}. Nearest good values: {_nearest(self.lanes, self.world_size)}."
            )

    @property
    def num_lanes(self) -> int:
        """The number of lanes of the run."""
        return LANES_PER_RANK * self.world_size if self.lanes is None else self.lanes

    @staticmethod
    def default_worker_config(
        num_workers: int = 4, data_parallel_group: distributed.ProcessGroup | None = None
    ) -> WorkerConfig:
        """Return the part of this process, with its rank in the group or of the launcher."""
        return WorkerConfig(num_workers=num_workers, data_parallel_group=data_parallel_group)

    def global_rank(self) -> int:
        """Return the rank of this process among all ranks, not only its data-parallel group."""
        if self.data_parallel_group is None:
            return self.rank
        return distributed.get_global_rank(self.data_parallel_group, self.rank)

    def has_group(self) -> bool:
        """Return whether the ranks of the run are those of a process group, so they can talk."""
        if not (distributed.is_available() and distributed.is_initialized()):
            return False
        return distributed.get_world_size(self.data_parallel_group) == self.world_size

    def error_policy(self, tolerance: int | None) -> ErrorPolicy:
        """Return the policy for errors of a function of the user.

        tolerance: failures in a row after which the run stops; None or 0: never.
        """
        return ErrorPolicy(handler=self.global_error_handler, tolerance=tolerance or 0)

    def config(self) -> dict[str, Any]:
        """Return the facts of this process: rank, world size, workers, and size of the group."""
        group = self.data_parallel_group
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "num_workers": self.num_workers,
            "data_parallel_group": None if group is None else group.size(),
        }

    def should_log(self, level: int) -> bool:
        """Return whether messages of a level are logged."""
        return level <= self.worker_log_level


def _launched(group: distributed.ProcessGroup | None) -> tuple[int, int]:
    """Return rank and world size of this process: in the group, or as the launcher set them."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(group), distributed.get_world_size(group)
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _nearest(lanes: int, world_size: int) -> str:
    below, above = lanes // world_size * world_size, ceil(lanes / world_size) * world_size
    return " or ".join(str(n) for n in sorted({below, above}) if n > 0)
