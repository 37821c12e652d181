"""Names in tars -> keys of samples and extensions of parts: the rule of webdataset and Energon.

    "images/0001.seg.png"  ->  key "images/0001", extension "seg.png"

The key reaches to the first dot after the last slash. Files without extension and those in or
named `__...__` are no parts of samples.
"""

from __future__ import annotations

import re

from braceexpand import braceexpand

_NAME = re.compile(r"((?:.*/)?[^.]+)[.]([^/]*)")
_META = re.compile(r"__[^/]*__(?:$|/)")


def split_name(name: str) -> tuple[str, str] | None:
    """Return (key, extension), or None if the file is no part of a sample."""
    key, dot, extension = name.partition(".")
    if not dot or not key or "/" in extension or name.startswith("__"):
        found = None if _META.match(name) else _NAME.fullmatch(name)
        return (found[1], found[2]) if found else None
    return key, extension


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
    """Return one pattern for a run, or its names if there is none (`9`, then `010`)."""
    plain = [_SPECIAL.sub(r"\\\1", name) for name in run]
    slot = _slot(run[0], run[1]) if len(run) > 1 else None
    if slot is None:
        return plain
    first, last = _DIGITS.split(run[0]), _DIGITS.split(run[-1])
    first[slot] = f"{{{first[slot]}..{last[slot]}}}"
    pattern = "".join(first)
    return [pattern] if list(braceexpand(pattern)) == run else plain
