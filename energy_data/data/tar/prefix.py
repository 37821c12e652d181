"""Keys that several tars of a dataset have in common, and what makes them different."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from energy_data.data.files.local import atomic_file, open_file
from energy_data.data.files.offsets import SUFFIX
from energy_data.data.tar.index import scan
from energy_data.errors import StructureError


def has_duplicates(root: Path, shards: Sequence[str]) -> bool:
    """Return whether a key is in two shards. Reads all headers; holds all keys.

    Raises StructureError if a key is twice in one shard, which no folder can fix.
    """
    seen: set[str] = set()
    total = 0
    for shard in shards:
        keys = scan(open_file(str(root / shard))).keys
        seen.update(keys)
        total += len(keys)
    return len(seen) < total


def prefix_names(root: Path, shard: str) -> None:
    """Rewrite a shard with a folder named like the shard in front of each name.

    The new file replaces the old one when it is complete: this needs as much disk space again, and
    a process that is killed leaves either the old or the new shard. The index, which no longer
    fits, is removed.
    """
    path = root / shard
    try:
        with atomic_file(str(path), path.stat().st_mode) as file:
            _copy(path, file, f"{shard}/")
            Path(f"{path}{SUFFIX}").unlink(missing_ok=True)
    except tarfile.TarError as error:
        raise StructureError(f"cannot be copied: {error}. Restore it.", shard=shard) from error


def _copy(path: Path, file: BinaryIO, prefix: str) -> None:
    with (
        tarfile.open(path, "r:") as old,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as new,
    ):
        for member in old:
            member.name = prefix + member.name.removeprefix(
                prefix
            )  # as a first try may have left it
            if member.islnk():  # to another member
                member.linkname = prefix + member.linkname.removeprefix(prefix)
            records = member.pax_headers.items()
            member.pax_headers = {
                name: value for name, value in records if name not in ("path", "linkpath")
            }
            try:  # the simplest format that can hold the member
                member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
                new.format = tarfile.USTAR_FORMAT
            except ValueError:
                new.format = tarfile.PAX_FORMAT
            new.addfile(member, old.extractfile(member) if member.isreg() else None)
