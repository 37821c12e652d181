"""The position of a rank in the run."""

from __future__ import annotations

from typing import NamedTuple


class RunPosition(NamedTuple):
    """Micro-batch numbers, counted over all ranks."""

    epoch: int = 0  # number of finished iterations
    epoch_start: int = 0  # the first micro-batch of this epoch
    batch: int = 0  # the next micro-batch; each rank continues with its first one from here on
    phase: int = 0  # rounds of all ranks start at micro-batches g with g % ranks == phase

    def at(self, batch: int) -> RunPosition:
        """Return the position of another micro-batch. Faster than `_replace`; called per batch."""
        return RunPosition(self.epoch, self.epoch_start, batch, self.phase)

    def next_of(self, rank: int, ranks: int) -> int:
        """Return the number of a rank's next micro-batch."""
        return self.batch + (rank - self.batch) % ranks
