"""Which samples of several datasets have the same key: matched by sorting digests of keys.

A key counts as its BLAKE2b digest of 16 bytes: 10**9 keys have two alike with a probability of
10**-21. Memory is 16 bytes per key, and 50 while two datasets are matched, whatever the keys are.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Digests = npt.NDArray[np.uint64]
"""[keys, 2]."""


def digests_of(keys: Iterable[str]) -> Digests:
    """Return the digest of each key, uint64 [keys, 2]. 0.9 us per key."""
    found = b"".join(
        [blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).digest() for key in keys]
    )
    return np.frombuffer(found, "<u8").reshape(-1, 2)


def duplicates(digests: Digests) -> list[tuple[int, int]]:
    """Return the places of equal digests, in pairs of neighbours, by their first place."""
    order, same = _sorted(digests)
    places = np.flatnonzero(same)
    return sorted(zip(order[places].tolist(), order[places + 1].tolist(), strict=True))


def match(primary: Digests, other: Digests) -> Int64s:
    """Return where in `other` each digest of `primary` is, int64 [primary]; -1: nowhere.

    Both are free of duplicates. 0.5 us per digest of both.
    """
    order, same = _sorted(np.concatenate([primary, other]))
    places = np.flatnonzero(same)
    where = np.full(len(primary), -1, np.int64)
    where[order[places]] = order[places + 1] - len(primary)  # sorting is stable: primary first
    return where


def _sorted(digests: Digests) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Return the order that sorts digests, and at which of them the next is equal."""
    order = np.lexsort((digests[:, 1], digests[:, 0]))
    high, low = digests[order, 0], digests[order, 1]
    return order, (high[1:] == high[:-1]) & (low[1:] == low[:-1])
