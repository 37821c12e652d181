"""Whose turn it is to set the global generators of `random`, numpy and torch: one thread's.

They belong to the trainer, which draws from them when it likes. So threads that make its batches
have their turns only while it waits for a batch, and by the time it has it they are as they were.

A signal handler may raise between any two instructions of a trainer. So nothing here is wrong if it
was done by half, and what was can be done again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from attrs import define

from energy_data.errors import EnergyDataError

_LOOK_S = 0.5  # between two looks at what should have been told
_GRACE_S = 1.0  # seconds a turn has to end when a trainer is interrupted, or has waited long

_GIVE_UP_S = 10.0  # seconds to wait for a turn that was taken away, and goes on
_KEPT = (
    "global seeds: a function with `restore_seeds=True` hangs in a worker thread, and still draws "
    "from the global generators. Take the sample out that was named, and start the program again."
)

T = TypeVar("T")


class LostTurnError(BaseException):
    """What is being made in this thread is void: its turn was taken away, or there will be none.

    Not for users, and no Exception: their functions are not to put up with it.
    """


class Seeding(Protocol):
    """What the global generators are for a while."""

    def begin(self) -> None:
        """Note how they are outside, and set them."""

    def put_back(self) -> None:
        """Set them as they were outside; as often as one likes. Nothing if it never began."""


class Lender:
    """The thread of a trainer. It waits for what others make, and they have turns while it does.

    A signal handler may raise at any time within; then, too, nobody has a turn afterwards: one that
    does not end at once is taken away.
    """

    def __init__(self) -> None:
        self.waits = False
        self.thread = 0  # that waits, or did
        self.ended: SimpleQueue[None] = SimpleQueue()  # turns that it waits to end
        self.taken_from: int | None = None  # the thread that last did not end its turn in time

    def wait(self, made: SimpleQueue[T], timeout_s: float | None) -> T | None:
        """Return what comes next; None if nothing does in time."""
        with contextlib.suppress(Empty):
            return made.get_nowait()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        patience_s: float | None = _GRACE_S
        self.thread, self.waits = threading.get_ident(), True
        try:
            _TURN.tell()
            found = _next(made, deadline)
            patience_s = deadline and max(deadline - time.monotonic(), _GRACE_S)
        except Empty:
            return None
        else:
            return found
        finally:
            self.waits = False  # first of all: from here on nobody begins a turn
            try:
                self._get_back(patience_s)
            except BaseException:  # what it raised when it was through, or before it had begun
                self._get_back(_GRACE_S)
                raise

    def _get_back(self, patience_s: float | None) -> None:
        """Let a turn end, or take it away. What signal handlers raise meanwhile is raised then."""
        raised: BaseException | None = None
        while True:
            try:
                self._let_end(patience_s)
                _TURN.take_away_from(self)
                break
            except BaseException as error:  # noqa: BLE001 - raised below; the turn may end still
                patience_s = _GRACE_S if raised is None else 0
                raised = error
        if raised is not None:
            raise raised

    def _let_end(self, timeout_s: float | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while _TURN.is_lent_by(self) and (deadline is None or time.monotonic() < deadline):
            with contextlib.suppress(Empty):
                self.ended.get(timeout=_LOOK_S)


def _next(made: SimpleQueue[T], deadline: float | None) -> T:
    """Return what comes next; raise Empty if nothing has by the deadline.

    In short waits: a signal that comes just before one begins is seen when it is over only.
    """
    while True:
        left_s = _LOOK_S if deadline is None else min(deadline - time.monotonic(), _LOOK_S)
        try:
            return made.get(timeout=max(left_s, 0))
        except Empty:
            if left_s < _LOOK_S:
                raise


class Borrower:
    """A thread that has turns only while its lender waits."""

    def __init__(self, lender: Lender) -> None:
        self.lender = lender
        self.is_stopped = False  # it is to have no more turns: where it waits for one it is told so


class _Here(threading.local):
    borrower: Borrower | None = None


@define(eq=False)
class _Held:
    """The turn of a thread, and the seedings it is in: the first is the outermost."""

    thread: int
    lender: Lender | None
    seedings: list[Seeding]


class _Turn:
    """The turn that somebody has, in this process."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all: in a forked child there is one thread, and it is nobody's turn."""
        self.lock = threading.RLock()  # a signal handler may close a loader while we have it
        self.bells: set[SimpleQueue[None]] = set()  # of those who wait for a turn
        # Who has it is the last. A trainer that has it itself, and waits, lends it on.
        self.held: list[_Held] = []
        # Threads that lost it -> seedings they are in still.
        self.lost: dict[int, list[Seeding]] = {}

    def begin_in_child(self) -> None:
        _HERE.borrower = None
        self.begin_anew()

    def tell(self) -> None:
        for bell in tuple(self.bells):
            if bell.empty():  # one that was left behind, by an interrupt, does not grow
                bell.put(None)

    def is_lent_by(self, lender: Lender) -> bool:
        with self.lock:
            return lender in [one.lender for one in self.held]

    def take_away_from(self, lender: Lender) -> None:
        """Take away the turn that a lender has lent, if it has, and those lent on."""
        with self.lock:
            numbers = [number for number, one in enumerate(self.held) if one.lender is lender]
            if not numbers:
                return
            taken = self.held[numbers[0] :]
            for one in reversed(taken):
                for seeding in reversed(one.seedings):
                    seeding.put_back()
            for one in taken:
                self.lost[one.thread] = one.seedings
            lender.taken_from = taken[0].thread
            del self.held[numbers[0] :]

    def take(self, seeding: Seeding) -> None:
        asked = time.monotonic()
        if self._begins(seeding, asked):
            return
        bell: SimpleQueue[None] = SimpleQueue()
        self.bells.add(bell)
        try:
            while not self._begins(seeding, asked):
                with contextlib.suppress(Empty):
                    bell.get(timeout=_LOOK_S)
        finally:
            self.bells.discard(bell)

    def _begins(self, seeding: Seeding, asked: float) -> bool:
        """Begin a seeding if it is the turn of this thread, asked for at that time."""
        me, borrower = threading.get_ident(), _HERE.borrower
        with self.lock:
            if me in self.lost:
                raise LostTurnError
            if not self.lost and self.held and self.held[-1].thread == me:
                self.held[-1].seedings.append(seeding)
            elif self._is_free_for(borrower):
                self.held.append(_Held(me, borrower.lender if borrower else None, [seeding]))
            elif borrower and borrower.is_stopped:
                raise LostTurnError
            elif self.lost and not borrower and time.monotonic() - asked > _GIVE_UP_S:
                raise EnergyDataError(_KEPT)
            else:
                return False
            seeding.begin()  # nobody takes it away, or begins another, in the middle of this
            return True

    def _is_free_for(self, borrower: Borrower | None) -> bool:
        if self.lost or (borrower and not borrower.lender.waits):
            return False
        has = self.held[-1].thread if self.held else None
        return has is None or (borrower is not None and has == borrower.lender.thread)

    def end(self, seeding: Seeding) -> None:
        me = threading.get_ident()
        lender: Lender | None = None
        with self.lock:
            mine = [one for one in self.held if seeding in one.seedings]
            left = self.lost.get(me, [])
            if not mine and seeding in left:
                self._end_lost(me, seeding)
                raise LostTurnError
            seeding.put_back()
            for one in mine:
                lender = one.lender
                del one.seedings[one.seedings.index(seeding) :]
            self.held = [one for one in self.held if one.seedings]
        self.tell()
        if lender and not lender.waits:
            lender.ended.put(None)

    def _end_lost(self, thread: int, seeding: Seeding) -> None:
        """Until then it may draw from the generators of whoever has the turn: nobody has it."""
        seedings = self.lost[thread]
        del seedings[seedings.index(seeding) :]
        if not seedings:
            del self.lost[thread]
            self.tell()


_HERE = _Here()
_TURN = _Turn()
os.register_at_fork(after_in_child=_TURN.begin_in_child)


def lend_to(borrower: Borrower) -> None:
    """Let this thread have turns only while the lender of `borrower` waits."""
    _HERE.borrower = borrower


def look_again() -> None:
    """Let those who wait for a turn see at once that they are stopped."""
    _TURN.tell()


def begin_turn(seeding: Seeding) -> None:
    """Wait until it is the turn of this thread, and begin a seeding; it may be in another already.

    LostTurnError: in a thread that was stopped. Whatever is raised, `end_turn` is to follow.
    """
    _TURN.take(seeding)


def end_turn(seeding: Seeding) -> None:
    """Put back what was outside of a seeding, and let others have a turn; again, if interrupted.

    LostTurnError if the turn was taken away.
    """
    _TURN.end(seeding)


def keeps(thread: int | None) -> bool:
    """Return whether a thread goes on in a turn that was taken away, so that nobody has one."""
    return thread in _TURN.lost
