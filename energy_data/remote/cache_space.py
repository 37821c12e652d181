"""The space of a cache: which pieces are held, which one goes next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from energy_data.remote.cached_ranges import CachedObject, ObjectFacts, Piece
from energy_data.remote.mirror_paths import WHOLE

NEAR = 1 << 18
"""Bytes between two ranges of a file up to which they are fetched by one request.

They take as long as a request: with 64 in flight, and 50 ms for each, 256 KiB are 330 MB/s.
"""

_DROPPED = 50  # pieces are dropped until a 50th of the cache is free

Range = tuple[str, int, int]
"""Path of an object in the cache, and bytes [begin, end) of it."""


class OwnerKey(NamedTuple):
    """Who holds ranges: a part of a client, such as a lane."""

    client: int
    name: str


class CacheSpace:
    """Objects with their pieces, at most `limit` bytes of them together.

    What an owner holds stays. Of the rest, objects that no client uses go first; then what was used
    last: samples have a new order in each epoch, so what was just used is used last again, and what
    waits from the epoch before is used sooner. What is wanted goes only for what is waited for.
    What an owner wanted that is gone, as in a restart, is kept longest.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self.may_drop = True  # False: clients are yet to say what they hold
        self.objects: dict[str, CachedObject] = {}
        self._held: dict[str, dict[OwnerKey, list[Piece]]] = {}
        self._wanted: dict[str, dict[OwnerKey, list[Piece]]] = {}
        self._released = OrderedDict[Range, None]()  # pieces that no owner holds, the latest last

    def load(self, found: CachedObject) -> CachedObject:
        """Count the pieces of an object, as older than all that are released from now on."""
        self.forget(found.path)
        self.objects[found.path] = found
        for begin, end in found.pieces:
            self.used += end - begin
            self._released[found.path, begin, end] = None
        return found

    def forget(self, path: str) -> None:
        """Leave out an object."""
        if (known := self.objects.pop(path, None)) is not None:
            for begin, end in known.pieces:
                self.used -= end - begin
                self._released.pop((path, begin, end), None)

    def facts_in(self, folder: str) -> ObjectFacts:
        """Return what is known of some object in a folder, which has one."""
        return next(self.objects[path].facts for path in self.objects if path.startswith(folder))

    def want(self, owner: OwnerKey, ranges: Sequence[Range]) -> None:
        """Replace what an owner wants; what it holds and no longer wants is released."""
        before = {path: owners.pop(owner, ()) for path, owners in self._wanted.items()}
        for path, begin, end in ranges:
            self._wanted.setdefault(path, {}).setdefault(owner, []).append((begin, end))
        kept = set(ranges)
        for path in [path for path, owners in self._held.items() if owner in owners]:
            mine = self._held[path].pop(owner)
            stays = [piece for piece in mine if (path, *piece) in kept]
            if stays:
                self._held[path][owner] = stays
            for piece in set(mine).difference(stays):
                self._release(path, piece)
        if not ranges:  # it is gone, and who comes in its place goes on there
            self._keep_longest(before)

    def hold(self, owner: OwnerKey, ranges: Iterable[Range]) -> None:
        """Hold ranges for an owner until it wants others."""
        for path, begin, end in ranges:
            self._held.setdefault(path, {}).setdefault(owner, []).append((begin, end))
            for piece in self.objects[path].overlapping(begin, end):
                self._released.pop((path, *piece), None)

    def added(self, path: str, piece: Piece) -> None:
        """Note a piece that is there now. Its bytes were counted before by `make_room`."""
        if not _has(self._held, path, piece):
            self._released[path, *piece] = None

    def make_room(self, size: int, in_use: Callable[[str], bool], *, urgent: bool) -> bool:
        """Count `size` bytes more, after others were dropped for them; False: they do not fit."""
        if self.used + size > self.limit and self.may_drop:
            # Looking for pieces costs time for each of them, so more are dropped at once.
            needed = self.used + size - self.limit + self.limit // _DROPPED
            for path, begin, end in list(self._to_drop(needed, in_use, urgent=urgent)):
                self.objects[path].drop((begin, end))
                self._released.pop((path, begin, end))
                self.used -= end - begin
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    @property
    def too_small(self) -> str:
        """What an error says if the ranges that are held do not fit."""
        return (
            f"the cache may hold {self.limit:,} bytes, but what is read at a time has "
            f"{self.held_bytes:,}. Set ENERGY_DATA_CACHE_SIZE, on a larger disk "
            "ENERGY_DATA_CACHE, or a smaller shuffle_buffer_size or max_samples_per_sequence"
        )

    @property
    def held_bytes(self) -> int:
        """The bytes of all ranges that are held, there or not."""
        return sum(
            end - begin
            for owners in self._held.values()
            for _, begin, end in merged(("", *one) for held in owners.values() for one in held)
        )

    def _keep_longest(self, unread: Mapping[str, Sequence[Piece]]) -> None:
        for path, pieces in unread.items():
            if (found := self.objects.get(path)) is not None:
                for piece in chain.from_iterable(found.overlapping(*one) for one in pieces):
                    if (path, *piece) in self._released:
                        self._released.move_to_end((path, *piece), last=False)

    def _release(self, path: str, held: Piece) -> None:
        if (found := self.objects.get(path)) is not None:
            for piece in found.overlapping(*held):
                if not _has(self._held, path, piece):
                    self._released[path, *piece] = None

    def _to_drop(
        self, needed: int, in_use: Callable[[str], bool], *, urgent: bool
    ) -> Iterator[Range]:
        unused, used, wanted, whole = (list[Range]() for _ in range(4))
        for one in self._released:
            if one[0].endswith(WHOLE):  # indices are read at any time, without a wait
                if not in_use(one[0]):
                    whole.append(one)
            elif not in_use(one[0]):
                unused.append(one)
            elif _has(self._wanted, one[0], one[1:]):
                wanted.append(one)
            else:
                used.append(one)
        for path, begin, end in (*unused, *reversed(used)):
            if needed <= 0:
                return
            needed -= end - begin
            yield path, begin, end
        needed -= self.limit // _DROPPED
        for path, begin, end in (*(reversed(wanted) if urgent else ()), *whole):
            if needed <= 0:
                return
            needed -= end - begin
            yield path, begin, end


def _has(ranges: Mapping[str, Mapping[OwnerKey, Sequence[Piece]]], path: str, piece: Piece) -> bool:
    """Return whether an owner has some bytes of a piece."""
    owners = ranges.get(path, {})
    return any(
        begin < piece[1] and piece[0] < end for held in owners.values() for begin, end in held
    )


def merged(ranges: Iterable[Range], near: int = 0) -> list[Range]:
    """Return ranges with the same bytes, and those between two of them that are at most `near`."""
    found = list[Range]()
    for path, begin, end in sorted(ranges):
        if found and found[-1][0] == path and begin <= found[-1][2] + near:
            found[-1] = path, found[-1][1], max(found[-1][2], end)
        else:
            found.append((path, begin, end))
    return found
