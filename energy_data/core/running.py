"""What the function of a user that is running now works on; nodes note it, functions ask for it."""

from __future__ import annotations

import threading
from typing import Any

from attrs import field, frozen


@frozen
class Role:
    """What is the same for all calls of one function in one lane."""

    seed: int  # of the run
    function: str  # its name; not its place: what stands over it is no reason for other numbers
    cache: Any = field(default=None, eq=False, repr=False)  # the cache pool of the run
    must_know: bool = False  # what it says of items that are not known from each other is no use


class Running(threading.local):
    """What is being worked on in this thread."""

    role: Role | None = None
    item: Any = None  # a sample, or a list of what is packed or batched
    reference: tuple[int, ...] = ()  # of an item that has lost its identity, as a state has it
    mark: tuple[int, ...] = ()  # of the item, if it has neither
    batch: int = 0  # number in the run of the micro-batch that is being made


RUNNING = Running()

RESTORE_KEY = "__restore_key__"
"""The field of a sample that says which it is."""


def restore_key(item: Any) -> tuple[Any, ...] | None:
    """Return the identity of a sample, or of the first of a list; None if it has lost it.

    It is (id of the leaf, epoch, index in the leaf), put there by reading; what is made of several
    samples has theirs, one in the other.
    """
    first = item[0] if isinstance(item, list) and item else item
    found = first.get(RESTORE_KEY) if isinstance(first, dict) else getattr(first, RESTORE_KEY, None)
    return found if isinstance(found, tuple) and found else None
