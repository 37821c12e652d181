"""What the function of a user that is running now works on; nodes note it, functions ask for it."""

from __future__ import annotations

import threading
from typing import Any

from attrs import field, frozen

from energy_data.context import Context


@frozen
class Hand:
    """What is the same for all calls of one function in one lane."""

    seed: int
    path: tuple[str, ...]  # of the node
    cache: Any = field(default=None, eq=False, repr=False)  # the cache pool of the run

    @classmethod
    def of(cls, context: Context) -> Hand:
        """Return what is known in a context."""
        return cls(context.seed, context.path, context.cache)


class AtHand(threading.local):
    """What is being worked on in this thread."""

    hand: Hand | None = None
    item: Any = None  # a sample, or a list of what is packed or batched
    mark: tuple[int, ...] = ()  # of the item, if it has no identity of its own
    batch: int = 0  # number in the run of the micro-batch that is being made


AT_HAND = AtHand()


def restore_key(item: Any) -> tuple[Any, ...] | None:
    """Return the identity of a sample, or of the first of a list; None if it has lost it.

    It is (id of the leaf, epoch, index in the leaf), put there by reading; what is made of several
    samples has theirs, one in the other.
    """
    first = item[0] if isinstance(item, list) and item else item
    found = (
        first.get("__restore_key__")
        if isinstance(first, dict)
        else getattr(first, "__restore_key__", None)
    )
    return found if isinstance(found, tuple) and found else None
