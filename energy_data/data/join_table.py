"""The table of a join: which samples of its members belong together. Computed once, and cached.

Row r of the table has, for each member, the number in its part of the sample with the key of row r,
or -1. Rows are in the order of the first member. The name of the file is a digest of everything the
table depends on, so a table is never stale, only missing.

Samples are matched by sorting digests of their keys, the 16 bytes of BLAKE2b: two of 10**9 keys
have equal digests with a probability of 10**-21. Memory is 16 bytes per key, and 50 while two
datasets are matched, whatever the keys are.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from energy_data.core.arrays import Int64s
from energy_data.data.files.local import atomic_file, open_file
from energy_data.data.files.offsets import cache_folder
from energy_data.data.shards import PartShards, ShardKind
from energy_data.data.source import Source
from energy_data.data.tar.sample_keys import SampleKeys
from energy_data.errors import SpecError, StructureError

log = logging.getLogger(__name__)

Nonmatch = Literal["error", "skip", "none"]
Table = npt.NDArray[np.integer[Any]]
"""int32 or int64 [rows, members]."""
Digests = npt.NDArray[np.uint64]
"""[keys, 2]."""

PREFIX, SUFFIX = "join_", ".npy"
_VERSION = 1
_NAMED = 5  # keys in a message
_GAP = 512  # rows that are cheaper to read than to skip


class JoinMember(NamedTuple):
    """One dataset of a join."""

    source: Source  # all of a part of a dataset of tars
    nonmatch: Nonmatch = "error"  # what to do with samples of the first member without a match here

    @property
    def path(self) -> str:
        """The path of the dataset."""
        return str(getattr(self.source, "path", "a member"))

    @property
    def part(self) -> PartShards:
        """The part that the source reads. SpecError if it reads none, or some samples of one."""
        part: PartShards | None = getattr(self.source, "part", None)
        kind: ShardKind | None = part.kind if part else getattr(self.source, "kind", None)
        if part is None or part.kind.key_finder is None:
            raise SpecError(
                f"{self.path}: only datasets of tars can be joined, by the keys of their samples, "
                f"found {f'{kind.suffix} files' if kind else 'another format'}. Write it as tars."
            )
        subset = getattr(getattr(self.source, "options", None), "subset", None)
        if subset is not None:
            problem = f"only complete parts of datasets can be joined, found the subset {subset}"
            raise SpecError(f"{self.path}: {problem}. Give the join the `subset`.")
        return part


class Kept(NamedTuple):
    """A table in a file."""

    path: str
    rows: int


def open_table(members: Sequence[JoinMember], folder: str | None) -> Kept:
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
            return Kept(place, len(JoinTable(place, len(members))))
    table = _compute(members)
    for place in places:
        try:
            with atomic_file(place, 0o644) as file:
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


class JoinTable:
    """The rows of a table in a file, read as they are needed.

    The file is not mapped into memory: a process that reads a map of a file that was cut dies.

    Raises StructureError if the file is not a table of that many members.
    """

    def __init__(self, path: str, num_members: int) -> None:
        try:
            with Path(path).open("rb") as stream:
                version = npy_format.read_magic(stream)
                if version != (1, 0):
                    raise ValueError(f"its format has version {version}")
                shape, fortran, self._dtype = npy_format.read_array_header_1_0(stream)
                self._begin = stream.tell()
            self._file = open_file(path)
        except (OSError, ValueError, StructureError) as error:
            raise _damaged(path, f"it cannot be read: {error}") from error
        if len(shape) != 2 or shape[1] != num_members or self._dtype.str not in ("<i4", "<i8"):
            raise _damaged(path, f"it has the shape {shape} and the type {self._dtype}")
        self._rows, self._members = shape
        self._row_bytes = num_members * self._dtype.itemsize
        expected = self._begin + self._rows * self._row_bytes
        if fortran or self._file.size != expected:
            raise _damaged(path, f"it has {self._file.size} bytes where {expected} were expected")

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, numbers: Int64s) -> Int64s:
        """Return rows, int64 [numbers, members]. StructureError if the file was cut."""
        order = numbers.argsort(kind="stable")
        ordered = numbers[order]
        is_first = np.diff(ordered, prepend=-_GAP - 1) > _GAP  # of a run that is read at once
        firsts = ordered[is_first]
        ends = ordered[np.append(is_first, True)[1:]] + 1
        data = b"".join(map(self._read, firsts.tolist(), ends.tolist()))
        rows = np.frombuffer(data, self._dtype).reshape(-1, self._members)
        before = np.append(0, np.cumsum(ends - firsts))  # rows in `data` before each run
        run = np.cumsum(is_first) - 1
        found = np.empty((len(numbers), self._members), np.int64)
        found[order] = rows[ordered - firsts[run] + before[run]]
        return found

    def _read(self, first: int, end: int) -> bytes:
        size = self._row_bytes
        try:
            return self._file.read(self._begin + first * size, (end - first) * size)
        except StructureError as error:
            raise _damaged(self._file.path, "it was cut, or cannot be read") from error


def _damaged(path: str, problem: str) -> StructureError:
    return StructureError(
        f"{path}: {problem}; it is not a table of this join. Remove the file: it is recomputed."
    )


def _digest(members: Sequence[JoinMember]) -> str:
    """Return a digest of everything a table depends on, in 32 hex digits; paths do not count."""
    digest = blake2b(digest_size=16)
    for member in members:
        part = member.part
        facts = (_VERSION, part.uuid or list(_stamps(member)), part.shards, part.counts)
        for fact in (*facts, list(part.gaps), member.nonmatch):
            digest.update(repr(fact).encode("utf-8", "surrogateescape") + b"\n")
    return digest.hexdigest()


def _stamps(member: JoinMember) -> Iterator[tuple[int, int]]:
    """Yield size and time of each tar, for datasets that were never prepared."""
    for shard in member.part.shards:
        try:
            facts = Path(member.part.root, shard).stat()
        except OSError as error:
            raise StructureError(
                f"cannot be opened: {error.strerror}. Restore it.",
                dataset=member.path,
                shard=shard,
            ) from error
        yield facts.st_size, facts.st_mtime_ns


def _compute(members: Sequence[JoinMember]) -> Table:
    """Return the table of a join."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        shards = sum(len(member.part.shards) for member in members)
        task = progress.add_task("Matching keys", total=shards)
        sides = [_Side(member, lambda: progress.advance(task)) for member in members]
        first = sides[0]
        rows = np.arange(len(first.digests))
        columns = [rows]
        for side in sides[1:]:
            found = _match(first.digests, side.digests)
            if side.member.nonmatch == "error" and (found < 0).any():
                raise _without_match(first, side, np.flatnonzero(found < 0))
            columns.append(found)
            if side.member.nonmatch == "skip":
                rows = rows[found[rows] >= 0]
    if not len(rows):
        paths = ", ".join(member.path for member in members)
        raise SpecError(
            f"the join has no samples, found no key in all of {paths}. Check the keys of their "
            "samples: the names in the tars up to the first dot."
        )
    largest = max(len(member.source) for member in members)
    kind = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    return np.stack([column[rows] for column in columns], axis=1).astype(kind)


