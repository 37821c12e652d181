"""Indexes the shards of a dataset: all in one go, or in parts, by programs that share a disk only.

    index_part(path, contents, PartOf(3, 64), ...)  # shards 3, 67, 131, ...
    scans = read_parts(path, shards, ...)  # all of them, in order

A part is a file of JSON lines, two per shard: which file was indexed and how many samples it has,
and what else `.nv-meta` needs of it. It gets its name when it is complete. So there is nothing to
lock, and what a program that was killed leaves is not taken for a part.

What is found of a dataset in an object store is written there, an index and a part for each shard
as soon as it was read: `resumed_scans` reads no shard twice, whatever is killed.
"""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from energy_data.core.processes import map_in_processes, num_processes
from energy_data.data.files.local import LocalFile, atomic_file, open_file, version_of
from energy_data.data.files.offsets import SUFFIX, ensure_index, num_samples, write_index
from energy_data.data.frames.compression import LargeFrameError
from energy_data.data.shards import NO_INDEX, Progress, Reframe, Scan, ScannedPart, ShardKind
from energy_data.errors import ReadOnlyError, SpecError, StructureError, shown
from energy_data.remote.cached_ranges import facts_of
from energy_data.remote.client import fetch_whole
from energy_data.remote.mirror_paths import is_mirrored
from energy_data.remote.mirrors import publish, remove_published

log = logging.getLogger(__name__)

FOLDER = ".nv-meta.parts"
"""The folder of the parts: next to `.nv-meta`, as a dataset is prepared or it is not."""

_NAME = re.compile(r"(\d+)-of-(\d+)\.part")
_MOST_NAMED = 100  # parts in a message
_BYTES_PER_WORKER = 1 << 30  # reading them takes about as long as starting a process

ScanShard = Callable[[LocalFile], Scan]
IndexShard = Callable[[str], Scan]


class PartOf(NamedTuple):
    """One of several parts: shards number, number + of, number + 2 of, ..."""

    number: int
    of: int

    def file(self, path: Path) -> Path:
        """Return where it is kept."""
        return path / FOLDER / f"{self.number}-of-{self.of}.part"

    def choose(self, shards: Sequence[str]) -> Sequence[str]:
        """Return its shards."""
        return shards[self.number :: self.of]


class IndexedPart(NamedTuple):
    """A part of a dataset, indexed."""

    num_shards: int
    num_samples: int
    was_indexed: bool  # before: nothing was done


class _Facts(NamedTuple):
    """What is noted of a shard."""

    shard: str
    size: int
    changed: int | float | str  # another one each time the shard is written
    num_samples: int
    index_size: int  # bytes; 0: it needs none
    extensions: list[str]
    with_keys: bool  # whether the next line has what index.sqlite needs

    def is_current(self, path: Path) -> bool:
        """Return whether the shard and its index are still those that were indexed."""
        file = f"{path}/{self.shard}"
        if _version_of(file) != (self.size, self.changed):
            return False
        index = _version_of(file + SUFFIX)
        return not self.index_size or (index is not None and index[0] == self.index_size)


def _version_of(path: str) -> tuple[int, int | float | str] | None:
    """Return the size of a file and what changes when it is written, on any machine.

    None: there is none; or it is in a mirror, and is not known to be in the store.
    """
    if is_mirrored(path):
        facts = facts_of(path)
        return None if facts is None else (facts.size, facts.tag or facts.modified)
    found = version_of(path)
    return None if found is None else found[1:]


def index_shards(
    path: Path,
    contents: Mapping[str, Scan | None],
    index: IndexShard,
    workers: int | None,
) -> Generator[Scan, None, None]:
    """Index shards, several at a time; yield their contents in the order of the shards.

    contents: what is known of each, and need not be scanned. index: as `index_shard`.
    """
    shards = [shard for shard, known in contents.items() if known is None]
    task = partial(_index, str(path), index)
    workers = _workers([f"{path}/{shard}" for shard in shards], workers)
    with closing(map_in_processes(task, shards, workers=workers, preload=(__name__,))) as scans:
        for known in contents.values():
            yield next(scans) if known is None else known


def _index(root: str, index: IndexShard, shard: str) -> Scan:
    """Index one shard; runs in worker processes."""
    found = index(f"{root}/{shard}")
    return found if found.parts else replace(found, keys=[])


