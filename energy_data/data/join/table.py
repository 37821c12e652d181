"""The table of a join: which samples of its members belong together. Computed once, and cached.

Row r of the table has, for each member, the number in its part of the sample with the key of row r,
or -1. Rows are in the order of the first member. The name of the file is a digest of everything the
table depends on, so a table is never stale, only missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from energy_data.data.files.local import whole_file
from energy_data.data.files.offsets import cache_folder
from energy_data.data.join.match import Digests, PartKeys, digests_of, duplicates, match
from energy_data.data.tar.nv_meta import PartShards
from energy_data.errors import SpecError, StructureError

log = logging.getLogger(__name__)

Nonmatch = Literal["error", "skip", "none"]
Table = npt.NDArray[np.integer[Any]]
"""int32 or int64 [rows, members]."""

PREFIX, SUFFIX = "join_", ".npy"
_VERSION = 1
_NAMED = 5  # keys in a message


class Member(NamedTuple):
    """One dataset of a join."""

    path: str
    part: PartShards
    nonmatch: Nonmatch  # what to do with samples of the first member without a match here


class Kept(NamedTuple):
    """A table in a file."""

    path: str
    rows: int


def open_table(members: Sequence[Member], folder: str | None) -> Kept:
    """Return the table of a join; compute it if there is none, or if a dataset has changed.

    folder: where it is stored; if that cannot be written, in the user's cache folder. Several
    processes may compute it at once: the file is replaced atomically.

    Raises SpecError for duplicate keys, samples without a match where `nonmatch` is
    "error", or a join without samples; StructureError for a damaged shard. Computing takes 1.5 us
    per key, and 2.6 where there is no `index.sqlite` (small samples, page cache warm).
    """
    name = f"{PREFIX}{_digest(members)}{SUFFIX}"
    places = [str(Path(place, name)) for place in (folder, cache_folder("join")) if place]
    for place in places:
        if Path(place).is_file():
            return Kept(place, len(load_table(place, len(members))))
    table = _compute(members)
    for place in places:
        try:
            with whole_file(place, 0o644) as file:
                np.save(file, table, allow_pickle=False)
        except OSError as error:  # read-only, or full
            problem = f"{place}: {error.strerror}"
            continue
        log.info("join of %d samples kept in %s", len(table), place)
        return Kept(place, len(table))
    raise SpecError(
        f"{members[0].path}: the table of its join cannot be written, {problem}. Set "
        "XDG_CACHE_HOME to a folder that can be written."
    )


def load_table(path: str, num_members: int) -> Table:
    """Return a table, mapped into memory. StructureError if the file is not a table."""
    try:
        table: Table = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, f"it cannot be read: {error}") from error
    if table.ndim != 2 or table.shape[1] != num_members or table.dtype.str not in ("<i4", "<i8"):
        raise _damaged(path, f"it has the shape {table.shape} and the type {table.dtype}")
    return table


def _damaged(path: str, problem: str) -> StructureError:
    return StructureError(
        f"{path}: {problem}; it is not a table of this join. Remove the file: it is recomputed."
    )


def _digest(members: Sequence[Member]) -> str:
    """Return a digest of everything a table depends on, in 32 hex digits; paths do not count."""
    digest = blake2b(digest_size=16)
    for path, part, nonmatch in members:
        facts = (_VERSION, part.uuid or list(_stamps(path, part)), part.shards, part.counts)
        for fact in (*facts, sorted(part.excluded), nonmatch):
            digest.update(repr(fact).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def _stamps(path: str, part: PartShards) -> Iterator[tuple[int, int]]:
    """Yield size and time of each tar, for datasets that were never prepared."""
    for shard in part.shards:
        try:
            facts = Path(part.root, shard).stat()
        except OSError as error:
            raise StructureError(
                f"cannot be opened: {error.strerror}. Restore it.", dataset=path, shard=shard
            ) from error
        yield facts.st_size, facts.st_mtime_ns


def _compute(members: Sequence[Member]) -> Table:
    """Return the table of a join."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        shards = sum(len(member.part.shards) for member in members)
        task = progress.add_task("Matching keys", total=shards)
        sides = [_Side(member, lambda: progress.advance(task)) for member in members]
        first = sides[0]
        columns = [first.numbers]
        rows = np.arange(len(first.numbers))
        for side in sides[1:]:
            found = match(first.digests, side.digests)
            if side.member.nonmatch == "error" and (found < 0).any():
                raise _without_match(first, side, np.flatnonzero(found < 0))
            columns.append(np.where(found < 0, -1, side.numbers[found]))
            if side.member.nonmatch == "skip":
                rows = rows[found[rows] >= 0]
    if not len(rows):
        paths = ", ".join(member.path for member in members)
        raise SpecError(
            f"the join has no samples, found no key in all of {paths}. Check the keys of their "
            "samples: the names in the tars up to the first dot."
        )
    largest = max(sum(member.part.counts) for member in members)
    kind = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    return np.stack([column[rows] for column in columns], axis=1).astype(kind)


class _Side:
    """The keys of one member, as digests."""

    def __init__(self, member: Member, progress: Callable[[], None]) -> None:
        self.member, self.keys = member, PartKeys(member.part)
        numbers, digests = [], []
        for numbered, keys in self.keys:
            numbers.append(numbered)
            digests.append(digests_of(keys))
            progress()
        self.numbers: npt.NDArray[np.int64] = np.concatenate(numbers)
        self.digests: Digests = np.concatenate(digests)
        if twice := duplicates(self.digests):
            raise self._twice(twice)

    def name(self, place: int) -> str:
        """Return the shard and the key at a place."""
        return self.keys.name(int(self.numbers[place]))

    def _twice(self, pairs: list[tuple[int, int]]) -> SpecError:
        named = [f"{self.name(one)} and {self.name(two)}" for one, two in pairs[:_NAMED]]
        return SpecError(
            f"{self.member.path}: keys of a join must be unique, found "
            f"{len(pairs)} more than once: {'; '.join(named)}. Rename the samples, or exclude some "
            "in split.yaml."
        )


def _without_match(first: _Side, side: _Side, places: npt.NDArray[np.int64]) -> SpecError:
    named = ", ".join(first.name(place) for place in places[:_NAMED].tolist())
    return SpecError(
        f"{side.member.path}: it has no match for {len(places)} of {len(first.numbers)} samples of "
        f"{first.member.path}, found none for {named}. Write `nonmatch: skip` to skip such "
        "samples, or `nonmatch: none` to get None in their place."
    )
