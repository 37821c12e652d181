"""The shards of one part of a dataset, and the files that a path stands for."""

from __future__ import annotations

import glob
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

import numpy as np

from energy_data.data.files.local import LocalFile, open_file
from energy_data.data.files.offsets import SUFFIX
from energy_data.data.splits import MOST_OF_PATTERN, expand
from energy_data.errors import SpecError

_PROBES = 32  # places of the data that a fingerprint reads
_PROBED = 4096  # bytes at each
_PACKED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
_MOST_OTHERS = 200_000  # files in a folder that are neither shards nor indices


@dataclass(frozen=True)
class PartShards:
    """The shards of one part of a dataset, and the rows of them that are its samples.

    Rows count all samples of all shards, samples those that are not excluded.
    """

    root: str  # the folder that names of shards are relative to
    shards: list[str]  # in order
    counts: list[int]  # rows in each
    excluded: Mapping[str, Sequence[str]] = field(default_factory=dict)  # shard -> keys
    gaps: Sequence[int] = ()  # for each excluded row, in order, the number of samples before it
    unknown: Sequence[str] = ()  # what split.yaml excludes, but does not exist
    uuid: str | None = None  # of the preparation
    indices: list[str] | None = None  # [shards] paths; None: next to the shards

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return sum(self.counts) - len(self.gaps)

    def row_of(self, sample: int) -> int:
        """Return the row of a sample."""
        return sample + bisect_right(self.gaps, sample)

    def paths(self, number: int) -> tuple[str, str]:
        """Return the paths of a shard and of its index."""
        shard = f"{self.root}/{self.shards[number]}"
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
        digest.update(repr((facts, named)).encode(errors="surrogateescape"))
        chosen = np.unique(np.linspace(0, len(rows) - 1, _PROBES).astype(np.int64)).tolist()
        for number in chosen:
            file = open_file(self.paths(rows[number])[0])
            digest.update(some_bytes(file, _PROBES // len(chosen)))
        return digest.hexdigest()


def some_bytes(file: LocalFile, places: int = _PROBES) -> bytes:
    """Return the size of a file and 4 KiB at each of `places` places: all of a small file."""
    size = min(_PROBED, file.size)
    begins = np.linspace(0, file.size - size, places).astype(np.int64).tolist()
    return b"".join([repr(file.size).encode(), *(file.read(at, size) for at in begins)])


def find_shards(folder: Path, exclude: str | None = None) -> list[str]:
    """Return the tars in a folder and the folders in it, relative to it, in Energon's order.

    Folders that are links are searched too, but none twice. exclude: leave out the tars whose name
    contains a match of this regular expression.

    Raises SpecError if there are none; if some are compressed, or are links to files that do not
    exist; and if the folder or one in it cannot be read.
    """
    tars, others = [], 0
    for path in _files_below(folder):
        if path.endswith((".tar", *_PACKED)):
            tars.append(Path(path).relative_to(folder))
        elif not path.endswith(SUFFIX):
            others += 1
            if others > _MOST_OTHERS:
                raise SpecError(
                    f"{folder}: it has more than {_MOST_OTHERS:,} files that are not tars. Name "
                    "the folder of one dataset, and move other files out of it."
                )
    if not tars:
        raise SpecError(f"{folder}: there are no .tar files in it. Name a folder that has some.")
    found = [str(tar) for tar in sorted(tars)]
    if exclude is not None:
        try:
            found = [tar for tar in found if not re.search(exclude, tar)]
        except re.error as error:
            problem = f"it is not a regular expression: {error}"
            raise SpecError(f"exclude {exclude!r}: {problem}.") from error
        if not found:
            raise SpecError(f"{folder}: exclude {exclude!r} leaves none of its {len(tars)} tars.")
    return _refuse_packed(_existing(found, folder), folder)


def named_shards(path: str) -> list[str]:
    """Return the tars that a path stands for: a tar, or a pattern with braces or stars.

    Raises SpecError if there are none, or if some do not exist or are compressed; StructureError if
    there are more than 1,000,000.
    """
    found = [path]
    if "{" in path:
        found = list(expand([path], Path(), MOST_OF_PATTERN))
    elif glob.has_magic(path) and not Path(path).exists():
        found = sorted(glob.glob(path))  # noqa: PTH207 - the path may be relative or absolute
    missing = [shard for shard in found if not Path(shard).is_file()]
    if missing or not found:
        raise SpecError(
            f"{path}: {len(missing)} of its {len(found)} files are missing, {missing[:1]} first. "
            "Name a tar, a folder of tars, or a pattern such as shard-{000..099}.tar."
        )
    return _refuse_packed(found, path)


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


def _existing(shards: list[str], folder: Path) -> list[str]:
    """Return `shards`. SpecError if some are not files."""
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        raise SpecError(
            f"{folder}: {len(missing)} of its {len(shards)} tars are not files, or links to files "
            f"that do not exist, {missing[0]} first. Restore them, or remove the links."
        )
    return shards


def _refuse_packed(tars: list[str], where: Path | str) -> list[str]:
    """Return `tars`. SpecError if some are compressed, as those cannot be read at random."""
    packed = [tar for tar in tars if tar.endswith(_PACKED)]
    if packed:
        raise SpecError(
            f"{where}: {packed[0]} and {len(packed) - 1} more are compressed, and samples in them "
            "cannot be read at random. Decompress them (`gunzip`), or leave them out."
        )
    return tars
