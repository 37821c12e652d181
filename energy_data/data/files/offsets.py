"""Index files: the offset of each sample in a file, and where the last one ends, uint64 each.

An index stands next to its file, or in the user's cache folder if that folder cannot be written.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energy_data.data.files.local import write_whole
from energy_data.errors import SpecError

SUFFIX = ".idx"

Offsets = npt.NDArray[np.uint64]


def cache_folder(name: str) -> Path:
    """Return a folder of ours in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "energy_data", name)


def index_in_cache(path: str) -> str:
    """Return the path of the index of a file in the user's cache folder."""
    real = os.path.realpath(path).encode("utf-8", "surrogateescape")
    name = hashlib.blake2b(real, digest_size=16).hexdigest()
    return str(cache_folder("index") / f"{name}{SUFFIX}")


def last_offset(index: str, path: str) -> int:
    """Return the last offset of an index that is as new as its file; -1 if there is none."""
    try:
        facts = Path(index).stat()
        size = facts.st_size
        if size < 8 or size % 8 or facts.st_mtime_ns < Path(path).stat().st_mtime_ns:
            return -1
        with Path(index).open("rb") as file:
            file.seek(size - 8)
            return int.from_bytes(file.read(8), "little")
    except OSError:
        return -1


def write_index(path: str, offsets: Offsets, places: Sequence[str]) -> str:
    """Write the index of a file to the first of `places` that can be written; return that.

    The index gets the permissions of the file. Raises SpecError if no place can be written.
    """
    data, mode = offsets.astype("<u8").tobytes(), Path(path).stat().st_mode
    for place in places:
        try:
            write_whole(place, data, mode)
            return place
        except OSError as error:  # read-only, or full
            reason = error.strerror
    advice = ", or set XDG_CACHE_HOME to a folder that is" if len(places) > 1 else ""
    raise SpecError(
        f"{path}: its index cannot be written to {' or '.join(places)}: {reason}. "
        f"Make the folder writable{advice}."
    )
