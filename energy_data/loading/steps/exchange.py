"""The exchange of counts between ranks: what each has drawn.

`gloo` has the exchange between processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from energy_data.errors import EnergyDataError

OTHER_RULES = "has another docs_per_step than rank 0, or is at another step"

Rows = npt.NDArray[np.int64]


class StepsError(EnergyDataError):
    """The ranks can no longer agree on steps: one failed, is missing, or is elsewhere."""


class RankRows(NamedTuple):
    """What a rank sends: a table [rows, columns], and its position."""

    rows: Rows
    place: tuple[int, int, int]  # generation (see `Exchange`), its first micro-batch, digest


class Exchange(ABC):
    """Sends the messages of this rank and receives those of all, one at a time.

    All ranks send equally many messages, of one shape. A rank that moves to another position calls
    `restart`. RankRowss on their way are then void, on the other ranks once they have restarted.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._failure: StepsError | None = None

    def send(self, rows: Rows, *, place: int, digest: int = 0) -> None:
        """Begin an exchange. Returns at once.

        place: number of the first micro-batch it is about. digest: of what all ranks must have in
        common.
        """
        if self._failure is None:
            self._post(RankRows(rows, (self.generation, place, digest)))

    def fail(self, problem: str, *, shape: tuple[int, ...]) -> None:
        """End the exchange: the other ranks raise StepsError with this problem.

        shape: of the rows that this rank would have sent.
        """
        if self._failure is None:
            self._failure = StepsError(f"docs_per_step: this rank has failed: {problem}")
            self._announce(problem, shape)

    def receive(self) -> list[Rows]:
        """Return what each rank sent, once all have. StepsError if that is impossible."""
        while self._failure is None:
            generation, found = self._next()
            if generation < self.generation:
                continue
            if isinstance(found, StepsError):
                self._failure = found
            else:
                return found
        raise StepsError(str(self._failure))

    def restart(self, generation: int) -> None:
        """Drop what is on its way and what went wrong, and begin again.

        generation: of the position, the same on all ranks, and larger than the last one.
        """
        self._failure, self.generation = None, generation

    def close(self) -> None:
        """Stop; idempotent."""
        self._failure = self._failure or StepsError("docs_per_step: the loader was closed.")

    @abstractmethod
    def _post(self, message: RankRows) -> None:
        """Hand a message over."""

    @abstractmethod
    def _announce(self, problem: str, shape: tuple[int, ...]) -> None:
        """Let the other ranks know why this rank fails; it may end right after that."""

    @abstractmethod
    def _next(self) -> tuple[int, list[Rows] | StepsError]:
        """Wait for an answer, and return it with the generation of the message it is for."""


def answer(messages: Sequence[RankRows]) -> list[Rows] | StepsError | None:
    """Return what all ranks sent; StepsError if they are at different positions.

    None: some have restarted and others not. Those that have must send again, as the others may
    have sent their message before they restarted.
    """
    places = [message.place for message in messages]
    if len({generation for generation, *_ in places}) > 1:
        return None
    for rank, place in enumerate(places):
        if place != places[0]:
            what = (
                f"is at micro-batch {place[1]} of the run, rank 0 at {places[0][1]}"
                if place[1] != places[0][1]
                else OTHER_RULES
            )
            return elsewhere(rank, what)
    return [message.rows for message in messages]


def failed(rank: int, problem: str) -> StepsError:
    """Return the error that reports why a rank has failed."""
    return StepsError(f"docs_per_step: rank {rank} has failed: {problem}")


def elsewhere(rank: int, what: str) -> StepsError:
    """Return the error that reports that a rank is not where rank 0 is."""
    return StepsError(
        f"docs_per_step: rank {rank} {what}. Restore states that were saved together, and pass the "
        f"same docs_per_step on all ranks."
    )
