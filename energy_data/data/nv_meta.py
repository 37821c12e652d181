"""`.nv-meta`: the folder that `prepare`, of Energon or ours, writes into a dataset of shards.

.info.json (or .info.yaml)   energon_version, shard_counts: {shard: number of samples}
split.yaml (or split.json)   split_parts: {part: [shards, with braces]}, exclude: [...]
dataset.yaml                 how samples are typed
index.uuid                   a new one each time the dataset is prepared
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from energy_data.core.lazy import cached_property
from energy_data.data.shards import PartShards, ShardKind
from energy_data.data.splits import expand
from energy_data.errors import SpecError, StructureError
from energy_data.remote.mirror_paths import is_mirrored
from energy_data.remote.mirrors import publish

FOLDER = ".nv-meta"
INFO, INFO_YAML = ".info.json", ".info.yaml"
SPLIT, SPLIT_JSON = "split.yaml", "split.json"
DATASET, UUID, SQLITE = "dataset.yaml", "index.uuid", "index.sqlite"

_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NESTING = re.compile(r"[\[{]|[-?]\s+(?=[-?]\s)")
_MOST_NESTING = 2000


class NvMeta:
    """The `.nv-meta` of a prepared dataset. Each file is read once, when it is needed."""

    def __init__(self, path: Path, info: Mapping[str, Any]) -> None:
        self.path, self.folder, self._info = path, path / FOLDER, info

    @classmethod
    def of(cls, path: Path) -> NvMeta | None:
        """Return that of a dataset; None if the dataset was never prepared.

        Raises SpecError if its preparation is incomplete, StructureError if a file is damaged.
        """
        for name in (INFO, INFO_YAML):
            info = read_mapping(path / FOLDER / name)
            if info is not None:
                return cls(path, info)
        left = files_of(path)
        if left:
            raise SpecError(
                f"{path}: its preparation is incomplete: {FOLDER} has {left[0]}, but no {INFO}, so "
                "its splits cannot be used. Run `energy-data prepare` again, which keeps "
                f"{SPLIT}; or restore {INFO}; or remove {FOLDER} to use all data as 'train'."
            )
        return None

    @cached_property
    def counts(self) -> dict[str, int]:
        """The number of samples of each shard, in order. StructureError if they are invalid."""
        counts = self._info.get("shard_counts")
        if not isinstance(counts, dict):
            raise _damaged(self.folder / INFO, "it has no mapping `shard_counts`")
        for shard, count in counts.items():
            if type(count) is not int or not 0 <= count < 1 << 48 or not is_inside(shard):
                problem = f"{shard!r}: {count!r} is not a shard with a number of samples"
                raise _damaged(self.folder / INFO, problem)
        return counts

    @property
    def parts(self) -> list[str]:
        """The names of the parts that have shards, as split.yaml lists them."""
        return [name for name, shards in read_split(self.path)[1].items() if shards]

    def part(self, kind: ShardKind, name: str, config: str | None = None) -> PartShards:
        """Return one part of the dataset.

        kind: what its shards are. config: name of the file in `.nv-meta` that defines the parts;
        None: split.yaml.

        Raises SpecError if there is no such part or nothing in it.
        """
        where, parts, excludes = read_split(self.path, config)
        if name not in parts:
            raise SpecError(
                f"{where}: there is no split part {name!r}, only: {_listed(parts)}. Name one of "
                "them."
            )
        excluded = dict.fromkeys(expand(excludes, where))
        keys, unknown = self._excluded_keys(excluded)
        shards = []
        for shard in expand(parts[name], where):
            if shard not in self.counts:  # ends endless braces as well
                raise SpecError(
                    f"{where}: shard {shard!r} is not in {INFO}, which has {len(self.counts)} "
                    "shards. Correct the name, or run `energy-data prepare --force`, which keeps "
                    "the split."
                )
            if shard not in excluded:
                shards.append(shard)
        if not any(self.counts[shard] for shard in shards):
            some = _listed(part for part in parts if parts[part])
            raise SpecError(
                f"{where}: split part {name!r} has no samples; parts with shards: {some}. "
                "Name one of them, or prepare the dataset with another split."
            )
        return PartShards(
            kind,
            str(self.path),
            shards,
            [self.counts[shard] for shard in shards],
            {shard: keys[shard] for shard in shards if shard in keys},
            unknown=unknown,
            uuid=self._uuid,
        )

    def _excluded_keys(self, excluded: Iterable[str]) -> tuple[dict[str, list[str]], list[str]]:
        """Return the keys of each shard that are excluded, and what is in no shard."""
        keys, unknown = dict[str, list[str]](), list[str]()
        for one in excluded:
            if one in self.counts:  # the shard is left out
                continue
            slashes = (found.start() for found in re.finditer("/", one))
            end = next((at for at in slashes if one[:at] in self.counts), None)
            if end is None:
                unknown.append(one)
            else:
                keys.setdefault(one[:end], []).append(one[end + 1 :])
        return keys, unknown

    @property
    def _uuid(self) -> str | None:
        try:
            return (self.folder / UUID).read_text("utf-8").strip() or None
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(self.folder / UUID, f"it cannot be read: {error}") from error


def has_split(path: Path) -> bool:
    """Return whether a file defines the parts of a dataset."""
    return not {SPLIT, SPLIT_JSON}.isdisjoint(files_of(path))


def files_of(path: Path) -> list[str]:
    """Return the names of the files in the `.nv-meta` of a folder; none if it has none."""
    try:
        return sorted(file.name for file in (path / FOLDER).iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_split(
    path: Path, config: str | None = None
) -> tuple[Path, dict[str, list[Any]], list[Any]]:
    """Return the file that defines the parts of a dataset, its parts, and what it excludes.

    config: as in `NvMeta.part`. Raises SpecError if there is no such file, StructureError if it is
    damaged.
    """
    names = (SPLIT, SPLIT_JSON) if config in (None, SPLIT) else (config,)
    for name in names:
        where = path / FOLDER / str(name)
        content = read_mapping(where) if is_inside(name) else None
        if content is None:
            continue
        parts, excludes = content.get("split_parts"), content.get("exclude", [])
        if not isinstance(parts, dict) or not isinstance(excludes, list):
            raise _damaged(where, "it has no mapping `split_parts`, or `exclude` is not a list")
        listed = {part: one if isinstance(one, list) else [one] for part, one in parts.items()}
        return where, listed, excludes
    where = path / FOLDER / str(names[0])
    if config is None:
        raise _damaged(where, "it is missing")
    raise SpecError(f"{where}: there is no such file. Look at `split_config`.")


def read_mapping(path: Path) -> dict[str, Any] | None:
    """Return a YAML or JSON file that holds a mapping, or None if there is no such file."""
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".json":
            content = json.loads(text)
        else:
            # The fast loader crashes on deep nesting, without an exception.
            nesting = sum(1 for _ in islice(_NESTING.finditer(text), _MOST_NESTING))
            loader = _FAST_LOADER if nesting < _MOST_NESTING else yaml.SafeLoader
            content = yaml.load(text, loader)  # noqa: S506 - both are safe loaders
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = f"it cannot be read: {error.strerror}. Check the path and its permissions."
        raise StructureError(f"{path}: {problem}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise _damaged(path, f"it cannot be parsed: {error}") from error
    if not isinstance(content, dict):
        raise _damaged(path, f"it holds a {type(content).__name__}, not a mapping")
    return content


def is_inside(shard: object) -> bool:
    """Return whether it names a file in the dataset: nothing above it, nothing absolute."""
    return isinstance(shard, str) and ".." not in shard.split("/") and shard[:1] not in ("/", "")


def _listed(parts: Any) -> str:
    return ", ".join(repr(part) for part in parts) or "none"


def _damaged(path: Path, problem: str) -> StructureError:
    return StructureError(f"{path}: {problem}. Restore it, or run `energy-data prepare --force`.")


@contextmanager
def rewritten_meta(path: Path) -> Iterator[Path]:
    """Yield an empty folder; its files enter the `.nv-meta` of a dataset if the block succeeds.

    So a preparation that fails changes nothing, and a first one adds all files at once. Later ones
    replace each file atomically, .info.json last: readers find every file at any time. In a store,
    the first one does so too: there is no preparation without .info.json.
    """
    folder = path / FOLDER
    with tempfile.TemporaryDirectory(
        prefix=f"{FOLDER}.", dir=path, ignore_cleanup_errors=True
    ) as name:
        new = Path(name)
        new.chmod(path.stat().st_mode | 0o700)
        yield new
        files = sorted(new.iterdir(), key=lambda file: file.name == INFO)
        if is_mirrored(str(path)):  # the mirror has them when it is looked at
            for file in files:
                publish(str(folder / file.name), str(file))
            return
        if not folder.exists():
            new.rename(folder)
            return
        for file in files:
            file.replace(folder / file.name)
        (folder / INFO_YAML).unlink(missing_ok=True)
