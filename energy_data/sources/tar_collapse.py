"""Names in a row -> patterns: shard-000.tar, ..., shard-099.tar -> shard-{000..099}.tar."""

from __future__ import annotations

import re

from braceexpand import braceexpand

_DIGITS = re.compile(r"(\d+)")
_SPECIAL = re.compile(r"([\\{},])")


def collapse(names: list[str]) -> list[str]:
    """Return patterns that stand for `names`, in their order."""
    patterns: list[str] = []
    run: list[str] = []
    for name in names:
        if run and not _follows(run, name):
            patterns += _pattern(run)
            run = []
        run.append(name)
    return patterns + (_pattern(run) if run else [])


def _follows(run: list[str], name: str) -> bool:
    """Return whether `name` continues the counting of `run`."""
    slot = _slot(run[-1], name)
    return slot is not None and (len(run) == 1 or slot == _slot(run[-2], run[-1]))


def _slot(name: str, following: str) -> int | None:
    """Return which piece of a name counts up by one to give the following name, if one does."""
    pieces, others = _DIGITS.split(name), _DIGITS.split(following)
    if len(pieces) != len(others) or _SPECIAL.search(name):
        return None
    slots = [n for n, (one, two) in enumerate(zip(pieces, others, strict=True)) if one != two]
    if len(slots) != 1 or slots[0] % 2 == 0:  # numbers are at odd places
        return None
    counts = int(others[slots[0]]) == int(pieces[slots[0]]) + 1
    return slots[0] if counts else None


def _pattern(run: list[str]) -> list[str]:
    """Return one pattern for a run, or its names if braces cannot say them (`9`, then `010`)."""
    plain = [_SPECIAL.sub(r"\\\1", name) for name in run]
    slot = _slot(run[0], run[1]) if len(run) > 1 else None
    if slot is None:
        return plain
    first, last = _DIGITS.split(run[0]), _DIGITS.split(run[-1])
    first[slot] = f"{{{first[slot]}..{last[slot]}}}"
    pattern = "".join(first)
    return [pattern] if list(braceexpand(pattern)) == run else plain
