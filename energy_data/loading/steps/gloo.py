"""The exchange between ranks that are processes: one all-gather per message, in a thread.

It uses its own gloo group of the data-parallel ranks, so it never interferes with collectives of
the trainer. Errors go through the store of the process group, because a broken gather reports
neither the cause nor the rank: a rank that fails writes its error there and raises an alarm. If a
gather breaks or times out, every rank that is alive signs in; the others are missing.
(`monitored_barrier` reports the missing rank on rank 0 only, and carries no error.)
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import distributed

from energy_data.core.context import WorkerConfig
from energy_data.errors import SpecError
from energy_data.loading.steps.exchange import (
    OTHER_RULES,
    Exchange,
    RankRows,
    Rows,
    StepsError,
    answer,
    elsewhere,
    failed,
)

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_ALARM_S = 0.5  # how often waiting ranks check for an alarm
_GRACE_S = 2.0  # the time for the other ranks to sign in, or to learn of a failure
_MAX_PAUSE_S = 0.002
_ALWAYS = 1 << 62  # a generation: the error holds for all later messages

Answers: TypeAlias = "queue.SimpleQueue[tuple[int, list[Rows] | StepsError]]"


class GlooExchange(Exchange):
    """Between processes. All ranks make the group together, with their first message."""

    def __init__(self, config: WorkerConfig, timeout_s: float) -> None:
        super().__init__()
        self._config, self._timeout_s = config, timeout_s
        self._thread: _Thread | None = None
        self._has_restarted = False

    def close(self) -> None:  # noqa: D102
        super().close()
        self._end_thread()

    def restart(self, generation: int) -> None:  # noqa: D102
        super().restart(generation)
        self._has_restarted = True

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.stopped.set()
            self._thread.outbox.put(None)
            self._thread = None

    def _started(self, shape: tuple[int, ...]) -> _Thread:
        """Return the thread; after a restart, with a new group if the last one is broken."""
        if self._thread is not None and self._has_restarted:
            try:
                if self._thread.wires.has_alarm():
                    self._end_thread()
            except RuntimeError as error:
                raise StepsError(
                    f"docs_per_step: the store of the process group cannot be reached: {error}. "
                    f"Start all ranks again."
                ) from error
        self._has_restarted = False
        if self._thread is None:
            self._thread = _Thread(_joined(self._config, self._timeout_s, shape))
            self._thread.start()
        return self._thread

    def _post(self, message: RankRows) -> None:
        self._started(message.rows.shape).outbox.put(message)

    def _announce(self, problem: str, shape: tuple[int, ...]) -> None:
        thread = self._started(shape)
        thread.met.wait()
        thread.wires.announce(problem)

    def _next(self) -> tuple[int, list[Rows] | StepsError]:
        assert self._thread is not None, "nothing was sent"
        return self._thread.inbox.get()


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


def _joined(config: WorkerConfig, timeout_s: float, shape: tuple[int, ...]) -> _Wires:
    """Join the next group, and return its wires. Does not wait for other ranks.

    `new_group` cannot be used: it names a group by the number of groups that the process is in,
    which may differ between ranks. Here groups are numbered in the store. The next one is the first
    that this rank has not joined and that has no alarm.
    """
    ranks = _ranks_of(config)
    # Not every build of torch has it, and no public function returns the store.
    from torch.distributed.distributed_c10d import (  # noqa: PLC0415
        PrefixStore,
        _get_default_store,
    )

    name = hashlib.sha256(repr(ranks).encode()).hexdigest()[:16]
    of_all = _get_default_store()
    number = 0
    while True:
        store = PrefixStore(f"energy_data/steps/{name}/{number}", of_all)
        wires = _Wires(store, config.rank, len(ranks), timeout_s)
        if not (wires.has_alarm() or store.check([f"joined/{config.rank}"])):
            wires.join("x".join(map(str, shape)))
            return wires
        number += 1


class _Thread(threading.Thread):
    """Runs the exchanges one after another; it alone uses the group."""

    def __init__(self, wires: _Wires) -> None:
        super().__init__(name="energy_data: steps", daemon=True)
        self.wires, self.stopped = wires, wires.stopped
        self.outbox: queue.SimpleQueue[RankRows | None] = queue.SimpleQueue()
        self.inbox: Answers = queue.SimpleQueue()
        self.met = threading.Event()  # all ranks have joined, or the group has failed

    def run(self) -> None:
        try:
            try:
                self.wires.meet()
            finally:
                self.met.set()
            while (message := self.outbox.get()) is not None and not self.stopped.is_set():
                self.inbox.put((message.place[0], self.exchanged(message)))
        except StepsError as error:
            self.inbox.put((_ALWAYS, error))
        except Exception as error:  # noqa: BLE001 - the trainer waits, and raises it
            text = f"docs_per_step: the exchange broke: {type(error).__name__}: {error}."
            self.inbox.put((_ALWAYS, StepsError(text)))
        self.wires.let_end()

    def exchanged(self, message: RankRows) -> list[Rows] | StepsError:
        while True:
            messages = self.wires.gathered(message)
            if (found := answer(messages)) is not None:
                return found
            newest = max(other.place[0] for other in messages)
            if message.place[0] < newest:
                ahead = [n for n, other in enumerate(messages) if other.place[0] == newest]
                return StepsError(
                    f"docs_per_step: ranks {ahead} have moved to another position, and this rank "
                    f"has not. Restore on all ranks."
                )


class _Wires:
    """Gathers messages over a group, and finds out which ranks are missing."""

    def __init__(self, store: Store, rank: int, ranks: int, timeout_s: float) -> None:
        self.store, self.rank, self.num_ranks, self.timeout_s = store, rank, ranks, timeout_s
        self.stopped = threading.Event()
        self.shape = ""  # of rows
        self.group: Any = None
        self.work: Any = None  # the last gather

    def join(self, shape: str) -> None:
        """Join, with rows of this shape. StepsError if the store cannot be reached."""
        self.shape = shape
        with self.alarm_on_error():
            self.store.set(f"joined/{self.rank}", shape)
            self.store.add(f"shape/{shape}", 1)
            if self.store.add("joined", 1) == self.num_ranks:
                self.store.set("all", "")

    def meet(self) -> None:
        """Make the group once all ranks have joined with rows of one shape. StepsError if not."""
        with self.alarm_on_error():
            self.await_all()
            if self.store.add(f"shape/{self.shape}", 0) != self.num_ranks:
                shapes = [self.store.get(f"joined/{rank}") for rank in range(self.num_ranks)]
                other = next(rank for rank, found in enumerate(shapes) if found != shapes[0])
                self.part(range(self.num_ranks))
                raise elsewhere(other, OTHER_RULES)
            # Our own timeout is shorter, so it is the one that ends a gather.
            timeout = timedelta(seconds=self.timeout_s + 60)
            self.group = distributed.ProcessGroupGloo(
                self.store, self.rank, self.num_ranks, timeout
            )

    @contextlib.contextmanager
    def alarm_on_error(self) -> Iterator[None]:
        """Raise the alarm on any error; convert errors of the store to StepsError."""
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(RuntimeError):  # without the store there is no other group
                self.alarm("could not meet")
            if isinstance(error, RuntimeError):
                raise StepsError(
                    f"docs_per_step: the data-parallel ranks could not meet: {error}. Look at the "
                    f"logs of the others."
                ) from error
            raise

    def await_all(self) -> None:
        """Wait until all ranks have joined."""
        until = time.monotonic() + self.timeout_s
        while not self.store.check(["all"]):
            if time.monotonic() > until or self.has_alarm() or self.stopped.is_set():
                raise self.found_out(f"have sent nothing for {self.timeout_s:g} s", "")
            time.sleep(0.02)

    def has_alarm(self) -> bool:
        """Return whether a rank has failed or found the group broken; it is then unusable."""
        return bool(self.store.check(["alarm"]))

    def alarm(self, fate: str) -> str:
        """Raise the alarm; return the fate of the first alarm."""
        if not self.has_alarm():
            self.store.set("alarm", fate)
        return self.store.get("alarm").decode()

    def announce(self, problem: str) -> None:
        """Write the error of this rank to the store, and wait briefly until the others know."""
        with contextlib.suppress(RuntimeError):  # the others will find this rank missing
            self.store.set(f"problem/{self.rank}", problem)
            self.alarm("have failed")
            self.part(range(self.num_ranks))

    def gathered(self, message: RankRows) -> list[RankRows]:
        """Return the messages of all ranks. StepsError if ranks are missing, or one has failed."""
        packed = torch.from_numpy(np.concatenate([np.array(message.place), message.rows.ravel()]))
        table = torch.empty((self.num_ranks, len(packed)), dtype=torch.int64)
        try:
            self.work = self.group.allgather([list(table.unbind(0))], [packed])
            is_done = self.waited(self.work)
            if is_done:
                self.work.wait()
        except RuntimeError as error:
            raise self.found_out("are gone", str(error)) from error
        if not is_done:
            raise self.found_out(f"have sent nothing for {self.timeout_s:g} s", "")
        return [
            RankRows(row[3:].reshape(message.rows.shape), tuple(row[:3].tolist()))
            for row in table.numpy()
        ]

    def let_end(self) -> None:
        """Keep the group until its last gather has ended.

        Its destructor waits for that while it holds the GIL.
        """
        while self.work is not None and not self.work.is_completed():
            time.sleep(_ALARM_S)

    def waited(self, work: Any) -> bool:
        """Wait until the work is done, and return whether it is; an alarm ends the wait."""
        pause, begin = 2e-5, time.monotonic()
        look = begin + _ALARM_S
        while not work.is_completed():
            now = time.monotonic()
            if now > begin + self.timeout_s or self.stopped.is_set():
                return False
            if now > look:
                if self.has_alarm():
                    return False
                look = now + _ALARM_S
            time.sleep(pause)
            pause = min(pause * 1.5, _MAX_PAUSE_S)
        return True

    def found_out(self, fate: str, detail: str) -> StepsError:
        """Return an error that names the rank that failed, with its error, or the missing ranks."""
        missing: list[int] = []
        try:
            self.store.set(f"here/{self.rank}", "")
            fate = self.alarm(fate)
            for rank in range(self.num_ranks):
                if self.store.check([f"problem/{rank}"]):
                    problem = self.store.get(f"problem/{rank}").decode(errors="replace")
                    self.part(range(self.num_ranks))
                    return failed(rank, problem)
            self.stopped.wait(_GRACE_S)
            keys = {rank: [f"here/{rank}"] for rank in range(self.num_ranks)}
            missing = [rank for rank, key in keys.items() if not self.store.check(key)]
            self.part([rank for rank in keys if rank not in missing])
        except RuntimeError as error:
            detail = f"{detail}; nor can the store of the process group be reached: {error}"
        if missing:
            return StepsError(
                f"docs_per_step: data-parallel ranks {missing} of {self.num_ranks} {fate} while "
                f"the others waited for their counts. See their logs."
            )
        return StepsError(f"docs_per_step: ranks {fate}, the exchange of counts broke: {detail}.")

    def part(self, ranks: Iterable[int]) -> None:
        """Wait briefly until these ranks know: the rank that runs the store may end next."""
        keys = [f"knows/{rank}" for rank in ranks]
        until = time.monotonic() + _GRACE_S
        with contextlib.suppress(RuntimeError):  # the store has ended: all ranks know
            self.store.set(f"knows/{self.rank}", "")
            while keys and not self.store.check(keys) and time.monotonic() < until:
                time.sleep(0.05)
