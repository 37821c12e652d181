"""Shards: what they are in each format, those of a part of a dataset, and those of a path."""

from __future__ import annotations

import glob
import os
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.core.recipe import listed
from energy_data.data import wids
from energy_data.data.files.local import LocalFile, Version, keep_open, open_file, version_of
from energy_data.data.files.offsets import BLOCK_ROWS, SUFFIX, IndexedFile, Offsets
from energy_data.data.splits import MOST_OF_PATTERN, expand, refuse_splits
from energy_data.errors import SpecError
from energy_data.remote.cache_space import Range, merged
from energy_data.remote.client import held

NO_INDEX = np.empty(0, np.uint64)  # of shards that need none
MOST_PARTS = 50  # different extensions that are remembered

_PROBES = 32  # places of the data that a fingerprint reads
_NEAR = 3 << 14  # bytes between two places that are fetched with them: small files whole
_PROBED = 4096  # bytes at each
_MOST_OTHERS = 200_000  # files in a folder that are neither shards nor indices


FindRows = Callable[[int, Sequence[str]], list[int | None]]
"""Returns the row of each key in a shard, which comes by its number; None: it has none."""


Progress = Callable[[int, int], None]
"""Called with how much is done, and how much there is."""

Reframe = Callable[[str, Progress | None], None]
"""Writes a shard again so that its samples can be read at random."""


class ScannedPart(NamedTuple):
    """One part of one sample."""

    sample: int
    extension: str
    offset: int  # of the payload
    size: int


@dataclass
class Scan:
    """The contents of a shard."""

    offsets: Offsets  # [samples + 1], as in the index; empty: the shard needs no index
    keys: list[str]
    extensions: list[str]  # the first different ones, at most MOST_PARTS
    parts: list[ScannedPart] = field(default_factory=list)  # empty unless requested
    rows: int = 0  # samples of a shard that needs no index
    version: tuple[int, int | float | str] | None = None  # of the file, if it is kept

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self.offsets) - 1 if len(self.offsets) else self.rows


@dataclass(frozen=True, eq=False)
class ShardKind:
    """What the shards of one format are: files with samples, most with an index next to each."""

    suffix: str  # of their names
    packed: tuple[str, ...]  # suffixes of compressed ones, which cannot be read at random
    scan: Callable[[LocalFile], Scan]  # StructureError for damage; runs in worker processes
    # Whether the end of an index may be of a file of some bytes; None: shards need no index.
    fits: Callable[[int, int], bool] | None = None
    open_block: Callable[..., IndexedFile] | None = None  # see `shard_opener`
    # The shards of a folder, if a file there lists them, with what that says of each (None: they
    # have to be scanned); None: all that are in it.
    listed: Callable[[Path], Mapping[str, Scan | None] | None] = lambda _: None
    index: str | None = None  # the file of a folder that is the index of its shards; None: SUFFIX
    # Where samples have keys of their own. Elsewhere the key of a sample is its row.
    scan_parts: Callable[[LocalFile], Scan] | None = None  # `scan`, with keys and parts
    key_finder: Callable[[PartShards], FindRows] | None = None
    reads_end: bool = False  # whether a shard is opened by its last bytes, too
    reframe: Reframe | None = None  # of formats whose files may be compressed in one frame

    @property
    def endings(self) -> tuple[str, ...]:
        """The suffixes of all its files."""
        return self.suffix, *self.packed


class KeptRows(Protocol):
    """The rows of a part that a filter keeps."""

    def __len__(self) -> int: ...

    @property
    def facts(self) -> tuple[object, ...]:
        """What a fingerprint depends on."""

    def rows(self, kept: Int64s) -> Int64s:
        """Return the rows of kept samples, by their numbers."""

    def check(self) -> None:
        """Raise StructureError if it does not fit the part. Reads all of it."""


