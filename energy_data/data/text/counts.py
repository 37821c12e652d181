"""Files of token counts: how many tokens each sample of a shard has, as `prepare-tokens` counts.

page-0.jsonl.tokens.idx    header: what counted, size of the shard, samples, sum; then uint32 each
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.data.files.local import open_file, version_of
from energy_data.data.files.offsets import SUFFIX
from energy_data.data.shards import PartShards
from energy_data.errors import StructureError

_MAGIC = b"EDTOKENS"
HEADER = struct.Struct("<8s16sQQQ")  # magic, fingerprint of what counted, size, samples, sum
DTYPE = np.dtype("<u4")
MOST = 2**32 - 1  # tokens of a sample

_APART = 4096  # samples between two counts that are read one by one
_ADVICE = "Run `energy-data prepare-tokens` again, or remove the file."


class ShardCounts(NamedTuple):
    """The token counts of one shard."""

    path: str
    counted_by: str  # fingerprint of what counted
    shard_size: int  # bytes
    samples: int
    total: int  # tokens; 0 as long as some are missing
    done: int  # samples whose counts are in the file

    def read(self, rows: Int64s) -> Int64s:
        """Return the tokens of samples by their rows in the shard, which are sorted."""
        file, found = open_file(self.path), np.empty(len(rows), np.int64)
        for places in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(rows) > _APART) + 1):
            if len(places):
                first, end = int(rows[places[0]]), int(rows[places[-1]]) + 1
                data = file.read(HEADER.size + first * DTYPE.itemsize, (end - first) * 4)
                found[places] = np.frombuffer(data, DTYPE)[rows[places] - first]
        return found

    @property
    def header(self) -> bytes:
        """The beginning of the file."""
        facts = self.shard_size, self.samples, self.total
        return HEADER.pack(_MAGIC, self.counted_by.encode(), *facts)


def counts_path(shard: str, ending: str = "") -> str:
    """Return the file with the counts of a shard. Its suffix is that of indices."""
    return f"{shard}.tokens{ending}{SUFFIX}"


def read_counts(path: str) -> ShardCounts | None:
    """Return what a file of counts says; None if there is none. StructureError for other files."""
    if not Path(path).is_file():
        return None
    file = open_file(path)
    data = file.read(0, HEADER.size) if file.size >= HEADER.size else b""
    if not data.startswith(_MAGIC):
        raise StructureError(f"it has no counts of tokens. {_ADVICE}", shard=path)
    _, counted_by, size, samples, total = HEADER.unpack(data)
    done = (file.size - HEADER.size) // DTYPE.itemsize
    return ShardCounts(path, counted_by.decode("latin-1"), size, samples, total, done)


def counts_of(part: PartShards) -> Sequence[ShardCounts | None] | None:
    """Return the counts of each shard with samples; None if some has none, or of another counter.

    Reads a header per shard. StructureError if counts are of another shard.
    """
    found: list[ShardCounts | None] = []
    for number, samples in enumerate(part.counts):
        shard, _ = part.paths(number)
        counts = read_counts(counts_path(shard)) if samples else None
        if counts is None and samples:
            return None
        if counts is not None:
            _check(counts, shard, samples)
        found.append(counts)
    counters = {counts.counted_by for counts in found if counts is not None}
    return found if len(counters) == 1 else None


def _check(counts: ShardCounts, shard: str, samples: int) -> None:
    """Raise StructureError if counts are not those of a shard."""
    version = version_of(shard)
    size = version.size if version else 0
    if counts.done != counts.samples:
        problem = f"it has {counts.done} counts for {counts.samples} samples"
    elif (counts.samples, counts.shard_size) != (samples, size):
        problem = (
            f"it counts {counts.samples} samples of {counts.shard_size} bytes, but {shard} has "
            f"{samples} of {size}"
        )
    else:
        return
    raise StructureError(f"{problem}. {_ADVICE}", shard=counts.path)
