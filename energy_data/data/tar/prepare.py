"""Prepares a folder of tars: writes indices next to the tars, and `.nv-meta`, in Energon's formats.

    summary = prepare(Path("/data/coco"), split="8,1,1")

Energon can load what it writes, and this package loads what Energon has prepared.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import yaml

from energy_data.data.files.local import atomic_file, open_file, write_atomically
from energy_data.data.files.offsets import SUFFIX, write_index
from energy_data.data.tar import nv_meta as meta
from energy_data.data.tar.index import (
    MOST_PARTS,
    Scan,
    find_tars,
    scan,
)
from energy_data.data.tar.sqlite import new_index
from energy_data.data.typed.dataset_yaml import definition_of
from energy_data.errors import SpecError, StructureError

_BYTES_PER_WORKER = 1 << 30  # reading them takes about as long as starting a process

Progress = Callable[[int, int], None]
"""Called with the number of finished shards and the number of all shards."""


@dataclass
class Summary:
    """What `prepare` did."""

    path: str
    shard_counts: dict[str, int] = field(default_factory=dict)  # samples per shard
    split_parts: dict[str, list[str]] = field(default_factory=dict)  # shards per part
    extensions: list[str] = field(default_factory=list)  # of parts of samples, at most 50
    empty_shards: list[str] = field(default_factory=list)  # without samples; they are left out

    @property
    def num_samples(self) -> int:
        """The number of samples in all shards."""
        return sum(self.shard_counts.values())


def prepare(
    path: Path,
    *,
    split: str | Mapping[str, Sequence[str]] = "1,0,0",
    exclude: str | None = None,
    force: bool = False,
    sqlite: bool = False,
    shuffle: bool = False,
    fix_duplicates: bool = False,
    crude: bool = True,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Index all tars below `path` and write its `.nv-meta`; return a summary.

    Args:
        path: The folder of the dataset.
        split: Shares of the shards, in order of their names, for train, val and test; or a mapping
            of part to patterns of shards. A pattern is a regular expression that matches the start
            of the name, as in Energon, after braces are expanded. A pattern that matches no shard
            is tried as a glob.
        exclude: Leave out tars whose name contains a match of this regular expression.
        force: Prepare a dataset that is prepared already.
        sqlite: Also write `index.sqlite`, which finds each part of each sample by its key. Keys
            must be unique then.
        shuffle: Assign shards to the parts of a ratio in Energon's random order, which is fixed.
        fix_duplicates: If a key occurs in several shards, move all files into folders named like
            their shards. This rewrites the tars.
        crude: Write a dataset.yaml for crude samples if there is none.
        workers: Number of processes; by default one per GiB, at most one per CPU.
        progress: Called when a shard is finished.

    Raises SpecError for invalid arguments, StructureError for a damaged tar. In both cases nothing
    is written to `.nv-meta`.
    """
    if not path.is_dir():
        raise SpecError(f"{path}: it is not a folder. Name the folder that contains the tars.")
    if meta.is_prepared(path) and not force:
        raise SpecError(f"{path}: it is prepared. Use `force` (--force) to prepare it again.")
    if isinstance(split, str):
        divide = meta.by_ratio(split, path, shuffle=shuffle)
    else:
        divide = meta.by_patterns(split, path)
    shards = find_tars(path, exclude)
    if fix_duplicates and has_duplicates(path, shards):
        for shard in shards:
            prefix_names(path, shard)
    summary = _index_all(path, shards, divide, sqlite=sqlite, workers=workers, progress=progress)
    _declare(path, summary, crude=crude)
    return summary