class _Side:
    """The keys of one member as digests; those of excluded samples are left out.

    Raises StructureError for a shard that is damaged or does not fit its index, SpecError for a key
    that occurs twice.
    """

    def __init__(self, member: JoinMember, progress: Callable[[], None]) -> None:
        self.member = member
        self._part = part = member.part
        self._keys = SampleKeys(part)
        digests = []
        for number in range(len(part.shards)):
            digests.append(_digests(self._keys.of_shard(number)))
            progress()
        rows = [gap + before for before, gap in enumerate(part.gaps)]
        self.digests: Digests = np.delete(np.concatenate(digests), rows, axis=0)
        self._refuse_duplicates()

    def name(self, place: int) -> str:
        """Return the shard and the key at a place, for messages."""
        ends = list(accumulate(self._part.counts))
        row = self._part.row_of(place)
        number = bisect_right(ends, row)
        key = self._keys.of_shard(number)[row - ends[number]]  # from the end
        return f"{self._part.shards[number]}/{key}"

    def _refuse_duplicates(self) -> None:
        order, same = _sorted(self.digests)
        places = np.flatnonzero(same)
        pairs = sorted(zip(order[places].tolist(), order[places + 1].tolist(), strict=True))
        if pairs:
            named = [f"{self.name(one)} and {self.name(two)}" for one, two in pairs[:_NAMED]]
            raise SpecError(
                f"{self.member.path}: keys of a join must be unique, found {len(pairs)} more than "
                f"once: {'; '.join(named)}. Rename the samples, or exclude some in split.yaml."
            )


def _digests(keys: Iterable[str]) -> Digests:
    """Return the digest of each key. 0.9 us per key."""
    found = b"".join(
        [blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).digest() for key in keys]
    )
    return np.frombuffer(found, "<u8").reshape(-1, 2)


def _match(primary: Digests, other: Digests) -> Int64s:
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


def _without_match(first: _Side, side: _Side, places: Int64s) -> SpecError:
    named = ", ".join(first.name(place) for place in places[:_NAMED].tolist())
    return SpecError(
        f"{side.member.path}: it has no match for {len(places)} of {len(first.digests)} samples of "
        f"{first.member.path}, found none for {named}. Write `nonmatch: skip` to skip such "
        "samples, or `nonmatch: none` to get None in their place."
    )
