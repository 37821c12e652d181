"""Whose turn it is to set the global generators of `random`, numpy and torch: one thread's.

They belong to the trainer, which draws from them when it likes. So threads that make its batches
have their turns only while it waits for a batch, and by the time it has it they are as they were.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

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


class Lender:
    """The thread of a trainer. It waits for what others make, and they have turns while it does.

    A signal handler may raise at any time within; then, too, nobody has a turn afterwards: one that
    does not end at once is taken away.
    """

    def __init__(self) -> None:
        self.waits = False
        self.ended: SimpleQueue[None] = SimpleQueue()  # turns that it waits to end
        self.taken_from: int | None = None  # the thread that last did not end its turn in time

    def wait(self, made: SimpleQueue[T], timeout_s: float | None) -> T | None:
        """Return what comes next; None if nothing does in time."""
        with contextlib.suppress(Empty):
            return made.get_nowait()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        patience_s: float | None = _GRACE_S
        self.waits = True
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
            except BaseException:  # of a signal handler; the turn may end still
                self._get_back(_GRACE_S)
                raise
            finally:
                _TURN.take_away_from(self)

    def _get_back(self, timeout_s: float | None) -> None:
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


class _Turn:
    """The turn that somebody has, in this process."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all: in a forked child there is one thread, and it is nobody's turn."""
        self.lock = threading.RLock()  # a signal handler may close a loader while we have it
        self.changed = threading.Condition(self.lock)
        self.thread: int | None = None
        self.lost: dict[int, int] = {}  # threads that lost their turn and are in it still -> depth
        self.depth = 0
        self.lender: Lender | None = None
        self.restore: Callable[[], None] | None = None

    def tell(self) -> None:
        with self.lock:
            self.changed.notify_all()

    def is_lent_by(self, lender: Lender) -> bool:
        with self.lock:
            return self.lender is lender

    def take_away_from(self, lender: Lender) -> None:
        with self.lock:
            if self.lender is not lender:
                return
            restore = self.restore
            assert self.thread is not None
            assert restore is not None
            try:
                self.lost[self.thread] = self.depth
                lender.taken_from = self.thread
                self._end()
                restore()
            except BaseException:  # of a signal handler; half of it may be put back
                restore()
                raise

    def _end(self) -> None:
        self.thread, self.lender, self.restore = None, None, None
        self.changed.notify_all()

    def take(self, restore: Callable[[], None]) -> None:
        me, borrower = threading.get_ident(), _HERE.borrower
        if self.thread == me:
            self.depth += 1
            return
        began = time.monotonic()
        with self.lock:
            while self.thread is not None or self.lost or (borrower and not borrower.lender.waits):
                if me in self.lost or (borrower and borrower.is_stopped):
                    raise LostTurnError
                if self.lost and not borrower and time.monotonic() - began > _GIVE_UP_S:
                    raise EnergyDataError(_KEPT)
                self.changed.wait(_LOOK_S)
            self.lender = borrower.lender if borrower else None
            self.thread, self.depth, self.restore = me, 1, restore

    def end(self, put_back: Callable[[], None]) -> None:
        me = threading.get_ident()
        with self.lock:
            if self.thread != me:
                self._end_lost(me)
                raise LostTurnError
            put_back()
            self.depth -= 1
            if self.depth:
                return
            lender = self.lender
            self._end()
        if lender and not lender.waits:
            lender.ended.put(None)

    def _end_lost(self, thread: int) -> None:
        """Until then it may draw from the generators of whoever has the turn: nobody has it."""
        self.lost[thread] = self.lost.get(thread, 1) - 1
        if not self.lost[thread]:
            del self.lost[thread]
            self.changed.notify_all()


_HERE = _Here()
_TURN = _Turn()
os.register_at_fork(after_in_child=_TURN.begin_anew)


def lend_to(borrower: Borrower) -> None:
    """Let this thread have turns only while the lender of `borrower` waits."""
    _HERE.borrower = borrower


def look_again() -> None:
    """Let those who wait for a turn see at once that they are stopped."""
    _TURN.tell()


def take_turn(restore: Callable[[], None]) -> None:
    """Wait until it is the turn of this thread; again, if it is already.

    restore: puts back what was before the turn; called if the turn is taken away. LostTurnError: in
    a thread that was stopped.
    """
    _TURN.take(restore)


def end_turn(put_back: Callable[[], None]) -> None:
    """Put back what was before, and let others have a turn. LostTurnError if it was taken away."""
    _TURN.end(put_back)


def keeps(thread: int | None) -> bool:
    """Return whether a thread goes on in a turn that was taken away, so that nobody has one."""
    return thread in _TURN.lost