def index_shard(
    path: str, scan: ScanShard, reframe: Reframe | None = None, progress: Progress | None = None
) -> Scan:
    """Write the index next to a shard, if it needs one; return its contents.

    reframe: called first if samples cannot be read at random; None: that is an error.
    """
    version = _version_of(path)
    try:
        found = scan(open_file(path, is_streamed=True))
    except LargeFrameError:
        if reframe is None:
            raise
        reframe(path, progress)
        version = _version_of(path)
        found = scan(open_file(path))
    if len(found.offsets):
        publish(write_index(path, found.offsets, [path + SUFFIX]))
    return replace(found, version=version)


def keep_indices(
    files: Sequence[str], kind: ShardKind, workers: int | None, progress: Progress | None
) -> int:
    """Index files of a store that is read-only, in the cache; return the number of samples.

    Those that are indexed there are left as they are. Runs with the same cache use the indices.
    """
    assert kind.fits is not None, "they need an index"
    task = partial(_keep_index, kind.fits, kind.scan)
    total, workers = 0, _workers(files, workers)
    found = map_in_processes(task, files, workers=workers, preload=(__name__,))
    with closing(found):
        for done, count in enumerate(found, 1):
            total += count
            if progress:
                progress(done, len(files))
    return total


def _keep_index(fits: Callable[[int, int], bool], scan: ScanShard, path: str) -> int:
    return num_samples(ensure_index(path, fits, lambda file: scan(file).offsets))


