"""Prepares a folder of shards: writes indices next to them, and `.nv-meta`, in Energon's formats.

    summary = prepare(Path("/data/coco"), split="8,1,1")

Energon can load what it writes for tars, and this package loads what Energon has prepared. Folders
of other shards are our extension.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import yaml

from energy_data.data import indexing
from energy_data.data import nv_meta as meta
from energy_data.data.files.local import write_atomically
from energy_data.data.indexing import IndexedPart
from energy_data.data.shards import MOST_PARTS, Progress, Reframe, Scan, ShardKind, find_shards
from energy_data.data.splits import Divide, as_before, by_patterns, by_ratio, collapse, expand
from energy_data.data.tar.prefix import has_duplicates, prefix_names
from energy_data.data.tar.source import TARS
from energy_data.data.tar.sqlite import new_index
from energy_data.data.typed.dataset_yaml import definition_of
from energy_data.errors import SpecError, StructureError
from energy_data.remote.mirror_paths import is_mirrored
from energy_data.remote.mirrors import remove_published

ALL_TRAIN = "1,0,0"
"""The split of a dataset that has none, if none is given."""

Split = str | Mapping[str, Sequence[str]]
"""Shares for train, val and test; or patterns of the shards of each part."""


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

    @property
    def unused_shards(self) -> list[str]:
        """The shards that are in no part."""
        used = {shard for shards in self.split_parts.values() for shard in shards}
        return [shard for shard in self.shard_counts if shard not in used]


Declare = Callable[[Summary], Mapping[str, str]]
"""Returns the files that declare the type of the samples: names in `.nv-meta`, and their text."""


def prepare(
    path: Path,
    *,
    kind: ShardKind = TARS,
    split: Split | None = None,
    exclude: str | None = None,
    force: bool = False,
    index_only: bool = False,
    sqlite: bool | None = None,
    tmp: Path | None = None,
    shuffle: bool = False,
    fix_duplicates: bool = False,
    reframe: bool = False,
    declare: Declare | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    finish: bool = False,
) -> Summary:
    """Index all shards below `path` and write its `.nv-meta`; return a summary.

    Args:
        path: The folder of the dataset; or the `located` one of a URL, whose store gets what is
            written. What was stopped there continues with the shards that it had not read.
        kind: What its shards are.
        split: Shares of the shards, in order of their names, for train, val and test; or a mapping
            of part to patterns of shards. A pattern is a regular expression that matches the start
            of the name, as in Energon, after braces are expanded. A pattern that matches no shard
            is tried as a glob. None: the split that the dataset has; without one, all shards are
            for train.
        exclude: Leave out shards whose name contains a match of this regular expression.
        force: Prepare a dataset that is prepared already.
        index_only: Index the shards of a prepared dataset again, and keep its split.
        sqlite: Whether to write `index.sqlite`, which finds each part of each sample by its key;
            keys must be unique then. None: only if there is one. False removes it.
        tmp: Folder in which `index.sqlite` is built; by default the dataset's.
        shuffle: Assign shards to the parts of a ratio in Energon's random order, which is fixed.
        fix_duplicates: If a key occurs in several shards, move all files into folders named like
            their shards. This rewrites the tars.
        reframe: Write compressed files again whose samples cannot be read at random.
        declare: Called when all shards are indexed, before anything is written to `.nv-meta`.
            None: write a dataset.yaml for crude samples if there is none.
        workers: Number of processes; by default one per GiB, at most one per CPU.
        progress: Called when a shard is finished.
        finish: Use what `prepare_part` found in all parts of the dataset, and remove it.

    Raises SpecError for invalid arguments and if files cannot be written, StructureError for a
    damaged shard. In both cases `.nv-meta` stays as it was.
    """
    contents, prepared = _contents(path, kind, exclude, force=force, index_only=index_only)
    shards = list(contents)
    if fix_duplicates:
        _check_fix(path, kind, finish=finish)
    divide = _division(path, split, shuffle=shuffle, prepared=prepared)
    if fix_duplicates and has_duplicates(path, shards):
        for shard in shards:
            prefix_names(path, shard)
    old = path / meta.FOLDER / meta.SQLITE
    sqlite = old.exists() if sqlite is None else sqlite
    index_shard = _indexer(path, kind, with_keys=sqlite, reframe=reframe)
    try:
        with meta.rewritten_meta(path) as folder:
            keys = new_index(folder / meta.SQLITE, tmp) if sqlite else nullcontext()
            if finish:
                scans = indexing.read_parts(path, shards, with_keys=sqlite)
            elif is_mirrored(str(path)):
                scans = indexing.resumed_scans(
                    path, contents, index_shard, workers, with_keys=sqlite
                )
            else:
                scans = indexing.index_shards(path, contents, index_shard, workers)
            summary = _index_all(path, shards, scans, keys, progress)
            summary.split_parts = divide(list(summary.shard_counts))
            _write(path, folder, summary, {} if index_only else (declare or _crude)(summary))
        if not sqlite and old.exists():
            remove_published(str(old))
            old.unlink()
        if finish or is_mirrored(str(path)):
            indexing.remove_parts(path)
    except (OSError, sqlite3.OperationalError) as error:
        raise _unwritable(path, error) from error
    return summary


def prepare_part(
    path: Path,
    part: int,
    of: int,
    *,
    kind: ShardKind = TARS,
    exclude: str | None = None,
    force: bool = False,
    index_only: bool = False,
    sqlite: bool | None = None,
    reframe: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> IndexedPart:
    """Index shards part, part + of, part + 2 of, ... of a dataset, for a `prepare` with `finish`.

    Parts need nothing of each other: they may run at the same time, anywhere, in any order, several
    times. What a part finds is kept next to `.nv-meta`, whole or not at all. A part that was
    indexed before is left as it is if its shards did not change. The other arguments, and errors,
    are those of `prepare`; give `prepare` the same ones.
    """
    if not 0 <= part < of:
        raise SpecError(f"{path}: there is no part {part} of {of}. Give 0 <= part < {of}.")
    contents, _ = _contents(path, kind, exclude, force=force, index_only=index_only)
    sqlite = (path / meta.FOLDER / meta.SQLITE).exists() if sqlite is None else sqlite
    try:
        return indexing.index_part(
            path,
            contents,
            indexing.PartOf(part, of),
            index=_indexer(path, kind, with_keys=sqlite, reframe=reframe),
            with_keys=sqlite,
            workers=workers,
            progress=progress,
        )
    except OSError as error:
        raise _unwritable(path, error) from error


def _check_fix(path: Path, kind: ShardKind, *, finish: bool) -> None:
    """Raise SpecError if a dataset cannot be prepared with `fix_duplicates`."""
    name = "`fix_duplicates` (--fix-duplicates)"
    if kind.scan_parts is None:
        raise _not_for(path, kind, f"{name} is for tars")
    if finish:
        raise SpecError(
            f"{path}: {name} rewrites shards, and parts are of shards as they are. Leave it out, "
            "or prepare the dataset at once."
        )
    _check_on_disk(path, name)


def _check_on_disk(path: Path, what: str) -> None:
    """Raise SpecError if shards in a store would be rewritten."""
    if is_mirrored(str(path)):
        raise SpecError(
            f"{path}: {what} rewrites shards, which is done on a disk only. Copy the dataset to "
            "one, prepare it there, and copy it back."
        )


def _indexer(
    path: Path, kind: ShardKind, *, with_keys: bool, reframe: bool
) -> Callable[[str], Scan]:
    """Return what indexes a shard. SpecError for what shards of this kind do not have."""
    scan = kind.scan_parts if with_keys else kind.scan
    if scan is None:
        raise _not_for(path, kind, "`sqlite` (--sqlite) is for tars, whose samples have keys")
    return partial(
        indexing.index_shard, scan=scan, reframe=reframer(path, kind) if reframe else None
    )


def reframer(path: Path, kind: ShardKind) -> Reframe:
    """Return what writes shards again. SpecError if those of this kind need not be."""
    if kind.reframe is None:
        raise _not_for(path, kind, "`reframe` (--reframe) is for compressed JSONL files")
    _check_on_disk(path, "`reframe` (--reframe)")
    return kind.reframe


def _not_for(path: Path, kind: ShardKind, problem: str) -> SpecError:
    return SpecError(f"{path}: {problem}, found {kind.suffix} files. Leave it out.")


def _unwritable(path: Path, error: Exception) -> SpecError:
    return SpecError(
        f"{path}: it cannot be prepared: {error}. Check the space and the permissions of the "
        f"folder; its {meta.FOLDER} was not changed."
    )


def _contents(
    path: Path, kind: ShardKind, exclude: str | None, *, force: bool, index_only: bool
) -> tuple[Mapping[str, Scan | None], bool]:
    """Return the shards to index with what is known of each, and whether the dataset is prepared.

    Raises SpecError if it may not be prepared, or has no shards.
    """
    if not path.is_dir():
        raise SpecError(f"{path}: it is not a folder. Name the folder that contains the shards.")
    known = _counts(path)
    if index_only and known is None:
        raise SpecError(f"{path}: it is not prepared. Leave out `index_only` (--tar-index-only).")
    if known is not None and not (force or index_only):
        raise SpecError(
            f"{path}: it is prepared. Use `force` (--force) to prepare it again with the split it "
            "has, or with another one if you give it."
        )
    if not (index_only and known):
        return find_shards(path, kind, exclude), known is not None
    listed = kind.listed(path) or {}
    return {shard: listed.get(shard) for shard in known}, True


def _counts(path: Path) -> Mapping[str, int] | None:
    """Return the number of samples of each shard, or None if the dataset is not prepared."""
    try:
        known = meta.NvMeta.of(path)
        return None if known is None else known.counts
    except SpecError:  # an incomplete preparation
        return None
    except StructureError:
        return {}


def _division(path: Path, split: Split | None, *, shuffle: bool, prepared: bool) -> Divide:
    """Return what assigns shards to parts. SpecError if a given split is invalid."""
    if isinstance(split, str):
        return by_ratio(split, path, shuffle=shuffle)
    if split is not None:
        return by_patterns(split, path)
    if not (prepared or meta.has_split(path)):
        return by_ratio(ALL_TRAIN, path, shuffle=False)
    try:
        where, parts, _ = meta.read_split(path)
        return as_before({part: list(expand(names, where)) for part, names in parts.items()})
    except StructureError as error:
        raise SpecError(
            f"{error} Its split cannot be kept: give one (--split-ratio, --split-parts)."
        ) from error


def _index_all(
    path: Path,
    shards: list[str],
    scans: Generator[Scan, None, None],
    index: AbstractContextManager[Callable[[str, Scan], None] | None],
    progress: Progress | None,
) -> Summary:
    """Index all shards and return their summary, without parts. index: index.sqlite, if any."""
    summary, extensions = Summary(str(path)), dict[str, None]()
    with index as add_to_index, closing(scans):
        for number, (shard, one) in enumerate(zip(shards, scans, strict=True), 1):
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
        raise SpecError(f"{path}: its shards contain no samples. Name another folder.")
    summary.extensions = list(extensions)[:MOST_PARTS]
    return summary


def _crude(summary: Summary) -> dict[str, str]:
    """Return a dataset.yaml for crude samples, if there is none."""
    if Path(summary.path, meta.FOLDER, meta.DATASET).exists():
        return {}
    return {meta.DATASET: definition_of(None)}


def _write(path: Path, folder: Path, summary: Summary, declared: Mapping[str, str]) -> None:
    """Write the files of `.nv-meta` into a folder."""
    try:
        _, _, excluded = meta.read_split(path)  # written by hand
    except StructureError:
        excluded = []
    split = {
        "split_parts": {part: collapse(names) for part, names in summary.split_parts.items()},
        "exclude": excluded,
    }
    info = {
        "energon_version": f"energy_data {version('energy_data')}",
        "shard_counts": summary.shard_counts,
    }
    texts = {
        **declared,
        meta.SPLIT: yaml.safe_dump(split, sort_keys=False, allow_unicode=True),
        meta.UUID: str(uuid4()),
        meta.INFO: json.dumps(info, indent=2),
    }
    for name, text in texts.items():
        write_atomically(str(folder / name), text.encode(), path.stat().st_mode)
