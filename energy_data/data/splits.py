"""Splits: names of shards written as patterns, and which shards a part has."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

from braceexpand import braceexpand

from energy_data.errors import SpecError, StructureError

PARTS = ("train", "val", "test")  # those of a ratio

_SHUFFLE_SEED = 42  # Energon's
_MOST_NAMES = 10_000_000  # that braces in one split may stand for
MOST_OF_PATTERN = 1_000_000  # that a pattern of the user may stand for
_DIGITS = re.compile(r"(\d+)")
_SPECIAL = re.compile(r"([\\{},])")
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.-?\d+)?")
_SPLIT = re.compile(  # in names of files, as `datasets` finds it there; a group per split
    r"(?<![^-._ 0-9/])"
    r"(?:(train|training)|(validation|valid|val|dev)|(test|testing|eval|evaluation))"
    r"(?![^-._ 0-9/])"
)


def expand(patterns: Sequence[Any], where: Path, most: int = _MOST_NAMES) -> Iterator[str]:
    """Yield the names that patterns with braces stand for.

    where: the file or folder that errors name.

    Raises StructureError for a pattern that is invalid, and for more than `most` names.
    """
    total = 0
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise _wrong(where, f"{pattern!r} is not the name of a shard")
        total += _count(pattern)
        if total > most:
            raise _wrong(where, f"up to {pattern!r} it has more than {most:,} names")
        try:
            yield from braceexpand(pattern)
        except (ValueError, RecursionError) as error:
            raise _wrong(where, f"the braces of {pattern!r} do not match") from error


def _wrong(where: Path, problem: str) -> StructureError:
    return StructureError(f"{where}: {problem}. Correct the pattern.")


def _count(pattern: str) -> int:
    """Return how many names a pattern stands for, or more; braceexpand would hold them all."""
    frames = [[1, 0, 0]]  # names of this alternative, of those before it, place of the brace
    for place, char in enumerate(pattern):
        if char == "{":
            frames.append([1, 0, place])
        elif char == "," and len(frames) > 1:
            frames[-1][:2] = [1, sum(frames[-1][:2])]
        elif char == "}" and len(frames) > 1:
            last, before, begin = frames.pop()
            span = _RANGE.fullmatch(pattern, begin + 1, place)
            names = abs(int(span[1]) - int(span[2])) + 1 if span else last + before
            frames[-1][0] = min(frames[-1][0] * names, 1 << 64)
    return max(frame[0] + frame[1] for frame in frames)


def collapse(names: list[str]) -> list[str]:
    """Return patterns that stand for `names`, in their order."""
    patterns: list[str] = []
    run: list[str] = names[:1]
    slot: int | None = None  # the piece of the names that counts up
    for name in names[1:]:
        found = _slot(run[-1], name)
        if found is None or slot not in (None, found):
            patterns += _pattern(run, slot)
            run, slot = [name], None
        else:
            run.append(name)
            slot = found
    return patterns + _pattern(run, slot)


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


def _pattern(run: list[str], slot: int | None) -> list[str]:
    """Return one pattern for a run, or its names if there is none (`9`, then `010`)."""
    plain = [_SPECIAL.sub(r"\\\1", name) for name in run]
    if slot is None:
        return plain
    first, last = _DIGITS.split(run[0]), _DIGITS.split(run[-1])
    first[slot] = f"{{{first[slot]}..{last[slot]}}}"
    pattern = "".join(first)
    return [pattern] if list(braceexpand(pattern)) == run else plain


def parse_patterns(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the `split` for texts such as `train:shard_0.*`."""
    patterns: dict[str, list[str]] = {}
    for text in texts:
        part, colon, pattern = text.partition(":")
        if not (part and colon and pattern):
            raise SpecError(f"split part {text!r}: it must be PART:PATTERN, as in train:shard_0.*")
        patterns.setdefault(part, []).append(pattern)
    return patterns


Divide = Callable[[list[str]], dict[str, list[str]]]
"""Returns the shards of each part."""


