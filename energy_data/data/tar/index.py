"""`shard.tar.idx`: where each sample of a shard begins, and where the last one ends (uint64 each).

Offsets are those that Energon stores: of the first header of each sample's first part, extended
headers included, then of the end marker. `scan` finds them, in 4 us per file if files are small.
An index is loaded when its shard is first read, and checked against the shard: an index of another
version of the tar is an error here, instead of garbage in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from energy_data.data.files.local import LocalFile, Version, Window, open_file
from energy_data.data.files.offsets import IndexedFile, Offsets, read_block
from energy_data.data.shards import MOST_PARTS, Scan, ScannedPart
from energy_data.data.tar.header import BLOCK, ZEROS, Fault, TarMember, split_name, walk
from energy_data.errors import StructureError

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
        advice = "Restore it, or name another file."
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


def open_block(
    tar: str, index: str, count: int, version: Version, _of_index: Version, block: int
) -> IndexedFile:
    """Return a shard with a block of its index. StructureError if the index does not fit it."""
    shard, end = read_block(index, open_file(tar, version), count, block, _ADVICE)
    _check_end(end, shard.file)
    if Path(index).stat().st_mtime_ns < shard.file.mtime_ns:
        _probe(shard.offsets, shard.file)
    return shard


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


def fits(end: int, size: int) -> bool:
    """Return whether an index that ends there may be of a tar of some bytes."""
    return end <= size and end % BLOCK == 0
