"""Makes keys unique that occur in several shards: moves each file into a folder of its shard.

a.tar: 0001.txt, b.tar: 0001.txt  ->  a.tar: a.tar/0001.txt, b.tar: b.tar/0001.txt
"""

from __future__ import annotations

import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from energy_data.data.files.local import open_anew
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
        keys = scan(open_anew(str(root / shard))).keys
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
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    part = Path(name)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - of a descriptor
            _copy(path, file, f"{shard}/")
        part.chmod(path.stat().st_mode)
        Path(f"{path}{SUFFIX}").unlink(missing_ok=True)
        part.replace(path)
    except tarfile.TarError as error:
        raise StructureError(f"cannot be copied: {error}. Restore it.", shard=shard) from error
    finally:
        part.unlink(missing_ok=True)


def _copy(path: Path, file: object, prefix: str) -> None:
    with (
        tarfile.open(path, "r:") as old,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as new,  # type: ignore[call-overload]  # any file that is open for writing
    ):
        for member in old:
            member.name = prefix + member.name
            if member.islnk():  # to another member
                member.linkname = prefix + member.linkname
            records = member.pax_headers.items()
            member.pax_headers = {
                name: value for name, value in records if name not in ("path", "linkpath")
            }
            new.format = _format(member)
            new.addfile(member, old.extractfile(member) if member.isreg() else None)


def _format(member: tarfile.TarInfo) -> int:
    """Return the plainest format that can hold the member."""
    try:
        member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    except ValueError:
        return tarfile.PAX_FORMAT
    return tarfile.USTAR_FORMAT
