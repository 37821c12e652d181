"""A loader for trainers that keep the state of one rank: Lightning and Accelerate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from energy_data.loading.savable_loader import SavableDataLoader

T_batch = TypeVar("T_batch")


class RunLoader(Generic[T_batch]):
    """A loader whose state is that of the whole run, on every rank.

    Trainers such as Lightning and Accelerate save what the first rank returns, and give it to all
    ranks that resume. With the state of the run, any number of ranks continues exactly.

    `state_dict` is a collective over the data-parallel group: all ranks call it, as these trainers
    do at each checkpoint.
    """

    def __init__(self, loader: SavableDataLoader[T_batch]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[T_batch]:
        """Iterate from the position of the loader."""
        return iter(self.loader)

    def __len__(self) -> int:
        """Return the batches of this rank in an epoch. Without it, Lightning reads one ahead."""
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the run."""
        return self.loader.state_dict(scope="run")

    def load_state_dict(self, state: Any) -> None:
        """Move to a position of the run. An empty state before the first batch moves nothing."""
        self.loader.load_state_dict(state)
