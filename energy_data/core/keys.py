"""Keyed numbers: one 64-bit mix over a key tuple.

All pseudo-random numbers of orders come from here, so they depend on their key alone: there are no
generator objects, no global seed, and no algorithm that another package may change.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

_BITS = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB

# The type of a part enters the key. Otherwise 1, 1 - 2**64 and a string could be the same part.
_NATURAL, _NEGATIVE, _TEXT = 1, 2, 3


def key(*parts: int | str) -> int:
    """Return the 64-bit key, >= 0, of a tuple of integers (-2**63 to 2**64 - 1) and strings.

    Different tuples have different keys but for hash collisions: `("a", "b")`, `("ab",)`, `(1,)`
    and `("1",)` all differ. Some microseconds per part. The mix is splitmix64's finaliser (Steele,
    Lea, Flood: Fast splittable pseudorandom number generators, 2014); strings enter as the
    8-byte BLAKE2b of their UTF-8 bytes.

    Raises:
        OverflowError: If an integer has more than 64 bits.
    """
    state = _GOLDEN
    for part in parts:
        kind, number = _number(part)
        state = _finalised((state + kind * _GOLDEN) & _BITS)
        state = _finalised(state ^ number)
    return state


def mix(keys: ArrayLike, numbers: ArrayLike) -> NDArray[np.uint64]:
    """Return the keyed number of each (key, number), elementwise, broadcast, as uint64.

    It is output `number` of the splitmix64 generator whose state is `key`, so keys must be well
    spread: take them from `key()` or from `mix()` itself. Negative numbers count modulo 2**64.
    6 ns per element.
    """
    spread, steps = (np.asarray(values).astype(np.uint64) for values in (keys, numbers))
    shape = np.broadcast_shapes(spread.shape, steps.shape)
    # Arrays of at least one axis wrap around in silence, where scalars would warn.
    state = np.atleast_1d(steps) * np.uint64(_GOLDEN)
    state = state + (spread + np.zeros(1, np.uint64)) + np.uint64(_GOLDEN)
    return finalise(state).reshape(shape)


def finalise(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply splitmix64's finaliser, a bijection of 64-bit numbers, in place; return the array."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(_FIRST)
    state ^= state >> np.uint64(27)
    state *= np.uint64(_SECOND)
    state ^= state >> np.uint64(31)
    return state


def _finalised(state: int) -> int:
    state = ((state ^ (state >> 30)) * _FIRST) & _BITS
    state = ((state ^ (state >> 27)) * _SECOND) & _BITS
    return state ^ (state >> 31)


def _number(part: int | str) -> tuple[int, int]:
    if isinstance(part, str):
        digest = blake2b(part.encode(), digest_size=8).digest()
        return _TEXT, int.from_bytes(digest, "little")
    if not -(1 << 63) <= part <= _BITS:
        raise OverflowError(f"a part of a key must fit in 64 bits, got {part}")
    return (_NEGATIVE if part < 0 else _NATURAL), part & _BITS
