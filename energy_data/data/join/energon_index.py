"""The index of a join as Energon computes and names it, so that it finds one that we prepared.

"JIDX0001", the number of members, then rows of (shard, byte offset, bytes) per member, all int64;
-1 where there is no match. Shards are counted in the split part.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energy_data.data.files.local import whole_file
from energy_data.data.join.table import Member, Table
from energy_data.data.tar.index import index_beside, known_shard
from energy_data.data.tar.nv_meta import FOLDER, UUID

_MAGIC = b"JIDX0001"
_AT_ONCE = 1 << 20  # rows


def energon_name(members: Sequence[Member]) -> str | None:
    """Return what Energon calls the index of a join.

    None: it has no name for it that lasts, as it names no split, and more than one excluded sample
    of a dataset in the order of a set, or the join is of datasets that were not prepared.
    """
    digest = sha256()
    for member in members:
        uuid = Path(member.part.root, FOLDER, UUID)
        if not uuid.is_file() or len(member.part.excluded) > 1:
            return None
        digest.update(b"\0uuid=" + uuid.read_bytes() + b"\0excludes=")
        for name in member.part.excluded:
            digest.update(name.encode() + b"\0")
        digest.update(f"\0nonmatch={member.nonmatch}\0".encode())
    return f"join_index_{digest.hexdigest()}.bin"


def write_energon_index(path: str, table: Table, members: Sequence[Member]) -> None:
    """Write the index of a join atomically."""
    places = [_places(member) for member in members]
    with whole_file(path, 0o644) as file:
        file.write(_MAGIC + np.int64(len(members)).tobytes())
        for begin in range(0, len(table), _AT_ONCE):
            rows = table[begin : begin + _AT_ONCE]
            columns = [place[rows[:, n]] for n, place in enumerate(places)]
            file.write(np.stack(columns, axis=1).tobytes())


def _places(member: Member) -> npt.NDArray[np.int64]:
    """Return shard, offset and bytes of each sample of a part; the last row is for -1."""
    rows = [np.empty((0, 3), np.int64)]
    for number, (shard, count) in enumerate(
        zip(member.part.shards, member.part.counts, strict=True)
    ):
        tar = f"{member.part.root}/{shard}"
        offsets = known_shard(tar, index_beside(tar), count).open().offsets.astype(np.int64)
        shards = np.full(count, number)
        rows.append(np.stack([shards, offsets[:-1], np.diff(offsets)], axis=1))
    return np.concatenate([*rows, np.full((1, 3), -1)])