def by_ratio(ratio: str, path: Path, *, shuffle: bool) -> Divide:
    """Return a function that splits shards by shares, as Energon does, but without rounding."""
    try:
        shares = [Fraction(share.strip()) for share in ratio.split(",")]
    except (ValueError, ZeroDivisionError):
        shares = []
    if not 1 <= len(shares) <= len(PARTS) or min(shares) < 0 or not sum(shares):
        raise SpecError(
            f"split ratio {ratio!r}: give up to three numbers for {', '.join(PARTS)}, as in 8,1,1."
        )

    def divide(shards: list[str]) -> dict[str, list[str]]:
        if shuffle:
            shards = list(shards)
            random.Random(_SHUFFLE_SEED).shuffle(shards)  # noqa: S311 - no secret
        ends = [len(shards) * sum(shares[:n]) // sum(shares) for n in range(len(shares) + 1)]
        parts = {
            part: shards[int(begin) : int(end)]
            for part, (begin, end) in zip(PARTS, pairwise(ends), strict=False)
        }
        for part, share in zip(PARTS, shares, strict=False):
            if share and not parts[part]:
                raise SpecError(
                    f"{path}: the ratio {ratio} leaves no shard for {part!r}: there are "
                    f"{len(shards)}. Give another ratio, or patterns, or write more shards."
                )
        return {part: parts.get(part, []) for part in PARTS}

    return divide


def by_patterns(patterns: Mapping[str, Sequence[str]], path: Path) -> Divide:
    """Return a function that gives each part the shards that match its patterns.

    It raises SpecError for a pattern that matches no shard, and for a shard of two parts.
    """

    def divide(shards: list[str]) -> dict[str, list[str]]:
        parts: dict[str, list[str]] = {}
        owner: dict[str, str] = {}
        for part, texts in patterns.items():
            fitting: set[str] = set()
            for text in texts:
                fitting |= _matches(text, shards, path)
            parts[part] = [shard for shard in shards if shard in fitting]
            for shard in parts[part]:
                if shard in owner:
                    raise SpecError(
                        f"{path}: the patterns of {owner[shard]!r} and of {part!r} both match "
                        f"{shard!r}. Give patterns that match each shard once."
                    )
                owner[shard] = part
        return parts

    return divide


def as_before(parts: Mapping[str, Sequence[str]]) -> Divide:
    """Return a function that gives each part those of its shards that still exist."""

    def divide(shards: list[str]) -> dict[str, list[str]]:
        existing = set(shards)
        return {part: [one for one in names if one in existing] for part, names in parts.items()}

    return divide


def _matches(text: str, shards: list[str], path: Path) -> set[str]:
    """Return the shards that match a pattern; raise SpecError if there is none."""
    patterns = list(expand([text], path, MOST_OF_PATTERN))
    found: set[str] = set()
    for pattern in patterns:
        try:
            found.update(shard for shard in shards if re.match(pattern, shard))
        except re.error:  # such as `*.tar`, which is a glob
            continue
    found = found or {one for one in shards if any(fnmatchcase(one, two) for two in patterns)}
    if not found:
        raise SpecError(
            f"{path}: no shard matches the pattern {text!r}; the first shard is {shards[0]!r}. "
            "Give a regular expression or a glob that matches from the start of the name."
        )
    return found


def refuse_splits(folder: str, shards: Iterable[str], suffix: str) -> None:
    """Raise SpecError if the names of shards are those of several splits."""
    found: dict[str, re.Match[str]] = {}
    for shard in shards:
        if name := _SPLIT.search(shard):
            found.setdefault(PARTS[(name.lastindex or 1) - 1], name)
    if len(found) < 2:
        return
    patterns = {part: _files_like(found[part], suffix) for part in PARTS if part in found}
    options = " ".join(f"--split-parts '{part}:{one}'" for part, one in patterns.items())
    raise SpecError(
        f"{folder}: it is not prepared, so all its files are one part, but their names are of "
        f"several splits, found {', '.join(found[part].string for part in patterns)}. Name the "
        f"files of one split, as in {Path(folder) / next(iter(patterns.values()))}, or run "
        f"`energy-data prepare {folder} {options}`."
    )


def _files_like(name: re.Match[str], suffix: str) -> str:
    """Return a pattern of the files that are named for a split as this one is."""
    rest = name.string[name.end() :].removesuffix(suffix)
    return name.string[: name.end()] + re.sub(r"[^-._ /][^/]*", "*", rest) + suffix