@dataclass(frozen=True)
class PartShards:
    """The shards of one part of a dataset, and the rows of them that are its samples.

    Rows count all samples of all shards, samples those that are not excluded.
    """

    kind: ShardKind
    root: str  # the folder that names of shards are relative to
    shards: list[str]  # in order
    counts: list[int]  # rows in each
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)  # shard -> keys
    gaps: Sequence[int] = ()  # for each excluded row, in order, the number of samples before it
    unknown: Sequence[str] = ()  # what split.yaml excludes, but does not exist
    uuid: str | None = None  # of the preparation
    indices: list[str] | None = None  # [shards] paths; None: next to the shards
    kept: KeptRows | None = None  # those of a filter, which samples and gaps then count; None: all

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return (sum(self.counts) if self.kept is None else len(self.kept)) - len(self.gaps)

    def row_of(self, sample: int) -> int:
        """Return the row of a sample."""
        place = sample + bisect_right(self.gaps, sample)
        return place if self.kept is None else int(self.kept.rows(np.array([place]))[0])

    def paths(self, number: int) -> tuple[str, str]:
        """Return the paths of a shard and of its index."""
        shard = f"{self.root}/{self.shards[number]}"
        if self.kind.index:
            return shard, f"{self.root}/{self.kind.index}"
        return shard, self.indices[number] if self.indices else shard + SUFFIX

    def fingerprint(self, *facts: object) -> str:
        """Return 16 hex digits that depend on the data and on `facts`, not on how it was prepared.

        The data is the names and counts of all shards, and for up to 32 shards the size and some
        bytes. Data that is written again with other samples is noticed; a change of single bytes
        may not be. Costs up to 32 small reads. StructureError if a shard cannot be read.
        """
        digest = blake2b(digest_size=8)
        rows = [row for row, count in enumerate(self.counts) if count]
        named = [(self.shards[row], self.counts[row]) for row in rows]
        if self.kept is not None:
            facts = (*facts, self.kept.facts)
        digest.update(repr((facts, named)).encode(errors="surrogateescape"))
        files, places = self._probed()
        with held(self.probes()):  # all at once
            for file in files:
                digest.update(some_bytes(file, places))
        return digest.hexdigest()

    def probes(self) -> list[Range]:
        """Return the bytes of shards that the fingerprint reads, as they are fetched."""
        files, places = self._probed()
        return merged((one for file in files for one in _probes(file, places)), _NEAR)

    def _probed(self) -> tuple[list[LocalFile], int]:
        """Return the shards that a fingerprint reads, and the places of each."""
        rows = [row for row, count in enumerate(self.counts) if count]
        chosen = np.unique(np.linspace(0, len(rows) - 1, _PROBES).astype(np.int64)).tolist()
        files = [open_file(self.paths(rows[number])[0]) for number in chosen]
        return files, _PROBES // max(len(files), 1)


_Facts = tuple[str, str, int, Version | None, Version | None]
"""What `open_block` takes, before the number of the block: paths of a shard and of its index, the
number of its samples, and the versions of both files."""


class OpenShard(Protocol):
    """Opens a shard of a part by its number, with the block of its index that has sample `row`."""

    def __call__(self, number: int, row: int = 0) -> IndexedFile: ...  # noqa: D102


