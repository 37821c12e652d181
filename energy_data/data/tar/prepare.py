"""Prepares a folder of tars: writes indices next to the tars, and `.nv-meta`, in Energon's formats.

    summary = prepare(Path("/data/coco"), split="8,1,1")

Energon can load what it writes, and this package loads what Energon has prepared.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import partial
from importlib.metadata import version
from itertools import islice, pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import yaml

from energy_data.data.files.local import Window, open_anew, write_whole
from energy_data.data.files.offsets import SUFFIX, num_samples, write_index
from energy_data.data.tar import nv_meta as meta
from energy_data.data.tar.header import Fault, split_name, walk
from energy_data.data.tar.index import (
    MOST_PARTS,
    Scan,
    find_tars,
    refuse_packed,
    scan,
    shard_opener,
    tar_index,
)
from energy_data.data.tar.patch import has_duplicates, prefix_names
from energy_data.data.tar.sqlite import SqliteWriter
from energy_data.data.typed.dataset_yaml import definition_of
from energy_data.errors import SpecError, StructureError

PARTS = ("train", "val", "test")  # those of a ratio
_SHUFFLE_SEED = 42  # Energon's
_BYTES_PER_WORKER = 1 << 30  # reading them takes about as long as starting a process
_MOST_PATTERNS = 1_000_000  # after expanding the braces of one

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
    kept_indices: int = 0  # shards that already had an index

    @property
    def num_samples(self) -> int:
        """The number of samples in all shards."""
        return sum(self.shard_counts.values())

    def add(self, found: _Found) -> None:
        """Add one shard."""
        if found.num_samples:
            self.shard_counts[found.shard] = found.num_samples
        else:
            self.empty_shards.append(found.shard)
        known = dict.fromkeys([*self.extensions, *found.extensions])
        self.extensions = list(islice(known, MOST_PARTS))
        self.kept_indices += found.kept


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
        force: Prepare a dataset that is prepared already, and index all its shards again.
        sqlite: Also write `index.sqlite`, which finds each part of each sample by its key. Keys
            must be unique then.
        shuffle: Assign shards to the parts of a ratio in Energon's random order, which is fixed.
        fix_duplicates: If a key occurs in several shards, move all files into folders named like
            their shards. This rewrites the tars.
        crude: Write a dataset.yaml for crude samples if there is none.
        workers: Number of processes; by default one per GiB, at most one per CPU.
        progress: Called when a shard is finished.

    Raises SpecError for invalid arguments, StructureError for a damaged tar. In both cases nothing
    is written to `.nv-meta`; finished indices are kept, and the next attempt continues from them.
    """
    if not path.is_dir():
        raise SpecError(f"{path}: it is not a folder. Name the folder that contains the tars.")
    if meta.is_prepared(path) and not force:
        raise SpecError(f"{path}: it is prepared. Use `force` (--force) to prepare it again.")
    if isinstance(split, str):
        divide = _by_ratio(split, path, shuffle=shuffle)
    else:
        divide = _by_patterns(split, path)
    shards = _without(find_tars(path, packed=exclude is not None), exclude, path)
    if fix_duplicates and has_duplicates(path, shards):
        for shard in shards:
            prefix_names(path, shard)
    database = path / meta.FOLDER / meta.SQLITE if sqlite else None
    summary = _collect(
        path,
        shards,
        divide,
        keep=not force,
        database=database,
        workers=workers,
        progress=progress,
    )
    _write(path, summary, crude=crude)
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
    database = path / meta.FOLDER / meta.SQLITE
    summary = _collect(
        path,
        list(counts),
        lambda _: {},
        keep=False,
        database=database if sqlite or database.exists() else None,
        workers=workers,
        progress=progress,
    )
    for shard, count in counts.items():
        if summary.shard_counts.get(shard, 0) != count:
            raise StructureError(
                f"it has {summary.shard_counts.get(shard, 0)} samples, but had {count} when it was "
                "prepared. Run `energy-data prepare --force`.",
                dataset=str(path),
                shard=shard,
            )
    mode = path.stat().st_mode
    write_whole(str(path / meta.FOLDER / meta.UUID), str(uuid4()).encode(), mode)
    info = path / meta.FOLDER / meta.INFO
    if not info.exists():  # written by an old Energon
        write_whole(str(info), json.dumps(_info(counts), indent=2).encode(), mode)
    return summary