def _workers(files: Sequence[str], workers: int | None) -> int:
    """Return the number of processes; as many as are worth their start if none is given."""
    size = sum(Path(file).stat().st_size for file in files)
    return num_processes(workers, size // _BYTES_PER_WORKER)


def resumed_scans(
    path: Path,
    contents: Mapping[str, Scan | None],
    index: IndexShard,
    workers: int | None,
    *,
    with_keys: bool,
) -> Generator[Scan, None, None]:
    """Yield as `index_shards`. What is found of a shard is kept, as a part of one shard.

    Shards that have such a part are not read again. with_keys: keep what index.sqlite needs.
    """
    parts = {shard: PartOf(n, len(contents)) for n, shard in enumerate(contents)}
    files = {shard: part.file(path) for shard, part in parts.items() if contents[shard] is None}
    fetch_whole(*map(str, files.values()))
    done = {
        shard
        for shard, file in files.items()
        if _current_facts(path, file, [shard], with_keys=with_keys) is not None
    }
    left = {shard: known for shard, known in contents.items() if shard not in done}
    with closing(index_shards(path, left, index, workers)) as scans:
        for shard in contents:
            if shard in done:
                yield _scan_of(*next(_read(files[shard])))
                continue
            found = next(scans)
            if shard in files:
                with _new_part(path, files[shard]) as write:
                    write(shard, found, with_keys=with_keys)
            yield found


@contextmanager
def _new_part(path: Path, file: Path) -> Iterator[Callable[..., None]]:
    """Yield what adds a shard to a part, which gets its name when the block ends."""
    with atomic_file(str(file), path.stat().st_mode) as stream:

        def write(shard: str, found: Scan, *, with_keys: bool) -> None:
            for line in _lines(path, shard, found, with_keys=with_keys):
                stream.write(json.dumps(line).encode() + b"\n")

        yield write
    publish(str(file))


def remove_parts(path: Path) -> None:
    """Remove all parts of a dataset, if there are some."""
    if (path / FOLDER).exists():
        try:
            remove_published(str(path / FOLDER))
        except ReadOnlyError as error:
            log.warning(
                "%s is left, as it may not be removed: %s", shown(f"{path}/{FOLDER}"), error
            )
        shutil.rmtree(path / FOLDER)


def index_part(
    path: Path,
    contents: Mapping[str, Scan | None],
    part: PartOf,
    *,
    index: IndexShard,
    with_keys: bool,
    workers: int | None,
    progress: Progress | None,
) -> IndexedPart:
    """Index one part of the shards of a dataset, unless that was done before.

    contents, index: of all shards, as in `index_shards`. with_keys: keep what index.sqlite needs.
    Raises StructureError for a damaged shard.
    """
    mine, file = part.choose(list(contents)), part.file(path)
    fetch_whole(str(file))
    facts = _current_facts(path, file, mine, with_keys=with_keys) if mine else []
    if facts is not None:
        return IndexedPart(len(facts), sum(one.num_samples for one in facts), was_indexed=True)
    scans = index_shards(path, {shard: contents[shard] for shard in mine}, index, workers)
    num_samples = 0
    with closing(scans), _new_part(path, file) as write:
        for done, (shard, found) in enumerate(zip(mine, scans, strict=True), 1):
            write(shard, found, with_keys=with_keys)
            num_samples += found.num_samples
            if progress:
                progress(done, len(mine))
    return IndexedPart(len(mine), num_samples, was_indexed=False)


def _lines(path: Path, shard: str, found: Scan, *, with_keys: bool) -> list[Any]:
    """Return the two lines of a shard."""
    version = found.version
    if version is None:  # it was not scanned
        version = _version_of(f"{path}/{shard}")
    assert version is not None, "it exists"
    size = found.offsets.nbytes
    noted = _Facts(shard, *version, found.num_samples, size, found.extensions, with_keys)
    return [noted, [found.offsets.tolist(), found.keys, found.parts] if with_keys else None]


def _current_facts(
    path: Path, file: Path, shards: Sequence[str], *, with_keys: bool
) -> list[_Facts] | None:
    """Return what a part notes of its shards; None if it does not exist, or must be redone."""
    try:
        facts = [found for found, _ in _read(file)] if _version_of(str(file)) else []
    except StructureError:
        return None
    if [one.shard for one in facts] != list(shards):
        return None
    good = all(one.with_keys >= with_keys and one.is_current(path) for one in facts)
    return facts if good else None


def read_parts(
    path: Path, shards: Sequence[str], *, with_keys: bool
) -> Generator[Scan, None, None]:
    """Yield the contents of all shards, in their order, as their parts found them.

    Raises SpecError that names the parts that are missing, or whose shards have changed since.
    """
    parts = _parts_of(path, len(shards))
    fetch_whole(*(str(one.file(path)) for one in parts))
    outdated = [
        one
        for one in parts
        if _current_facts(path, one.file(path), one.choose(shards), with_keys=with_keys) is None
    ]
    if outdated:
        raise SpecError(
            f"{path}: {_named(outdated)}: shards were added, removed or changed since, or it was "
            "indexed with other options (--exclude, --no-sqlite). "
            f"{_advice(path, outdated[0])}"
        )
    streams = [_read(one.file(path)) for one in parts]
    for number in range(len(shards)):
        yield _scan_of(*next(streams[number % len(streams)]))


def _scan_of(facts: _Facts, line: bytes) -> Scan:
    """Return the contents of a shard as its two lines have them."""
    offsets, keys, files = json.loads(line) or ([], [], [])
    return Scan(
        np.array(offsets, np.uint64) if offsets else NO_INDEX,
        keys,
        facts.extensions,
        [ScannedPart(*one) for one in files],
        rows=facts.num_samples,
    )


def _parts_of(path: Path, num_shards: int) -> list[PartOf]:
    """Return the parts of a dataset that have shards. SpecError if some are not indexed."""
    try:
        names = [_NAME.fullmatch(file.name) for file in (path / FOLDER).iterdir()]
    except FileNotFoundError:
        names = []
    found = {PartOf(int(name[1]), int(name[2])) for name in names if name}
    if not found:
        raise SpecError(
            f"{path}: no part of it is indexed. Run `energy-data prepare {path} --part N --of M` "
            "for each N from 0 to M - 1, or prepare it at once, without --finish."
        )
    problems = []
    for of in sorted({one.of for one in found}):
        parts = [PartOf(number, of) for number in range(min(of, num_shards))]
        missing = [one for one in parts if one not in found]
        if not missing:
            return parts
        problems.append(f"{path}: {_named(missing)}: not indexed. {_advice(path, missing[0])}")
    raise SpecError(problems)


def _named(parts: Sequence[PartOf]) -> str:
    shown = ", ".join(str(one.number) for one in parts[:_MOST_NAMED])
    more = f" and {len(parts) - _MOST_NAMED} more" if len(parts) > _MOST_NAMED else ""
    return f"part{'' if len(parts) == 1 else 's'} {shown}{more} of {parts[0].of}"


def _advice(path: Path, part: PartOf) -> str:
    return f"Run `energy-data prepare {path} --part {part.number} --of {part.of}`, and so on."


def _read(file: Path) -> Iterator[tuple[_Facts, bytes]]:
    """Yield the two lines of each shard of a part. StructureError if they are damaged.

    The file is open only while a line is read: there may be thousands of parts.
    """
    at = 0
    while True:
        with file.open("rb") as stream:
            stream.seek(at)
            first, second = stream.readline(), stream.readline()
            at = stream.tell()
        if not first:
            return
        try:
            facts = _Facts(*json.loads(first))
            if not second.endswith(b"\n"):
                raise ValueError("it was cut")
        except (ValueError, TypeError) as error:
            problem = f"it is no part of a preparation: {error}. Remove it, and index it again."
            raise StructureError(problem, shard=str(file)) from error
        yield facts, second
