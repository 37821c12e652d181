"""Exchanges of ranks that are processes: one gather per message, in a thread.

On a gloo group of the data-parallel ranks that nothing else uses: it never orders against
collectives of the trainer. A rank that is gone or silent is named by those that are left: each
signs in a store, and who has not signed is missing.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

from energy_data.core.context import WorkerConfig
from energy_data.errors import SpecError
from energy_data.loading.steps.exchange import (
    OTHER_RULES,
    Exchange,
    Message,
    Rows,
    StepsError,
    answer,
    elsewhere,
    failed,
)

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_TEXT = 64  # 8-byte words of a message for what went wrong, in words
_ALARM_S = 0.5  # how often those that wait look whether others have given up
_GRACE_S = 2.0  # then those that are left have signed
_MAX_PAUSE_S = 0.002


class GlooExchange(Exchange):
    """Between processes. Its group is made at the first message, by all ranks, in the thread."""

    def __init__(self, config: WorkerConfig, timeout_s: float) -> None:
        super().__init__()
        self._config, self._timeout_s = config, timeout_s
        self._inbox: queue.SimpleQueue[tuple[int, list[Rows] | StepsError]] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._thread: _Thread | None = None
        self._has_restarted = False

    def close(self) -> None:  # noqa: D102
        super().close()
        self._end_thread()

    def restart(self, generation: int) -> None:  # noqa: D102
        self._has_restarted = self._has_restarted or generation != self.generation
        super().restart(generation)

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._thread.stopped.set()
            self._outbox.put(None)
            self._outbox, self._inbox = queue.SimpleQueue(), queue.SimpleQueue()
            self._thread = None

    def _renew(self, thread: _Thread) -> None:
        """After a restart, take another group if any rank found this one broken.

        A failure that a rank told of broke nothing, and not all ranks may have heard of it.
        """
        try:
            if thread.wires.is_given_up():
                self._end_thread()
        except RuntimeError as error:
            raise StepsError(
                f"docs_per_step: the store of the process group cannot be reached: {error}. Start "
                f"all ranks again."
            ) from error

    def _post(self, message: Message) -> None:
        if self._thread is not None and self._has_restarted:
            self._renew(self._thread)
        self._has_restarted = False
        if self._thread is None:
            wires = _joined(self._config, self._timeout_s, message.rows.shape)
            self._thread = _Thread(wires, self._outbox, self._inbox)
            self._thread.start()
        if message.problem:  # this process may end before the others come, or listen
            self._thread.met.wait()
            self._thread.wires.write_down(message)
        self._outbox.put(message)

    def _next(self) -> tuple[int, list[Rows] | StepsError]:
        return self._inbox.get()


def _ranks_of(config: WorkerConfig) -> list[int]:
    """Return the global numbers of the data-parallel ranks."""
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
    return ranks


def _joined(config: WorkerConfig, timeout_s: float, shape: tuple[int, ...]) -> _Wires:
    """Return wires to the other ranks, that this rank has signed up for. Waits for nobody.

    Not by `new_group`: it names a group by how many groups this process is in, and ranks may be in
    different numbers of them. Here groups are numbered in the store: the next one is the first
    that this rank has not joined and that nobody has given up.
    """
    ranks = _ranks_of(config)
    # Not every torch has it. There is no public way to the store.
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
        if not (wires.is_given_up() or store.check([f"joined/{config.rank}"])):
            wires.join("x".join(map(str, shape)))
            return wires
        number += 1


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
        self.met = threading.Event()  # all ranks are there, or will not come

    def run(self) -> None:
        try:
            try:
                self.wires.meet()
            finally:
                self.met.set()
            while (message := self.outbox.get()) is not None and not self.stopped.is_set():
                self.inbox.put((message.place[0], self.exchanged(message)))
        except StepsError as error:
            self.inbox.put((self.wires.NEVER_OLD, error))
        except Exception as error:  # noqa: BLE001 - the trainer waits, and raises it
            text = f"docs_per_step: the exchange broke off: {type(error).__name__}: {error}."
            self.inbox.put((self.wires.NEVER_OLD, StepsError(text)))
        self.wires.let_end()

    def exchanged(self, message: Message) -> list[Rows] | StepsError:
        while True:
            messages = self.wires.gathered(message)
            if (found := answer(messages)) is not None:
                self.wires.part_from([n for n, other in enumerate(messages) if other.problem])
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

    def __init__(self, store: Store, rank: int, ranks: int, timeout_s: float) -> None:
        self.store, self.rank, self.num_ranks, self.timeout_s = store, rank, ranks, timeout_s
        self.generation = 0  # of the last message
        self.stopped = threading.Event()
        self.shape = ""  # of rows
        self.group: Any = None
        self.work: Any = None  # the last gather

    def join(self, shape: str) -> None:
        """Sign up, with rows of this shape. StepsError if the store cannot be reached."""
        self.shape = shape
        with self.given_up_on_error():
            self.store.set(f"joined/{self.rank}", shape)
            self.store.add(f"shape/{shape}", 1)
            if self.store.add("joined", 1) == self.num_ranks:
                self.store.set("all", "")

    def meet(self) -> None:
        """Make the group, once all ranks are there with rows of one shape. StepsError if not."""
        with self.given_up_on_error():
            self.await_all()
            if self.store.add(f"shape/{self.shape}", 0) != self.num_ranks:
                shapes = [self.store.get(f"joined/{rank}") for rank in range(self.num_ranks)]
                other = next(rank for rank, found in enumerate(shapes) if found != shapes[0])
                self.part("knows", range(self.num_ranks))
                raise elsewhere(other, OTHER_RULES)
            # Its time is longer than ours, so that we are the ones that find out.
            timeout = timedelta(seconds=self.timeout_s + 60)
            self.group = distributed.ProcessGroupGloo(
                self.store, self.rank, self.num_ranks, timeout
            )

    @contextlib.contextmanager
    def given_up_on_error(self) -> Iterator[None]:
        """Let the others know if this rank cannot meet them. StepsError for what the store says."""
        try:
            yield
        except BaseException as error:
            self.give_up()
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
            if time.monotonic() > until or self.is_given_up() or self.stopped.is_set():
                raise self.found_out(f"have said nothing for {self.timeout_s:g} s", "")
            time.sleep(0.02)

    def is_given_up(self) -> bool:
        """Whether a rank has found this group broken; none uses it any more then."""
        return bool(self.store.check(["alarm"]))

    def give_up(self) -> None:
        """Let all ranks take another group when they restart."""
        with contextlib.suppress(RuntimeError):  # without the store there is no other group
            if not self.is_given_up():
                self.store.set("alarm", "could not meet")

    def gathered(self, message: Message) -> list[Message]:
        """Return the messages of all ranks. StepsError if ranks are missing."""
        self.generation = message.place[0]
        packed = _packed(message)
        table = torch.empty((self.num_ranks, len(packed)), dtype=torch.int64)
        rows = list(table.unbind(0))
        try:
            self.work = self.group.allgather([rows], [packed])
            silent = not self.waited(self.work)
            if not silent:
                self.work.wait()
        except RuntimeError as error:
            raise self.found_out("have gone", str(error)) from error
        if silent:
            raise self.found_out(f"have said nothing for {self.timeout_s:g} s", "")
        return [_unpacked(row, message.rows.shape) for row in table.numpy()]

    def let_end(self) -> None:
        """Keep the group until its last gather has ended.

        Whoever drops it waits for that, holding Python's lock.
        """
        while self.work is not None and not self.work.is_completed():
            time.sleep(_ALARM_S)

    def waited(self, work: Any) -> bool:
        """Wait until the work is done, and return whether it is: another rank may give up."""
        pause, begin = 2e-5, time.monotonic()
        alarm = begin + _ALARM_S
        while not work.is_completed():
            now = time.monotonic()
            if now > begin + self.timeout_s or self.stopped.is_set():
                return False
            if now > alarm:
                if self.is_given_up():
                    return False
                alarm = now + _ALARM_S
            time.sleep(pause)
            pause = min(pause * 1.5, _MAX_PAUSE_S)
        return True

    def found_out(self, fate: str, detail: str) -> StepsError:
        """Return an error that says what has failed, or names the ranks that are missing."""
        missing: list[int] = []
        try:
            self.store.set(f"here/{self.rank}", "")
            told = self.is_given_up()
            self.store.set("alarm", fate)
            fate = self.store.get("alarm").decode() if told else fate
            if problems := self.written_down():
                self.part_from(problems)
                rank = min(problems)
                return failed(rank, problems[rank])
            self.stopped.wait(_GRACE_S)
            keys = {rank: [f"here/{rank}"] for rank in range(self.num_ranks)}
            missing = [rank for rank, key in keys.items() if not self.store.check(key)]
            self.part("knows", [rank for rank in keys if rank not in missing])
        except RuntimeError as error:
            detail = f"{detail}; nor can the store of the process group be reached: {error}"
        if missing:
            return StepsError(
                f"docs_per_step: data-parallel ranks {missing} of {self.num_ranks} {fate} while "
                f"the others waited for what they have drawn. Look at their logs."
            )
        return StepsError(
            f"docs_per_step: ranks {fate}, the exchange of counts broke off: {detail}."
        )

    def write_down(self, message: Message) -> None:
        """Leave in the store why this rank fails: it may end before the others listen."""
        key = f"problem/{message.place[0]}/{self.rank}"
        with contextlib.suppress(RuntimeError):  # the others will miss us all the same
            self.store.set(key, message.problem)
            self.store.check([key])  # it has arrived when this is answered

    def written_down(self) -> dict[int, str]:
        """Return why ranks have failed that left it in the store, by rank."""
        keys = {rank: f"problem/{self.generation}/{rank}" for rank in range(self.num_ranks)}
        return {
            rank: self.store.get(key).decode(errors="replace")
            for rank, key in keys.items()
            if self.store.check([key])
        }

    def part_from(self, ranks: Collection[int]) -> None:
        """Let the others know too, if these ranks have failed."""
        if ranks:
            others = [rank for rank in range(self.num_ranks) if rank not in ranks]
            self.part(f"told/{self.generation}", others)

    def part(self, sign: str, ranks: Iterable[int]) -> None:
        """Wait a little until these ranks know: one keeps the store, and may end once it raised."""
        keys = [f"{sign}/{rank}" for rank in ranks]
        until = time.monotonic() + _GRACE_S
        with contextlib.suppress(RuntimeError):  # it has ended, for we all know
            self.store.set(f"{sign}/{self.rank}", "")
            while keys and not self.store.check(keys) and time.monotonic() < until:
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
