"""Which bytes of an object are in the cache: pieces in order, and a journal of them on disk.

A piece is written first, and its line is appended then; when it is dropped, a line is appended
first, and its bytes are given back then. So a process that is killed leaves no piece that is listed
and not there. After a restart of the machine no piece counts, as what was written may be lost.
"""

from __future__ import annotations

import ctypes
import json
import os
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from attrs import asdict, field, frozen

from energy_data.remote.mirror_paths import FOLDER, ranges_of

_PUNCH, _KEEP_SIZE = 2, 1  # modes of fallocate

Piece = tuple[int, int]
"""Bytes [begin, end) that were fetched together."""


@cache
def boot_id() -> str:
    """Return what names the time since the machine was started."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return "unknown"


@frozen(kw_only=True)
class ObjectFacts:
    """What is known of an object."""

    url: str
    size: int
    modified: float  # seconds since 1970
    tag: str | None = None  # changes with its contents; None: the store has none
    options: dict[str, Any] = field(factory=dict)

    def is_same(self, other: ObjectFacts) -> bool:
        """Return whether an object has the same contents, by its tag, or else by its time."""
        if self.tag and other.tag:
            return (self.tag, self.size) == (other.tag, other.size)
        return (self.modified, self.size) == (other.modified, other.size)


def facts_of(path: str) -> ObjectFacts | None:
    """Return what is known of the object at a path; None: it is none, or not one that is known."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        with Path(ranges_of(path)).open(encoding="utf-8") as file:
            known = json.loads(file.readline())
        del known["boot"]
        return ObjectFacts(**known)
    return None


class CachedObject:
    """One object, and its pieces in the cache."""

    def __init__(self, path: str, facts: ObjectFacts, pieces: Sequence[Piece] = ()) -> None:
        self.path, self.facts = path, facts
        self._begins = [begin for begin, _ in pieces]
        self._ends = [end for _, end in pieces]

    @classmethod
    def load(cls, path: str) -> CachedObject | None:
        """Return an object that is known on disk; None if there is none, or it is damaged."""
        try:
            head, *lines = Path(ranges_of(path)).read_text("utf-8").split("\n")
            known = json.loads(head)
            boot, facts = known.pop("boot"), ObjectFacts(**known)
            if os.stat(path).st_size != facts.size:  # noqa: PTH116 - as in files/local.py
                return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        pieces = set[Piece]()
        for line in lines if boot == boot_id() else ():
            sign, _, numbers = line.partition(" ")
            with suppress(ValueError):  # the last line may be cut
                begin, end = map(int, numbers.split(" "))
                (pieces.add if sign == "+" else pieces.discard)((begin, end))
        return cls(path, facts, sorted(pieces))

    @classmethod
    def create(cls, path: str, facts: ObjectFacts) -> CachedObject:
        """Make the sparse file of an object, in place of any other."""
        ranges, file = Path(ranges_of(path)), Path(path)
        for one in (ranges, file):
            one.parent.mkdir(parents=True, exist_ok=True)
            one.unlink(missing_ok=True)  # who reads the old file keeps it
        for suffix in (".idx", ".tokens.idx"):  # they were made here, of the old file
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        with file.open("wb") as stream:
            stream.truncate(facts.size)
        os.utime(file, (facts.modified, facts.modified))
        new = ranges.with_name(f".{ranges.name}.new")
        new.write_text(json.dumps({**asdict(facts), "boot": boot_id()}) + "\n", "utf-8")
        new.replace(ranges)
        return cls(path, facts)

    @property
    def pieces(self) -> Iterator[Piece]:
        """The pieces that are there, in order."""
        return zip(list(self._begins), list(self._ends), strict=True)

    def overlapping(self, begin: int, end: int) -> list[Piece]:
        """Return the pieces that have some of the bytes [begin, end)."""
        first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
        return list(zip(self._begins[first:last], self._ends[first:last], strict=True))

    def missing(self, begin: int, end: int) -> list[Piece]:
        """Return the parts of [begin, end) that are not there."""
        gaps, at = list[Piece](), begin
        for first, last in self.overlapping(begin, end):
            if first > at:
                gaps.append((at, first))
            at = max(at, last)
        return [*gaps, (at, end)] if at < end else gaps

    def add(self, begin: int, data: bytes | memoryview) -> None:
        """Write a piece that is not there, not even in part."""
        fd = os.open(self.path, os.O_WRONLY)
        try:
            done, view = 0, memoryview(data)
            while done < len(view):
                done += os.pwrite(fd, view[done:], begin + done)
        finally:
            os.close(fd)
        self._append(f"+ {begin} {begin + len(data)}")
        self._list((begin, begin + len(data)))

    def drop(self, piece: Piece) -> None:
        """Give back the bytes of a piece."""
        self._unlist(piece)
        self._append(f"- {piece[0]} {piece[1]}")
        punch(self.path, *piece)

    def _list(self, piece: Piece) -> None:
        place = bisect_left(self._begins, piece[0])
        self._begins.insert(place, piece[0])
        self._ends.insert(place, piece[1])

    def _unlist(self, piece: Piece) -> None:
        place = bisect_left(self._begins, piece[0])
        del self._begins[place], self._ends[place]

    def _append(self, line: str) -> None:
        with Path(ranges_of(self.path)).open("ab", buffering=0) as journal:
            journal.write(f"{line}\n".encode())


def known_objects(root: str) -> Iterator[CachedObject]:
    """Yield the objects that are in a cache."""
    for folder, _, names in os.walk(f"{root}{FOLDER}"):
        for name in names:
            if (found := CachedObject.load(os.path.join(folder, name))) is not None:  # noqa: PTH118
                yield found


def overlaps(pieces: Iterable[Piece], gap: Piece) -> bool:
    """Return whether some pieces have bytes of another."""
    return any(begin < gap[1] and gap[0] < end for begin, end in pieces)


def without(begin: int, end: int, pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the parts of [begin, end) that are in none of some pieces."""
    for first, last in sorted(pieces):
        if last > begin and first < end:
            if first > begin:
                yield begin, first
            begin = max(begin, last)
    if begin < end:
        yield begin, end


def punch(path: str, begin: int, end: int) -> None:
    """Give back the bytes [begin, end) of a file; they read as zeros then."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_WRONLY)
    try:
        length = ctypes.c_long(end - begin)
        if libc.fallocate(fd, _PUNCH | _KEEP_SIZE, ctypes.c_long(begin), length):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(fd)
