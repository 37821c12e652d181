"""Tars without preparation: found by a folder, a name or a pattern, and indexed on first use.

An index is kept next to its tar, or in the user's cache folder if that cannot be written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from energy_data.errors import SpecError
from energy_data.sources.tar_headers import BLOCK
from energy_data.sources.tar_index import Offsets, index_beside, index_in_cache
from energy_data.sources.tar_meta import SplitPart, expand
from energy_data.sources.tar_scan import scan
from energy_data.storage.files import open_anew, write_whole

_PACKED = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


def find_plain(path: str) -> SplitPart:
    """Return the tars that `path` stands for as one part, indexed.

    Raises SpecError if there are none or no samples in them, StructureError for a damaged tar.
    """
    if Path(path).is_dir():
        root, shards = path, find_tars(Path(path))
    else:
        tars = _named(path)
        root = os.path.commonpath([os.path.dirname(tar) for tar in tars]) or "."  # noqa: PTH120
        shards = [os.path.relpath(tar, root) for tar in tars]
    counts = [_count(tar) for tar in _watched([f"{root}/{shard}" for shard in shards])]
    if not sum(counts):
        raise SpecError(f"{path}: its {len(shards)} tars have no samples in them. Name others.")
    return SplitPart(root, shards, counts)


def find_tars(folder: Path, *, packed: bool = False) -> list[str]:
    """Return the tars in a folder and the folders in it, relative to it, in Energon's order.

    Raises SpecError if there are none, or compressed ones unless `packed`.
    """
    found = [path for path in folder.rglob("*") if path.name.endswith((".tar", *_PACKED))]
    tars = [str(path.relative_to(folder)) for path in sorted(found) if path.is_file()]
    if not tars:
        raise SpecError(f"{folder}: there are no .tar files in it. Name a folder that has some.")
    return tars if packed else refuse_packed(tars, folder)


def refuse_packed(tars: list[str], where: Path | str) -> list[str]:
    """Return `tars`; raise SpecError if some are compressed, as those cannot be read at random."""
    packed = [tar for tar in tars if tar.endswith(_PACKED)]
    if packed:
        raise SpecError(
            f"{where}: {packed[0]} and {len(packed) - 1} more are compressed, and samples in them "
            "cannot be reached at random. Decompress them (`gunzip`), or leave them out."
        )
    return tars


def find_index(tar: str) -> str | None:
    """Return the path of an index that is as new as its tar and can belong to it, if there is."""
    return next((index for index in _places(tar) if index_fits(index, tar)), None)


def index_fits(index: str, tar: str) -> bool:
    """Return whether there is an index as new as its tar that can belong to it."""
    try:
        facts = Path(index).stat()
        size = facts.st_size
        if size < 8 or size % 8 or facts.st_mtime_ns < Path(tar).stat().st_mtime_ns:
            return False
        with Path(index).open("rb") as file:
            file.seek(size - 8)
            end = int(np.frombuffer(file.read(8), "<u8")[0])
    except OSError:
        return False
    return end <= Path(tar).stat().st_size and end % BLOCK == 0


def write_index(index: str, offsets: Offsets, mode: int) -> None:
    """Write an index; mode: of its tar, whose permissions it gets."""
    write_whole(index, offsets.astype("<u8").tobytes(), mode)


def _named(path: str) -> list[str]:
    shards = list(islice(expand([path], Path()), 1_000_000)) if "{" in path else [path]
    missing = [shard for shard in shards if not Path(shard).is_file()]
    if missing or not shards:
        raise SpecError(
            f"{path}: {len(missing)} of its {len(shards)} files are missing, {missing[:1]} first. "
            "Name a tar, a folder of tars, or a pattern such as shard-{000..099}.tar."
        )
    return refuse_packed(shards, path)


def _watched(tars: list[str]) -> Iterator[str]:
    """Yield the tars; if some have to be indexed and someone looks on, with a progress bar."""
    console = Console(stderr=True)
    if not console.is_terminal or all(find_index(tar) for tar in tars):
        yield from tars
        return
    yield from track(tars, "Indexing tars", console=console, transient=True)


def _count(tar: str) -> int:
    """Return the number of samples in a tar; index it if that has not been done."""
    index = find_index(tar)
    if index is not None:
        return Path(index).stat().st_size // 8 - 1
    offsets = scan(open_anew(tar)).offsets
    mode = Path(tar).stat().st_mode
    beside, cached = _places(tar)
    try:
        write_index(beside, offsets, mode)
    except OSError:  # read-only, or full
        try:
            write_index(cached, offsets, mode)
        except OSError as error:
            raise SpecError(
                f"{tar}: its index can be written neither to {beside} nor to {cached}: "
                f"{error.strerror}. Set XDG_CACHE_HOME to a folder that can be written."
            ) from error
    return len(offsets) - 1


def _places(tar: str) -> tuple[str, str]:
    return index_beside(tar), index_in_cache(tar)
