"""What was decoded last, in memory: groups of tables, shards that are compressed.

    columns = RECENT.get((path, version, group), decode)

It is bounded in bytes, for all files of a thread together.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

LARGEST = 1 << 28  # bytes that a thread keeps; at least two results

T = TypeVar("T")


class _Recent(threading.local):
    """Results by what they depend on, of each thread its own: a forked process inherits no lock."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self.num_made = 0  # for tests that count

    def get(self, key: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """Return the result of a key. make: returns it with its bytes, if it is not kept.

        key: what the result depends on, with the version of each file.
        """
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            found: T = kept[0]
            return found
        found, size = make()
        self.num_made += 1
        self._kept[key] = found, size
        self._bytes += size
        while self._bytes > LARGEST and len(self._kept) > 2:
            _, (_, size) = self._kept.popitem(last=False)
            self._bytes -= size
        return found

    def forget_first(self, key: Hashable) -> None:
        """Forget the result of a key before all others: it is not needed for a long time.

        The last one first. So if all are needed again in turn, some of them are still there.
        """
        if key in self._kept:
            self._kept.move_to_end(key, last=False)

    def clear(self) -> None:
        """Forget all results."""
        self._kept.clear()
        self._bytes = 0


RECENT = _Recent()