def _collect(
    path: Path,
    shards: list[str],
    divide: _Divide,
    *,
    keep: bool,
    database: Path | None,
    workers: int | None,
    progress: Progress | None,
) -> Summary:
    """Index all shards and return their summary; write the database atomically."""
    summary = Summary(str(path))
    found = _index_all(path, shards, workers, keep=keep, with_parts=database is not None)
    writer = SqliteWriter(database) if database else None
    try:
        for number, one in enumerate(found, 1):
            summary.add(one)
            if writer and one.scan and one.num_samples:
                writer.add(one.shard, one.scan)
            if progress:
                progress(number, len(shards))
        if not summary.shard_counts:
            raise SpecError(f"{path}: its tars contain no samples. Name another folder.")
        summary.split_parts = divide(list(summary.shard_counts))
    except BaseException:
        if writer:
            writer.abandon()
        raise
    if writer:
        writer.finish()
    return summary


def parse_patterns(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the `split` for texts such as `train:shard_0.*`."""
    patterns: dict[str, list[str]] = {}
    for text in texts:
        part, colon, pattern = text.partition(":")
        if not (part and colon and pattern):
            raise SpecError(f"split part {text!r}: it must be PART:PATTERN, as in train:shard_0.*")
        patterns.setdefault(part, []).append(pattern)
    return patterns


class _Found(NamedTuple):
    shard: str
    num_samples: int
    extensions: list[str]
    kept: bool  # it already had an index
    scan: Scan | None = None  # if parts were requested


def _index(root: str, keep: bool, with_parts: bool, shard: str) -> _Found:
    """Index one shard; runs in worker processes."""
    tar = f"{root}/{shard}"
    if keep and not with_parts and tar_index(tar) == tar + SUFFIX:
        count = num_samples(tar + SUFFIX)
        shard_opener(meta.PartShards(root, [shard], [count]))(0)  # checks it
        return _Found(shard, count, _first_extensions(tar), kept=True)
    found = scan(open_anew(tar), with_parts=with_parts)
    write_index(tar, found.offsets, [tar + SUFFIX])
    scanned = found if with_parts else None
    return _Found(shard, len(found.keys), found.extensions, kept=False, scan=scanned)


def _index_all(
    path: Path, shards: list[str], workers: int | None, *, keep: bool, with_parts: bool
) -> Iterator[_Found]:
    """Index the shards, several at a time; yield the results in the order of the shards."""
    task = partial(_index, str(path), keep, with_parts)
    if workers is None:
        size = sum((path / shard).stat().st_size for shard in shards)
        workers = min(os.cpu_count() or 1, size // _BYTES_PER_WORKER)
    if workers <= 1:
        yield from map(task, shards)
        return
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imports torch once, which takes seconds
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        pending: deque[Future[_Found]] = deque()
        try:
            for shard in shards:
                pending.append(pool.submit(task, shard))
                if len(pending) > 4 * workers:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def _first_extensions(tar: str) -> list[str]:
    file = open_anew(tar)
    members = islice(walk(Window(file, 1024).read, 0, file.size), MOST_PARTS)
    try:
        named = [split_name(member.name) for member in members if member.regular]
    except Fault:  # the end of a short tar, or damage, which reading reports
        return []
    return list(dict.fromkeys(extension for _, extension in filter(None, named)))


def _without(shards: list[str], exclude: str | None, path: Path) -> list[str]:
    if exclude is None:
        return shards
    try:
        wanted = [shard for shard in shards if not re.search(exclude, shard)]
    except re.error as error:
        raise SpecError(f"exclude {exclude!r}: it is not a regular expression: {error}.") from error
    if not wanted:
        raise SpecError(f"{path}: exclude {exclude!r} leaves none of its {len(shards)} tars.")
    return refuse_packed(wanted, path)


_Divide = Callable[[list[str]], dict[str, list[str]]]


def _by_ratio(ratio: str, path: Path, *, shuffle: bool) -> _Divide:
    """Return a function that splits shards by shares, as Energon does, but without rounding."""
    try:
        shares = [Fraction(share.strip()) for share in ratio.split(",")]
    except (ValueError, ZeroDivisionError):
        shares = []
    if not 1 <= len(shares) <= len(PARTS) or min(shares) < 0 or not sum(shares):
        raise SpecError(
            f"split ratio {ratio!r}: give up to three numbers for {', '.join(PARTS)}, as in 8,1,1."
        )

    def divide(shards: list[str]) -> dict[str, list[str]]:
        if shuffle:
            shards = list(shards)
            random.Random(_SHUFFLE_SEED).shuffle(shards)  # noqa: S311 - no secret
        ends = [len(shards) * sum(shares[:n]) // sum(shares) for n in range(len(shares) + 1)]
        parts = {
            part: shards[int(begin) : int(end)]
            for part, (begin, end) in zip(PARTS, pairwise(ends), strict=False)
        }
        for part, share in zip(PARTS, shares, strict=False):
            if share and not parts[part]:
                raise SpecError(
                    f"{path}: the ratio {ratio} leaves no shard for {part!r}: there are "
                    f"{len(shards)}. Give another ratio, or patterns, or write more shards."
                )
        return {part: parts.get(part, []) for part in PARTS}

    return divide


def _by_patterns(patterns: Mapping[str, Sequence[str]], path: Path) -> _Divide:
    """Return a function that gives each part the shards that match its patterns."""

    def divide(shards: list[str]) -> dict[str, list[str]]:
        parts = {}
        for part, texts in patterns.items():
            fitting: set[str] = set()
            for text in texts:
                fitting |= _matches(text, shards, path)
            parts[part] = [shard for shard in shards if shard in fitting]
        return parts

    return divide


def _matches(text: str, shards: list[str], path: Path) -> set[str]:
    """Return the shards that match a pattern; raise SpecError if there is none."""
    patterns = list(islice(meta.expand([text], path), _MOST_PATTERNS))
    found: set[str] = set()
    for pattern in patterns:
        try:
            found.update(shard for shard in shards if re.match(pattern, shard))
        except re.error:  # such as `*.tar`, which is a glob
            continue
    found = found or {one for one in shards if any(fnmatchcase(one, two) for two in patterns)}
    if not found:
        raise SpecError(
            f"{path}: no shard matches the pattern {text!r}; the first shard is {shards[0]!r}. "
            "Give a regular expression or a glob that matches from the start of the name."
        )
    return found


def _write(path: Path, summary: Summary, *, crude: bool) -> None:
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
    info = _info(summary.shard_counts)
    texts = {meta.SPLIT: yaml.safe_dump(split, sort_keys=False, allow_unicode=True)}
    if crude and not (folder / meta.DATASET).exists():
        texts[meta.DATASET] = yaml.safe_dump(definition_of(None), sort_keys=False)
    if (folder / meta.INFO_YAML).exists():  # written by an old Energon
        texts[meta.INFO_YAML] = yaml.safe_dump(info, sort_keys=False, allow_unicode=True)
    texts |= {meta.UUID: str(uuid4()), meta.INFO: json.dumps(info, indent=2)}
    for name, text in texts.items():
        write_whole(str(folder / name), text.encode(), path.stat().st_mode)


def _info(counts: Mapping[str, int]) -> dict[str, object]:
    return {
        "energon_version": f"energy_data {version('energy_data')}",
        "shard_counts": dict(counts),
    }
