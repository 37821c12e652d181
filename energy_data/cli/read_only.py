"""What `energy-data prepare` does where it may not write: it keeps indices in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from energy_data.cli.options import counting
from energy_data.data.indexing import keep_indices
from energy_data.data.registry import format_of
from energy_data.data.shards import find_shards, named_shards
from energy_data.errors import ReadOnlyError, SpecError


def keep_in_cache(
    path: Path, refused: ReadOnlyError, asked: Sequence[str], workers: int | None, *, shown: bool
) -> int:
    """Index what is in a read-only store, in the cache; return the number of samples.

    asked: the options that say what else is written. Parts and types in a cache would be those of
    one machine, and a run on another would have other data; so with some it is a SpecError.
    """
    kind = format_of(path, prepared=False).shards
    if asked or kind is None or kind.fits is None:
        what = ", ".join(asked) if asked else "`.nv-meta`"
        raise SpecError(
            f"{refused} The store is read-only, and what {what} asks for is written to it. Use "
            "credentials that may write, or prepare a copy on a disk. Without options, indices "
            "are kept in the cache."
        ) from refused
    if path.is_dir():
        files = [f"{path}/{shard}" for shard in find_shards(path, kind)]
    else:
        files = named_shards(str(path), kind)
    with counting(shown, "Indexing shards") as progress:
        return keep_indices(files, kind, workers, progress)
