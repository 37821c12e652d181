"""The exchange between ranks: what each has drawn, over the store of the process group.

Each rank writes its rounds to the store. The rank that is last reads those of all, and writes the
answer: the rounds over all ranks, or why the ranks cannot continue. So sending never waits, no rank
waits for more than the rounds of the others, and there is nothing that could interfere with the
collectives of the trainer.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from torch import distributed

from energy_data.core.worker_config import WorkerConfig
from energy_data.errors import EnergyDataError, SpecError
from energy_data.loading.steps.counts import Counts
from energy_data.loading.steps.planner import Round

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_GRACE_S = 2.0  # the time for the other ranks to learn of a failure
_MAX_PAUSE_S = 0.05  # between two looks at the store


class StepsError(EnergyDataError):
    """The ranks can no longer agree on steps: one failed, is missing, or is elsewhere."""


class Exchange:
    """Sends the rounds of this rank, and receives those rounds over all ranks; in turn.

    All ranks send equally many messages. A rank that moves to another position calls `restart`;
    messages on their way are then void.
    """

    def __init__(self, config: WorkerConfig, timeout_s: float, store: Store | None = None) -> None:
        """Make an exchange. store: of the ranks; None: that of the process group."""
        self._config, self._timeout_s, self._found = config, timeout_s, store
        self._rank, self._ranks = config.rank, config.world_size
        self._own_store: Store | None = None  # of the exchange; made when it is needed
        self._generation, self._number = 0, 0  # of the position; of the message
        self._failure: StepsError | None = None

    def restart(self, generation: int) -> None:
        """Drop what is on its way and what went wrong, and begin again.

        generation: of the position, the same on all ranks, and larger than the last one.
        """
        self._generation, self._number, self._failure = generation, 0, None

    def send(self, rounds: Sequence[Round], facts: Mapping[str, Any]) -> None:
        """Begin an exchange. Does not wait for other ranks.

        facts: what must be the same on all ranks; plain data by its name.
        """
        if self._failure is not None:
            return
        with self._store() as store:
            message = {"facts": facts, "rounds": rounds, "at": [self._generation, self._number]}
            store.set(f"message/{self._rank}", json.dumps(message))
            sent: int = store.add(f"sent/{self._generation}", 1)
            if sent == self._ranks * (self._number + 1):
                texts = store.multi_get([f"message/{rank}" for rank in range(self._ranks)])
                self._settle(store, _answer_of([json.loads(text) for text in texts]))
                if self._number:  # all ranks have read it
                    store.delete_key(self._answer_key(self._number - 1))

    def receive(self) -> list[Round]:
        """Return the rounds over all ranks, once all have sent theirs. StepsError if they cannot.

        Waits `timeout_s`, at most.
        """
        if self._failure is not None:
            raise StepsError(str(self._failure))
        with self._store() as store:
            answer = json.loads(self._awaited(store))
            if "error" in answer:
                self._failure = StepsError(f"docs_per_step: {answer['error']}")
                self._part(store)
                raise self._failure
        self._number += 1
        return [Round(Counts(*counts), *others) for counts, *others in answer["rounds"]]

    def fail(self, problem: str) -> None:
        """End the exchange: the other ranks raise StepsError with this problem."""
        if self._failure is None:
            with suppress(EnergyDataError), self._store() as store:
                self._settle(store, {"error": f"rank {self._rank} has failed: {problem}"})
                self._part(store)
            self._failure = StepsError(f"docs_per_step: this rank has failed: {problem}")

    def close(self) -> None:
        """Stop; idempotent."""
        self._failure = self._failure or StepsError("docs_per_step: the loader was closed.")

    @contextmanager
    def _store(self) -> Iterator[Store]:
        """Yield the store of this exchange; StepsError if it cannot be reached."""
        try:
            if self._own_store is None:
                self._own_store = _next_store(self._found, self._config)
            yield self._own_store
        except RuntimeError as error:  # as torch raises it
            raise StepsError(
                f"docs_per_step: the store of the process group cannot be reached: {error}. The "
                f"rank that keeps it has ended: see the logs of the ranks."
            ) from error

    def _answer_key(self, number: int) -> str:
        return f"answer/{self._generation}/{number}"

    def _settle(self, store: Store, answer: dict[str, Any]) -> None:
        """Write the answer, unless another rank has written one."""
        store.compare_set(self._answer_key(self._number), "", json.dumps(answer))

    def _awaited(self, store: Store) -> bytes:
        """Return the answer. At the timeout, it names the ranks that are missing."""
        key, begin = self._answer_key(self._number), time.monotonic()
        while not store.check([key]):  # `wait` would hold up other users of the store
            waited_s = time.monotonic() - begin
            if waited_s > self._timeout_s:
                self._settle(store, {"error": self._missing(store)})
            time.sleep(min(waited_s / 4 + 1e-4, _MAX_PAUSE_S))
        answer: bytes = store.get(key)
        return answer

    def _missing(self, store: Store) -> str:
        keys = [f"message/{rank}" for rank in range(self._ranks)]
        here = [self._generation, self._number]
        missing = [
            rank
            for rank, key in enumerate(keys)
            if not store.check([key]) or json.loads(store.get(key))["at"] != here
        ]
        return (
            f"data-parallel ranks {missing} of {self._ranks} have sent nothing for "
            f"{self._timeout_s:g} s while the others waited for their counts. See their logs. If "
            f"only some ranks were restored, restore all."
        )

    def _part(self, store: Store) -> None:
        """Wait briefly until all ranks know of a failure: the one with the store may end next."""
        key, until = f"know/{self._generation}", time.monotonic() + _GRACE_S
        with suppress(RuntimeError):  # the store has ended: all ranks know
            know = store.add(key, 1)
            while know < self._ranks and time.monotonic() < until:
                time.sleep(_MAX_PAUSE_S)
                know = store.add(key, 0)


def _answer_of(messages: Sequence[Any]) -> dict[str, Any]:
    """Return the rounds over all ranks; or an error if facts differ."""
    expected = messages[0]["facts"]
    for rank, message in enumerate(messages):
        for name, value in message["facts"].items():
            if value != expected[name]:
                return {
                    "error": f"{name} is {value} on rank {rank}, and {expected[name]} on rank 0. "
                    f"Restore states that were saved together, and pass the same docs_per_step on "
                    f"all ranks."
                }
    of_rounds = zip(*(message["rounds"] for message in messages), strict=True)
    merged = [Round.merge(Round(Counts(*c), *rest) for c, *rest in each) for each in of_rounds]
    return {"rounds": merged}


def _next_store(store: Store | None, config: WorkerConfig) -> Store:
    """Return the store of the next exchange of this rank with the others.

    SpecError if there is no process group, or another one.
    """
    # Not every build of torch has it, and no public function returns the store.
    from torch.distributed.distributed_c10d import (  # noqa: PLC0415
        PrefixStore,
        _get_default_store,
    )

    if store is None:
        name = hashlib.sha256(repr(_ranks_of(config)).encode()).hexdigest()[:16]
        store = PrefixStore(f"energy_data/steps/{name}", _get_default_store())
    number = store.add(f"exchanges/{config.rank}", 1)
    return PrefixStore(str(number), store)


def _ranks_of(config: WorkerConfig) -> list[int]:
    """Return the global numbers of the data-parallel ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        raise SpecError(
            f"docs_per_step: {config.world_size} ranks must exchange what they have drawn, but "
            f"torch.distributed is not initialised. Call init_process_group first."
        )
    parent = config.data_parallel_group or distributed.group.WORLD
    ranks = distributed.get_process_group_ranks(parent)
    if len(ranks) != config.world_size:
        raise SpecError(
            f"docs_per_step: the data-parallel group has {len(ranks)} ranks, WorkerConfig has "
            f"{config.world_size}. Pass the group as WorkerConfig(data_parallel_group=...)."
        )
    return ranks