def shard_opener(part: PartShards) -> OpenShard:
    """Return a function that opens the shards of a part.

    It raises StructureError for a shard without an index, or with one of another file, and for a
    shard that was changed after the first call for it; or, if it was never prepared, after this
    call. One that was replaced before is opened again, even if it was open already.
    """

    def facts_of(number: int) -> _Facts:
        path, index = part.paths(number)
        return path, index, part.counts[number], version_of(path), version_of(index)

    known = {number: facts_of(number) for number in range(len(part.indices or ()))}

    def open_shard(number: int, row: int = 0) -> IndexedFile:
        facts = known.get(number)
        if facts is None:
            facts = known[number] = facts_of(number)
        assert part.kind.open_block is not None, "it has indices"
        shard: IndexedFile = keep_open(part.kind.open_block, *facts, row // BLOCK_ROWS)
        return shard

    return open_shard


def offsets_of(open_shard: OpenShard, number: int, count: int) -> Offsets:
    """Return the complete index of a shard with `count` samples, uint64 [count + 1]."""
    blocks = [open_shard(number, row).offsets for row in range(0, max(count, 1), BLOCK_ROWS)]
    return np.concatenate([*(block[:-1] for block in blocks), blocks[-1][-1:]])


def some_bytes(file: LocalFile, places: int = _PROBES) -> bytes:
    """Return the size of a file and 4 KiB at each of `places` places: all of a small file."""
    begins = [begin for _, begin, _ in _probes(file, places)]
    data = bytearray(places * min(_PROBED, file.size))
    file.read_rows(memoryview(data), begins)
    return repr(file.size).encode() + data


def _probes(file: LocalFile, places: int) -> list[Range]:
    """Return some places of a file, of 4 KiB, or of its size if it is smaller."""
    size = min(_PROBED, file.size)
    begins = np.linspace(0, file.size - size, places).astype(np.int64).tolist()
    return [(file.path, begin, begin + size) for begin in begins if size]


def find_shards(
    folder: Path, kind: ShardKind, exclude: str | None = None
) -> Mapping[str, Scan | None]:
    """Return the shards in a folder and the folders in it, as `find_files` does.

    Each comes with its contents if a file in the folder has them, else None. Raises SpecError if
    there are none, and if some are compressed, or are links to files that do not exist, too.
    """
    known = kind.listed(folder)
    found = (
        find_files(folder, kind.endings, exclude)
        if known is None
        else _without(known, exclude, folder)
    )
    if not found:
        raise no_shards(folder, [kind.suffix])
    missing = [shard for shard in found if not (folder / shard).is_file()]
    if missing:
        raise SpecError(
            f"{folder}: {len(missing)} of its {len(found)} shards are not files, or links to files "
            f"that do not exist, {missing[0]} first. Restore them, or remove the links."
        )
    refuse_packed(found, kind, folder)
    return dict.fromkeys(found) if known is None else {shard: known[shard] for shard in found}


def no_shards(folder: Path | str, suffixes: Iterable[str]) -> SpecError:
    """Return the error for a folder without shards of some formats."""
    problem = f"there are no {listed(suffixes)} files in it"
    return SpecError(f"{folder}: {problem}. Name a folder that has some.")


def find_files(folder: Path, endings: tuple[str, ...], exclude: str | None = None) -> list[str]:
    """Return the files in a folder with some endings, relative to it, in Energon's order.

    Folders in it are searched too; those that are links as well, but none twice. exclude: leave out
    those whose name contains a match of this regular expression.

    Raises SpecError if the folder or one in it cannot be read, or if `exclude` leaves none.
    """
    shards, others = [], 0
    for path in _files_below(folder):
        if path.endswith(endings):
            shards.append(Path(path).relative_to(folder))
        elif not path.endswith(SUFFIX):
            others += 1
            if others > _MOST_OTHERS:
                raise SpecError(
                    f"{folder}: it has more than {_MOST_OTHERS:,} files that do not end with "
                    f"{listed(endings)}. Name the folder of one dataset, and move others out of it."
                )
    return _without([str(shard) for shard in sorted(shards)], exclude, folder)


def _without(shards: Iterable[str], exclude: str | None, folder: Path) -> list[str]:
    """Return shards whose names contain no match of a regular expression, if it is given.

    SpecError if it is none, and if none are left.
    """
    found = list(shards)
    if exclude is None or not found:
        return found
    try:
        found = [shard for shard in found if not re.search(exclude, shard)]
    except re.error as error:
        problem = f"it is not a regular expression: {error}"
        raise SpecError(f"exclude {exclude!r}: {problem}.") from error
    if not found:
        raise SpecError(f"{folder}: exclude {exclude!r} leaves none of its shards.")
    return found


def named_shards(path: str, kind: ShardKind) -> list[str]:
    """Return the shards that a path stands for, as `named_files` does.

    Raises SpecError if there are none, or if some do not exist or are compressed, too.
    """
    found = named_files(path)
    missing = [shard for shard in found if not Path(shard).is_file()]
    if missing or not found:
        problem = "it matches no file"
        if found:
            problem = f"{len(missing)} of its {len(found)} files are missing, {missing[0]!r} first"
        raise SpecError(
            f"{path}: {problem}. Name a {kind.suffix} file, a folder of them, or a pattern such as "
            f"shard-{{000..099}}{kind.suffix}."
        )
    return refuse_packed(found, kind, path)


def named_files(path: str) -> list[str]:
    """Return the files that a path stands for: itself, a pattern, or what an index of WIDS lists.

    A pattern has braces or stars. Stars do not stand for indices. StructureError if braces stand
    for more than 1,000,000 files, SpecError for an index of another kind.
    """
    if "{" in path:
        return list(expand([path], Path(), MOST_OF_PATTERN))
    if glob.has_magic(path) and not Path(path).exists():
        found = glob.glob(path)  # noqa: PTH207 - the path may be relative or absolute
        return sorted(file for file in found if not file.endswith(SUFFIX))
    return wids.listed_files(path) if path.endswith(wids.SUFFIX) else [path]


def _files_below(folder: Path) -> Iterator[str]:
    """Yield the paths of all files in a folder and the folders in it, which must be readable.

    Linked folders come last, so that a file is found by its own path where there are two.
    """
    folders, links, seen = [str(folder)], list[str](), set[tuple[int, int]]()
    try:
        while folders or links:
            at = (folders or links).pop()
            facts = Path(at).stat()
            if (facts.st_dev, facts.st_ino) in seen:
                continue
            seen.add((facts.st_dev, facts.st_ino))
            with os.scandir(at) as entries:
                for entry in sorted(entries, key=lambda entry: entry.name, reverse=True):
                    if entry.is_dir():
                        (links if entry.is_symlink() else folders).append(entry.path)
                    else:
                        yield entry.path
    except OSError as error:
        problem = f"{error.filename} cannot be read: {error.strerror}"
        raise SpecError(f"{folder}: {problem}. Check the permissions.") from error


def plain_shards(path: str, kind: ShardKind) -> tuple[str, list[str], Mapping[str, Scan | None]]:
    """Return a folder, the shards of a path, relative to it, and what is known of these.

    Raises SpecError as `find_shards` for a folder, and if its files are named for several splits;
    and as `named_shards` for another path.
    """
    if Path(path).is_dir():
        known = find_shards(Path(path), kind)
        if kind.listed(Path(path)) is None:
            refuse_splits(path, known, kind.suffix)
        return path, list(known), known
    files = named_shards(path, kind)
    root = os.path.commonpath([os.path.dirname(file) for file in files]) or "."  # noqa: PTH120
    return root, [os.path.relpath(file, root) for file in files], {}


def refuse_packed(shards: list[str], kind: ShardKind, where: Path | str) -> list[str]:
    """Return `shards`. SpecError if some are compressed, as those cannot be read at random."""
    packed = [shard for shard in shards if shard.endswith(kind.packed)]
    if packed:
        raise SpecError(
            f"{where}: {packed[0]} and {len(packed) - 1} more are compressed, and samples in them "
            "cannot be read at random. Decompress them (`gunzip`, `unzstd`), or leave them out."
        )
    return shards
