"""Writing filter indices, which `energy_data.data.filter_index` describes and reads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from energy_data.core.arrays import Int64s
from energy_data.core.recipe import listed
from energy_data.data.files.local import write_atomically
from energy_data.data.filter_index import ITEM, VERSION, paths_of
from energy_data.data.nv_meta import NvMeta
from energy_data.data.registry import open_source
from energy_data.errors import SpecError

__all__ = ["build_filter_index", "build_filter_index_from_shard_indexes"]


class CountedShard(Protocol):
    """A shard with its number of samples, such as Energon's `ShardInfo`."""

    @property
    def name(self) -> str:
        """Its path in the dataset."""

    @property
    def count(self) -> int:
        """The number of its samples."""


def build_filter_index(
    dataset_path: str | Path,
    filter_name: str,
    indexes: Iterable[int],
    *,
    shards: Sequence[CountedShard] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a filter index of a dataset: `filter: NAME` then draws only these samples.

    Args:
        dataset_path: A prepared dataset, or a file of JSONL, Parquet or tokens.
        filter_name: Its name.
        indexes: Numbers of the samples to keep, in increasing order. They count the samples of all
            shards, in the order of `.info.json`, whatever part they are in.
        shards: All shards with their counts; None: those of the preparation, or of the file.
        overwrite: Replace a filter of this name. Otherwise it is a FileExistsError.

    Memory: 8 bytes per sample that is kept. Raises ValueError for numbers that do not increase, or
    that are out of range; SpecError if the dataset is not prepared.
    """
    counts = _counts_of(Path(dataset_path), shards)
    numbers = _increasing(indexes, "of the dataset", sum(counts.values()))
    ends = np.cumsum(list(counts.values()))
    kept = np.diff(np.searchsorted(numbers, ends), prepend=0).tolist()
    _write(
        Path(dataset_path), filter_name, dict(zip(counts, kept, strict=True)), numbers, overwrite
    )


def build_filter_index_from_shard_indexes(
    dataset_path: str | Path,
    filter_name: str,
    indexes_by_shard: Mapping[str, Iterable[int]],
    *,
    shards: Sequence[CountedShard] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a filter index from numbers in each shard, which begin at 0; see `build_filter_index`.

    A shard that is not given is left out. Raises ValueError also for shards that do not exist.
    """
    counts = _counts_of(Path(dataset_path), shards)
    if unknown := sorted(indexes_by_shard.keys() - counts.keys()):
        raise ValueError(f"{dataset_path}: there is no shard {unknown[0]!r}. Correct the name.")
    kept, numbers, first = {}, [], 0
    for shard, count in counts.items():
        found = _increasing(indexes_by_shard.get(shard, ()), f"of shard {shard!r}", count)
        kept[shard] = len(found)
        numbers.append(found + first)
        first += count
    _write(Path(dataset_path), filter_name, kept, np.concatenate(numbers), overwrite)


def _counts_of(dataset: Path, shards: Sequence[CountedShard] | None) -> dict[str, int]:
    """Return the number of samples of each shard."""
    if shards is not None:
        return {shard.name: int(shard.count) for shard in shards}
    if dataset.is_file():
        return {dataset.name: len(open_source(dataset))}
    meta = NvMeta.of(dataset)
    if meta is None:
        raise SpecError(f"{dataset}: it is not prepared. Run `energy-data prepare` first.")
    return meta.counts


def _increasing(indexes: Iterable[int], where: str, count: int) -> Int64s:
    """Return numbers of samples, checked."""
    numbers = np.fromiter(indexes, np.int64)
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
        wrong = next(int(one) for one in numbers if not 0 <= one < count)
        raise ValueError(f"sample {wrong} {where} does not exist: it has {count} samples.")
    if (places := np.flatnonzero(np.diff(numbers) <= 0)).size:
        one, other = numbers[places[0] : places[0] + 2].tolist()
        raise ValueError(f"samples {where} must increase, found {one} before {other}. Sort them.")
    return numbers


def _write(
    dataset: Path, name: str, kept: Mapping[str, int], numbers: Int64s, overwrite: bool
) -> None:
    """Write both files, the small one last: readers begin with it."""
    json_path, index_path = paths_of(dataset, name)
    if not overwrite and (found := [path for path in (json_path, index_path) if path.exists()]):
        names = listed(map(str, found))
        raise FileExistsError(f"{names}: it exists. Give another name, or pass overwrite=True.")
    content = {"version": VERSION, "filtered_shard_counts": kept}
    text = f"{json.dumps(content, indent=2, sort_keys=True)}\n"
    write = partial(write_atomically, mode=dataset.stat().st_mode)
    write(str(index_path), numbers.astype(ITEM).tobytes())
    write(str(json_path), text.encode())
