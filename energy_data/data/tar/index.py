"""`shard.tar.idx`: where each sample of a shard begins, and where the last one ends (uint64 each).

Offsets are those that Energon stores: of the first header of each sample's first part, extended
headers included, then of the end marker. `scan` finds them, in 4 us per file if files are small.
An index is loaded when its shard is first read, and checked against the shard: an index of another
version of the tar is an error here, instead of garbage in a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track

from energy_data.data.files.local import (
    LocalFile,
    Version,
    Window,
    keep_open,
    open_file,
    version_of,
)
from energy_data.data.files.offsets import (
    BLOCK_ROWS,
    IndexedFile,
    Offsets,
    ensure_index,
    num_samples,
    read_block,
)
from energy_data.data.shards import PartShards, find_shards, named_shards
from energy_data.data.tar.header import BLOCK, ZEROS, Fault, TarMember, split_name, walk
from energy_data.errors import SpecError, StructureError

MOST_PARTS = 50  # different extensions that are remembered

_CHUNK = 1 << 20  # bytes read at once where files are small
_HEADERS = 1024  # bytes read at once where files are large: a small file may follow its header
_LARGE = 16384  # mean bytes of large files
_PROBED = 64  # files that are read as large ones before their mean size is known
_SECOND = "Rename one, or write the parts of a sample one after another."
_PROBES = 64  # samples checked if an index is older than its tar
_ADVICE = "Run `energy-data prepare --tar-index-only`."
_OLD_INDEX = "its index is older than the tar and does not fit"
_COMPRESSED = {
    b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd",
}  # fmt: skip
"""How compressed files begin."""


class ScannedPart(NamedTuple):
    """One part of one sample."""

    sample: int
    extension: str
    offset: int  # of the payload
    size: int


@dataclass
class Scan:
    """The contents of a shard."""

    offsets: npt.NDArray[np.uint64]  # [samples + 1], as in the index
    keys: list[str]
    extensions: list[str]  # the first different ones, at most MOST_PARTS
    parts: list[ScannedPart] = field(default_factory=list)  # empty unless requested

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return len(self.offsets) - 1


def scan(file: LocalFile, *, with_parts: bool = False) -> Scan:
    """Return the samples of a tar.

    Raises StructureError if the tar is cut or damaged, or if two samples have one key.
    """
    try:
        return _group(file, with_parts)
    except Fault as fault:
        if fault.offset == 0 and file.size >= BLOCK:
            _check_kind(file)
        raise StructureError(
            fault.problem, shard=file.path, key=fault.key, offset=fault.offset
        ) from fault


def _check_kind(file: LocalFile) -> None:
    """Raise StructureError if the first block of a file, which is damaged, is not of a tar."""
    head = file.read(0, BLOCK)
    kinds = [kind for begin, kind in _COMPRESSED.items() if head.startswith(begin)]
    if kinds:
        problem = f"it is compressed with {kinds[0]}, so samples cannot be read at random"
        raise StructureError(f"{problem}. Decompress it.", shard=file.path)
    if head[257:262] != b"ustar":
        problem = f"no tar header, so it is not a tar: it begins with {head[:8]!r}"
        advice = "Name a tar, a .jsonl file or a folder of them, or restore it if it was damaged."
        raise StructureError(f"{problem}. {advice}", shard=file.path, offset=0)


def _group(file: LocalFile, with_parts: bool) -> Scan:
    offsets: list[int] = []
    keys: dict[str, None] = {}
    extensions: dict[str, None] = {}
    parts: list[ScannedPart] = []
    last, end = None, 0
    for member in _members(file):
        end = member.end
        named = split_name(member.name) if member.regular else None
        if named is None:
            continue
        key, extension = named
        if key != last:
            if key in keys:
                raise Fault(f"a second sample has this key. {_SECOND}", member.offset, key)
            keys[key] = None
            offsets.append(member.offset)
            last = key
        if extension not in extensions and len(extensions) < MOST_PARTS:
            extensions[extension] = None
        if with_parts:
            parts.append(ScannedPart(len(offsets) - 1, extension, member.data, member.size))
    return Scan(np.array([*offsets, end], np.uint64), list(keys), list(extensions), parts)


def _members(file: LocalFile) -> Iterator[TarMember]:
    """Yield all members up to the end marker. Raises Fault for a tar that is cut or damaged."""
    read_small, read_large = Window(file, _CHUNK).read, Window(file, _HEADERS).read
    at, count, size = 0, 0, file.size
    while True:
        if at >= size:
            problem = f"it ends at byte {size} without the zeros that end a tar, so it was cut."
            raise Fault(f"{problem} Restore it.", at)
        read = read_large if count < _PROBED or at >= count * _LARGE else read_small
        if size - at >= BLOCK and read(at, BLOCK) == ZEROS:
            break
        member = next(walk(read, at, size))
        yield member
        at, count = member.end, count + 1
    _check_rest(file, at)


def _check_rest(file: LocalFile, end: int) -> None:
    """Raise Fault if anything but zeros follows the end marker."""
    for at in range(end, file.size, _CHUNK):
        data = file.read(at, min(_CHUNK, file.size - at))
        if data.count(0) != len(data):
            problem = f"more data follows the end of the tar at byte {end}. Tars cannot be joined "
            problem += "by `cat`: keep them separate, or write a new one."
            raise Fault(problem, at + len(data) - len(data.lstrip(b"\0")))


class OpenShard(Protocol):
    """Opens a shard of a part by its number, with the block of its index that has sample `row`."""

    def __call__(self, number: int, row: int = 0) -> IndexedFile: ...  # noqa: D102


def shard_opener(part: PartShards) -> OpenShard:
    """Return a function that opens the shards of a part.

    It raises StructureError for a shard without an index, or with one of another tar, and for a
    shard that was changed after the first call for it. One that was replaced before is opened
    again, even if it was open already.
    """
    known: dict[int, tuple[str, str, int, Version | None, Version | None]] = {}

    def open_shard(number: int, row: int = 0) -> IndexedFile:
        facts = known.get(number)
        if facts is None:
            tar, index = part.paths(number)
            versions = version_of(tar), version_of(index)
            facts = known[number] = (tar, index, part.counts[number], *versions)
        shard: IndexedFile = keep_open(_open_shard, *facts, row // BLOCK_ROWS)
        return shard

    return open_shard


def _open_shard(
    tar: str, index: str, count: int, version: Version, _of_index: Version, block: int
) -> IndexedFile:
    shard, end = read_block(index, open_file(tar, version), count, block, _ADVICE)
    _check_end(end, shard.file)
    if Path(index).stat().st_mtime_ns < shard.file.mtime_ns:
        _probe(shard.offsets, shard.file)
    return shard


def offsets_of(open_shard: OpenShard, number: int, count: int) -> Offsets:
    """Return the complete index of a shard with `count` samples, uint64 [count + 1]."""
    blocks = [open_shard(number, row).offsets for row in range(0, max(count, 1), BLOCK_ROWS)]
    return np.concatenate([*(block[:-1] for block in blocks), blocks[-1][-1:]])


def _check_end(end: int, file: LocalFile) -> None:
    """Raise StructureError unless the tar ends where its last sample ends in the index."""
    if end > file.size or end % BLOCK:
        raise _fault(file, f"its index ends at byte {end}, but the tar has {file.size} bytes")
    left = min(BLOCK, file.size - end)
    if left and file.read(end, left) != ZEROS[:left]:
        raise _fault(file, "more data follows the last sample of its index", end)


def _probe(offsets: Offsets, file: LocalFile) -> None:
    """Raise StructureError unless some samples are where an index older than its tar has them.

    Copying a dataset can leave tars that are newer than their indices. A tar was rewritten only if
    its samples are not at their offsets.
    """
    rows = np.unique(np.linspace(0, len(offsets) - 2, _PROBES).astype(np.int64))
    for row in rows.tolist() if len(offsets) > 1 else []:
        begin, end = int(offsets[row]), int(offsets[row + 1])
        try:
            members = list(walk(file.read, begin, min(end, file.size)))
        except Fault as fault:
            raise _fault(file, _OLD_INDEX, fault.offset) from fault
        files = [member for member in members if member.regular]
        keys = {named[0] for member in files if (named := split_name(member.name))}
        if len(keys) != 1:
            raise _fault(file, _OLD_INDEX, begin)


def _fault(file: LocalFile, problem: str, offset: int | None = None) -> StructureError:
    return StructureError(f"{problem}. {_ADVICE}", shard=file.path, offset=offset)


def find_plain(path: str) -> PartShards:
    """Return the tars that `path` stands for as one part; index those that have no index.

    Raises SpecError if there are none or no samples in them, StructureError for a damaged tar.
    """
    if Path(path).is_dir():
        root, shards = path, find_shards(Path(path))
    else:
        tars = named_shards(path)
        root = os.path.commonpath([os.path.dirname(tar) for tar in tars]) or "."  # noqa: PTH120
        shards = [os.path.relpath(tar, root) for tar in tars]
    console = Console(stderr=True)
    shown = track(
        [f"{root}/{shard}" for shard in shards],
        "Indexing tars",
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    indices = [ensure_index(tar, _fits, lambda file: scan(file).offsets) for tar in shown]
    counts = [num_samples(index) for index in indices]
    if not sum(counts):
        raise SpecError(f"{path}: its {len(shards)} tars have no samples in them. Name others.")
    return PartShards(root, shards, counts, indices=indices)


def _fits(end: int, size: int) -> bool:
    return end <= size and end % BLOCK == 0
