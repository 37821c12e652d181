"""What ranks tell each other of the micro-batches they have drawn.

One gather per message, on a gloo group of the data-parallel ranks that nothing else uses, in a
thread: it never orders against collectives of the trainer. A rank that fails says so in its next
message. One that is gone or silent is named by those that are left: each signs in a store, and who
has not signed is missing.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import distributed

from energy_data.context import WorkerConfig
from energy_data.errors import EnergyDataError, SpecError

_TEXT = 64  # 8-byte words of a message for what went wrong, in words
_ALARM_S = 0.5  # how often those that wait look whether others have given up
_GRACE_S = 2.0  # then those that are left have signed
_MAX_PAUSE_S = 0.002

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

    def restart(self) -> None:
        """Forget what is on its way and what went wrong, and begin again."""
        self.generation += 1
        self._failure = None

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
    for rank, message in enumerate(messages):
        if message.problem:
            return StepsError(f"docs_per_step: rank {rank} has failed: {message.problem}")
    if len({message.place[0] for message in messages}) > 1:
        return None
    places = [message.place for message in messages]
    for rank, place in enumerate(places):
        if place != places[0]:
            what = (
                f"is at micro-batch {place[1]} of the run, rank 0 at {places[0][1]}"
                if place[1] != places[0][1]
                else "has another docs_per_step than rank 0, or is at another step"
            )
            return StepsError(
                f"docs_per_step: rank {rank} {what}. Restore states that were saved together, and "
                f"pass the same docs_per_step on all ranks."
            )
    return [message.rows for message in messages]


class GlooExchange(Exchange):
    """Between processes. Its group is made at the first message, by all ranks."""

    def __init__(self, config: WorkerConfig, timeout_s: float) -> None:
        super().__init__()
        self._config, self._timeout_s = config, timeout_s
        self._inbox: queue.SimpleQueue[tuple[int, list[Rows] | StepsError]] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread: _Thread | None = None

    def close(self) -> None:  # noqa: D102
        super().close()
        self._end_thread()

    def restart(self) -> None:  # noqa: D102
        if self._failure is not None:  # the group may be broken, so there will be another
            self._end_thread()
        super().restart()

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.stopped.set()
            self._outbox.put(None)
            self._outbox, self._thread = queue.SimpleQueue(), None

    def _post(self, message: Message) -> None:
        if self._thread is None:
            group, ranks = _own_group(self._config, self._timeout_s)
            wires = _Wires(group, self._config.rank, ranks, self._timeout_s)
            self._thread = _Thread(wires, self._outbox, self._inbox)
            self._thread.start()
        if message.problem:  # this process may end before the others listen
            self._thread.wires.write_down(message.problem)
        self._outbox.put(message)

    def _next(self) -> tuple[int, list[Rows] | StepsError]:
        return self._inbox.get()


def _own_group(config: WorkerConfig, timeout_s: float) -> tuple[Any, list[int]]:
    """Return a gloo group of the data-parallel ranks, and their global numbers."""
    if not (distributed.is_available() and distributed.is_initialized()):
        raise SpecError(
            f"docs_per_step: {config.world_size} ranks must tell each other what they have drawn, "
            f"but torch.distributed is not initialised. Call init_process_group first; or say what "
            f"is in each micro-batch with `known`."
        )
    parent = config.data_parallel_group or distributed.group.WORLD
    ranks = distributed.get_process_group_ranks(parent)
    if len(ranks) != config.world_size:
        raise SpecError(
            f"docs_per_step: the data-parallel group has {len(ranks)} ranks, WorkerConfig says "
            f"{config.world_size}. Pass the group as WorkerConfig(data_parallel_group=...)."
        )
    try:
        group = distributed.new_group(
            ranks,
            backend="gloo",
            timeout=timedelta(seconds=timeout_s + 60),  # ours is over before
            use_local_synchronization=True,  # only these ranks need to call it
        )
    except RuntimeError as error:
        raise StepsError(
            f"docs_per_step: the data-parallel ranks {ranks} could not meet: {error}. All of them "
            f"must draw from a loader with docs_per_step; look at the logs of the others."
        ) from error
    return group, ranks


class _Thread(threading.Thread):
    """Runs the exchanges one after another; it alone uses the group."""

    def __init__(
        self,
        wires: _Wires,
        outbox: queue.SimpleQueue[Message | None],
        inbox: queue.SimpleQueue[tuple[int, list[Rows] | StepsError]],
    ) -> None:
        super().__init__(name="energy_data: steps", daemon=True)
        self.wires, self.outbox, self.inbox = wires, outbox, inbox
        self.stopped = wires.stopped

    def run(self) -> None:
        while (message := self.outbox.get()) is not None and not self.stopped.is_set():
            generation = message.place[0]
            try:
                self.inbox.put((generation, self.exchanged(message)))
            except StepsError as error:
                self.inbox.put((self.wires.NEVER_OLD, error))
                return

    def exchanged(self, message: Message) -> list[Rows] | StepsError:
        while True:
            messages = self.wires.gathered(message)
            if (found := answer(messages)) is not None:
                return found
            newest = max(other.place[0] for other in messages)
            if message.place[0] < newest:
                ahead = [n for n, other in enumerate(messages) if other.place[0] == newest]
                return StepsError(
                    f"docs_per_step: ranks {ahead} went to another place, and this rank did not. "
                    f"Restore on all ranks."
                )


class _Wires:
    """Gathers messages over a group, and finds out who is missing."""

    NEVER_OLD = 1 << 62  # a generation: what went wrong here holds for all later messages

    def __init__(self, group: Any, rank: int, ranks: list[int], timeout_s: float) -> None:
        self.group, self.rank, self.num_ranks, self.timeout_s = group, rank, len(ranks), timeout_s
        self.stopped = threading.Event()
        # There is no public way to the store. A prefix, for there may be several such groups.
        store = distributed.distributed_c10d._get_default_store()
        self.store = distributed.distributed_c10d.PrefixStore(
            f"energy_data/steps/{group.group_name}", store
        )

    def gathered(self, message: Message) -> list[Message]:
        """Return the messages of all ranks. StepsError if ranks are missing."""
        packed = _packed(message)
        table = torch.empty((self.num_ranks, len(packed)), dtype=torch.int64)
        rows = list(table.unbind(0))
        try:
            work = distributed.all_gather(rows, packed, group=self.group, async_op=True)
            silent = not self.waited(work)
            if not silent:
                work.wait()
        except RuntimeError as error:
            raise self.found_out("have gone", str(error)) from error
        if silent:
            raise self.found_out(f"have said nothing for {self.timeout_s:g} s", "")
        return [_unpacked(row, message.rows.shape) for row in table.numpy()]

    def waited(self, work: Any) -> bool:
        """Wait until the work is done, and return whether it is: another rank may give up."""
        pause, begin = 2e-5, time.monotonic()
        alarm = begin + _ALARM_S
        while not work.is_completed():
            now = time.monotonic()
            if now > begin + self.timeout_s or self.stopped.is_set():
                return False
            if now > alarm:
                if self.store.check(["alarm"]):
                    return False
                alarm = now + _ALARM_S
            time.sleep(pause)
            pause = min(pause * 1.5, _MAX_PAUSE_S)
        return True

    def found_out(self, fate: str, detail: str) -> StepsError:
        """Return an error that names the ranks that are missing."""
        missing: list[int] = []
        try:
            self.store.set(f"here/{self.rank}", "")
            told = self.store.check(["alarm"])
            self.store.set("alarm", fate)
            fate = self.store.get("alarm").decode() if told else fate
            self.stopped.wait(_GRACE_S)
            keys = {rank: [f"here/{rank}"] for rank in range(self.num_ranks)}
            missing = [rank for rank, key in keys.items() if not self.store.check(key)]
            # One of us keeps the store, and may end once it has raised.
            self.store.set(f"knows/{self.rank}", "")
            self.await_keys([f"knows/{rank}" for rank in keys if rank not in missing])
        except RuntimeError as error:
            detail = f"{detail}; nor can the store of the process group be reached: {error}"
        if missing:
            said = "".join(f" Rank {rank} said: {text}." for rank, text in self.words(missing))
            return StepsError(
                f"docs_per_step: data-parallel ranks {missing} of {self.num_ranks} {fate} while "
                f"the others waited for what they have drawn.{said} Look at their logs."
            )
        return StepsError(
            f"docs_per_step: ranks {fate}, the exchange of counts broke off: {detail}."
        )

    def write_down(self, problem: str) -> None:
        """Leave in the store why this rank fails."""
        with contextlib.suppress(RuntimeError):  # the others will miss us all the same
            self.store.set(f"problem/{self.rank}", problem)
            self.store.check([f"problem/{self.rank}"])  # it has arrived when this is answered

    def words(self, ranks: list[int]) -> Iterator[tuple[int, str]]:
        """Yield what ranks that are missing have left in the store."""
        with contextlib.suppress(RuntimeError):  # its keeper may be among them
            for rank in ranks:
                if self.store.check([f"problem/{rank}"]):
                    yield rank, self.store.get(f"problem/{rank}").decode(errors="replace")

    def await_keys(self, keys: list[str]) -> None:
        """Wait until all keys are in the store, for a little while."""
        until = time.monotonic() + _GRACE_S
        while not self.store.check(keys) and time.monotonic() < until:
            time.sleep(0.05)


def _packed(message: Message) -> torch.Tensor:
    text = message.problem.encode(errors="replace")[: 8 * _TEXT].ljust(8 * _TEXT, b"\0")
    parts = [np.array(message.place), np.frombuffer(text, np.int64), message.rows.ravel()]
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _unpacked(row: Rows, shape: tuple[int, ...]) -> Message:
    place, text, rows = np.split(row, [3, 3 + _TEXT])
    problem = text.tobytes().rstrip(b"\0").decode(errors="replace")
    generation, step, digest = place.tolist()
    return Message(rows.reshape(shape), (generation, step, digest), problem)
