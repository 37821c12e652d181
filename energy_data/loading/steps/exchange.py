"""What ranks tell each other of the micro-batches they have drawn.

A rank that fails says so in its next message. `exchange_gloo` has the exchanges between processes.
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


class Message(NamedTuple):
    """What a rank says: a table [rows, columns], and where it stands."""

    rows: Rows
    place: tuple[int, int, int]  # generation (see `Exchange`), its first micro-batch, digest
    problem: str = ""  # it has failed


class Exchange(ABC):
    """Sends the messages of this rank and receives those of all; one at a time is on its way.

    All ranks send equally many messages, of one shape. A rank that goes to another place calls
    `restart`: what is on its way is void then, as it is on all others once they have restarted.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._failure: StepsError | None = None

    def send(self, rows: Rows, *, place: int, digest: int = 0, problem: str = "") -> None:
        """Begin an exchange, or with a `problem` end all of them. Returns at once.

        place: number of the first micro-batch it is about. digest: of what all ranks must have in
        common.
        """
        if self._failure is None:
            self._post(Message(rows, (self.generation, place, digest), problem))
            if problem:
                self._failure = StepsError(f"docs_per_step: this rank has failed: {problem}")

    def receive(self) -> list[Rows]:
        """Return what each rank sent, once all have. StepsError if that cannot be any more."""
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
        """Forget what is on its way and what went wrong, and begin again.

        generation: of the place, on all ranks; larger than the last. If it is the same, this was
        done before.
        """
        if generation != self.generation:
            self._failure, self.generation = None, generation

    def close(self) -> None:
        """Stop; idempotent."""
        self._failure = self._failure or StepsError("docs_per_step: the loader was closed.")

    @abstractmethod
    def _post(self, message: Message) -> None:
        """Hand a message over."""

    @abstractmethod
    def _next(self) -> tuple[int, list[Rows] | StepsError]:
        """Wait for an answer, and return it with the generation of the message it is for."""


def answer(messages: Sequence[Message]) -> list[Rows] | StepsError | None:
    """Return what ranks have said. StepsError if one has failed, or they are not at one place.

    None: some have restarted and others not; those that have say it again, for the others' message
    may have been on its way before.
    """
    if len({message.place[0] for message in messages}) > 1:
        return None  # what went wrong before they restarted is void, too
    for rank, message in enumerate(messages):
        if message.problem:
            return failed(rank, message.problem)
    places = [message.place for message in messages]
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
    """Return the error that says why a rank has failed."""
    return StepsError(f"docs_per_step: rank {rank} has failed: {problem}")


def elsewhere(rank: int, what: str) -> StepsError:
    """Return the error that says that a rank is not where rank 0 is."""
    return StepsError(
        f"docs_per_step: rank {rank} {what}. Restore states that were saved together, and pass the "
        f"same docs_per_step on all ranks."
    )