def reindex(
    path: Path,
    *,
    sqlite: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Summary:
    """Index the tars of a prepared dataset again; its split and its dataset.yaml are kept.

    sqlite: Write `index.sqlite`. If it exists, it is always rewritten.

    Raises SpecError if the dataset is not prepared, StructureError if the number of samples of a
    shard has changed.
    """
    if not meta.is_prepared(path):
        raise SpecError(f"{path}: it is not prepared. Leave out `tar_index_only`.")
    counts = meta.read_counts(path)
    sqlite = sqlite or (path / meta.FOLDER / meta.SQLITE).exists()
    shards = list(counts)
    summary = _index_all(
        path, shards, lambda _: {}, sqlite=sqlite, workers=workers, progress=progress
    )
    for shard, count in counts.items():
        if summary.shard_counts.get(shard, 0) != count:
            raise StructureError(
                f"it has {summary.shard_counts.get(shard, 0)} samples, but had {count} when it was "
                "prepared. Run `energy-data prepare --force`.",
                dataset=str(path),
                shard=shard,
            )
    _write(path, {meta.UUID: str(uuid4()), meta.INFO: _info(counts)})
    return summary


def _index_all(
    path: Path,
    shards: list[str],
    divide: meta.Divide,
    *,
    sqlite: bool,
    workers: int | None,
    progress: Progress | None,
) -> Summary:
    """Index all shards and return their summary; write the database atomically."""
    summary, extensions = Summary(str(path)), dict[str, None]()
    database = path / meta.FOLDER / meta.SQLITE
    with new_index(database) if sqlite else nullcontext() as add_to_index:
        found = zip(shards, _scan_all(path, shards, workers, with_parts=sqlite), strict=True)
        for number, (shard, one) in enumerate(found, 1):
            if one.num_samples:
                summary.shard_counts[shard] = one.num_samples
            else:
                summary.empty_shards.append(shard)
            extensions |= dict.fromkeys(one.extensions)
            if add_to_index and one.num_samples:
                add_to_index(shard, one)
            if progress:
                progress(number, len(shards))
        if not summary.shard_counts:
            raise SpecError(f"{path}: its tars contain no samples. Name another folder.")
        summary.split_parts = divide(list(summary.shard_counts))
    summary.extensions = list(extensions)[:MOST_PARTS]
    return summary


def _scan_all(
    path: Path, shards: list[str], workers: int | None, *, with_parts: bool
) -> Iterator[Scan]:
    """Index the shards, several at a time; yield their contents in the order of the shards."""
    task = partial(_index, str(path), with_parts)
    if workers is None:
        size = sum((path / shard).stat().st_size for shard in shards)
        workers = min(os.cpu_count() or 1, size // _BYTES_PER_WORKER)
    if workers <= 1:
        yield from map(task, shards)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imports torch once, which takes seconds
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        at_once = 16 * workers  # results wait in memory
        for begin in range(0, len(shards), at_once):
            yield from pool.map(task, shards[begin : begin + at_once])


def _index(root: str, with_parts: bool, shard: str) -> Scan:
    """Write the index of one shard; runs in worker processes."""
    tar = f"{root}/{shard}"
    found = scan(open_file(tar), with_parts=with_parts)
    write_index(tar, found.offsets, [tar + SUFFIX])
    return found if with_parts else Scan(found.offsets, [], found.extensions)


def _declare(path: Path, summary: Summary, *, crude: bool) -> None:
    """Write `.nv-meta`. `.info.json` comes last, as it marks the dataset as prepared."""
    folder = path / meta.FOLDER
    try:
        old = meta.read_mapping(folder / meta.SPLIT) or {}
    except StructureError:
        old = {}
    split = {
        "split_parts": {part: meta.collapse(names) for part, names in summary.split_parts.items()},
        "exclude": old.get("exclude", []),  # written by hand
    }
    texts = {meta.SPLIT: yaml.safe_dump(split, sort_keys=False, allow_unicode=True)}
    if crude and not (folder / meta.DATASET).exists():
        texts[meta.DATASET] = yaml.safe_dump(definition_of(None), sort_keys=False)
    _write(path, texts | {meta.UUID: str(uuid4()), meta.INFO: _info(summary.shard_counts)})


def _write(path: Path, texts: Mapping[str, str]) -> None:
    """Write files into `.nv-meta`, in order."""
    for name, text in texts.items():
        write_atomically(str(path / meta.FOLDER / name), text.encode(), path.stat().st_mode)


def _info(counts: Mapping[str, int]) -> str:
    info = {
        "energon_version": f"energy_data {version('energy_data')}",
        "shard_counts": dict(counts),
    }
    return json.dumps(info, indent=2)


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
            member.name = prefix + member.name
            if member.islnk():  # to another member
                member.linkname = prefix + member.linkname
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
