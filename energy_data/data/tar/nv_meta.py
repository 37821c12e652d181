"""`.nv-meta`: the folder that `prepare`, of Energon or ours, writes into a dataset of tars.

.info.json (or .info.yaml)   energon_version, shard_counts: {shard: number of samples}
split.yaml (or split.json)   split_parts: {part: [shards, with braces]}, exclude: [...]
dataset.yaml                 how samples are typed
index.uuid                   a new one each time the dataset is prepared
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from fractions import Fraction
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import yaml
from braceexpand import braceexpand

from energy_data.data.files.offsets import SUFFIX
from energy_data.errors import SpecError, StructureError

FOLDER = ".nv-meta"
INFO, INFO_YAML = ".info.json", ".info.yaml"
SPLIT, SPLIT_JSON = "split.yaml", "split.json"
DATASET, UUID, SQLITE = "dataset.yaml", "index.uuid", "index.sqlite"

PARTS = ("train", "val", "test")  # those of a ratio
_SHUFFLE_SEED = 42  # Energon's
_MOST_PATTERNS = 1_000_000  # after expanding the braces of one
_FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NESTING = re.compile(r"[\[{]|[-?]\s+(?=[-?]\s)")
_MOST_NESTING = 2000
_DIGITS = re.compile(r"(\d+)")
_SPECIAL = re.compile(r"([\\{},])")
_RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})(?:\.\.-?\d+)?")
_MOST_NAMES = 10_000_000  # that braces in one split may stand for


@dataclass(frozen=True)
class PartShards:
    """The shards of one part of a dataset."""

    root: str  # the folder that names of shards are relative to
    shards: list[str]  # in order
    counts: list[int]  # samples in each
    excluded: frozenset[str] = frozenset()  # "<shard>/<key>" of samples to leave out
    uuid: str | None = None  # of the preparation
    indices: list[str] | None = None  # [shards] paths; None: next to the shards

    def paths(self, number: int) -> tuple[str, str]:
        """Return the paths of a shard and of its index."""
        tar = f"{self.root}/{self.shards[number]}"
        return tar, self.indices[number] if self.indices else tar + SUFFIX


def is_prepared(path: Path) -> bool:
    """Return whether the folder was prepared, by either tool."""
    return (path / FOLDER / INFO).is_file() or (path / FOLDER / INFO_YAML).is_file()


def read_split_part(path: Path, name: str, config: str | None = None) -> PartShards:
    """Return the part called `name` of a prepared dataset; reads three small files.

    config: name of the file in `.nv-meta` that defines the parts; None: split.yaml.

    Raises SpecError if there is no such part or nothing in it, StructureError if a file is damaged.
    """
    counts = read_counts(path)
    where = path / FOLDER / (config or SPLIT)
    content = _read_split(path, config)
    parts = content.get("split_parts")
    excludes = content.get("exclude", [])
    if not isinstance(parts, dict) or not isinstance(excludes, list):
        raise _damaged(where, "it has no mapping `split_parts`, or `exclude` is no list")
    if name not in parts:
        known = ", ".join(repr(part) for part in parts) or "none"
        raise SpecError(
            f"{where}: there is no split part {name!r}, only: {known}. Name one of them."
        )
    excluded = frozenset(expand(excludes, where))
    wanted = parts[name] if isinstance(parts[name], list) else [parts[name]]
    shards = _known_shards(wanted, counts, where)
    shards = [shard for shard in shards if shard not in excluded]
    if not sum(counts[shard] for shard in shards):
        others = ", ".join(repr(part) for part in parts if parts[part]) or "none"
        raise SpecError(
            f"{where}: split part {name!r} has no samples; parts with shards: {others}. "
            "Name one of them, or prepare the dataset with another split."
        )
    return PartShards(
        str(path),
        shards,
        [counts[shard] for shard in shards],
        frozenset(name for name in excluded if name not in counts and "/" in name),
        (_read_text(path / FOLDER / UUID) or "").strip() or None,
    )


def read_mapping(path: Path) -> dict[str, Any] | None:
    """Return a YAML or JSON file that holds a mapping, or None if there is no such file."""
    text = _read_text(path)
    if text is None:
        return None
    try:
        content = json.loads(text) if path.suffix == ".json" else _load_yaml(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise _damaged(path, f"it cannot be parsed: {error}") from error
    if not isinstance(content, dict):
        raise _damaged(path, f"it holds a {type(content).__name__}, not a mapping")
    return content


def _load_yaml(text: str) -> Any:
    # The fast loader crashes on deep nesting, without an exception.
    nesting = sum(1 for _ in islice(_NESTING.finditer(text), _MOST_NESTING))
    loader = _FAST_LOADER if nesting < _MOST_NESTING else yaml.SafeLoader
    return yaml.load(text, loader)  # noqa: S506 - both are safe loaders


def expand(patterns: list[Any], where: Path) -> Iterator[str]:
    """Yield the names that patterns with braces stand for."""
    total = 0
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise _damaged(where, f"{pattern!r} is no name of a shard")
        total += _count(pattern)
        if total > _MOST_NAMES:
            raise _damaged(where, f"up to {pattern!r} it has more than {_MOST_NAMES} names")
        try:
            yield from braceexpand(pattern)
        except (ValueError, RecursionError) as error:
            raise _damaged(where, f"the braces of {pattern!r} do not match") from error


def _count(pattern: str) -> int:
    """Return how many names a pattern stands for, or more; braceexpand would hold them all."""
    frames = [[1, 0, 0]]  # names of this alternative, of those before it, place of the brace
    for place, char in enumerate(pattern):
        if char == "{":
            frames.append([1, 0, place])
        elif char == "," and len(frames) > 1:
            frames[-1][:2] = [1, sum(frames[-1][:2])]
        elif char == "}" and len(frames) > 1:
            last, before, begin = frames.pop()
            span = _RANGE.fullmatch(pattern, begin + 1, place)
            names = abs(int(span[1]) - int(span[2])) + 1 if span else last + before
            frames[-1][0] = min(frames[-1][0] * names, 1 << 64)
    return max(frame[0] + frame[1] for frame in frames)


def collapse(names: list[str]) -> list[str]:
    """Return patterns that stand for `names`, in their order."""
    patterns: list[str] = []
    run: list[str] = names[:1]
    slot: int | None = None  # the piece of the names that counts up
    for name in names[1:]:
        found = _slot(run[-1], name)
        if found is None or slot not in (None, found):
            patterns += _pattern(run, slot)
            run, slot = [name], None
        else:
            run.append(name)
            slot = found
    return patterns + _pattern(run, slot)


def _slot(name: str, following: str) -> int | None:
    """Return which piece of a name counts up by one to give the following name, if one does."""
    pieces, others = _DIGITS.split(name), _DIGITS.split(following)
    if len(pieces) != len(others) or _SPECIAL.search(name):
        return None
    slots = [n for n, (one, two) in enumerate(zip(pieces, others, strict=True)) if one != two]
    if len(slots) != 1 or slots[0] % 2 == 0:  # numbers are at odd places
        return None
    counts = int(others[slots[0]]) == int(pieces[slots[0]]) + 1
    return slots[0] if counts else None


def _pattern(run: list[str], slot: int | None) -> list[str]:
    """Return one pattern for a run, or its names if there is none (`9`, then `010`)."""
    plain = [_SPECIAL.sub(r"\\\1", name) for name in run]
    if slot is None:
        return plain
    first, last = _DIGITS.split(run[0]), _DIGITS.split(run[-1])
    first[slot] = f"{{{first[slot]}..{last[slot]}}}"
    pattern = "".join(first)
    return [pattern] if list(braceexpand(pattern)) == run else plain


def _known_shards(patterns: list[Any], counts: dict[str, int], where: Path) -> list[str]:
    shards = []
    for shard in expand(patterns, where):
        if shard not in counts:  # ends endless braces as well
            raise SpecError(
                f"{where}: shard {shard!r} is not in {INFO}, which has {len(counts)} shards. "
                "Fix the name, or run `energy-data prepare --force`."
            )
        shards.append(shard)
    return shards


def read_counts(path: Path) -> dict[str, int]:
    """Return the number of samples of each shard of a prepared dataset, in order."""
    where = path / FOLDER / INFO
    counts = _read_first(path, INFO, INFO_YAML).get("shard_counts")
    if not isinstance(counts, dict):
        raise _damaged(where, "it has no mapping `shard_counts`")
    for shard, count in counts.items():
        if type(count) is not int or not 0 <= count < 1 << 48 or not is_inside(shard):
            raise _damaged(where, f"{shard!r}: {count!r} is no shard with a number of samples")
    return counts


def is_inside(shard: object) -> bool:
    """Return whether it names a file in the dataset: nothing above it, nothing absolute."""
    return isinstance(shard, str) and ".." not in shard.split("/") and shard[:1] not in ("/", "")


def _read_split(path: Path, config: str | None) -> dict[str, Any]:
    if config is None or config == SPLIT:
        return _read_first(path, SPLIT, SPLIT_JSON)
    where = path / FOLDER / config
    content = read_mapping(where) if is_inside(config) else None
    if content is None:
        raise SpecError(f"{where}: there is no such file. Look at `split_config`.")
    return content


def _read_first(path: Path, name: str, other: str) -> dict[str, Any]:
    for file in (name, other):
        content = read_mapping(path / FOLDER / file)
        if content is not None:
            return content
    raise _damaged(path / FOLDER / name, "it is missing")


def _read_text(path: Path) -> str | None:
    """Return the text of a file; None if there is none."""
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, f"it cannot be read: {error}") from error


def _damaged(path: Path, problem: str) -> StructureError:
    return StructureError(f"{path}: {problem}. Run `energy-data prepare --force` again.")


def parse_patterns(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the `split` for texts such as `train:shard_0.*`."""
    patterns: dict[str, list[str]] = {}
    for text in texts:
        part, colon, pattern = text.partition(":")
        if not (part and colon and pattern):
            raise SpecError(f"split part {text!r}: it must be PART:PATTERN, as in train:shard_0.*")
        patterns.setdefault(part, []).append(pattern)
    return patterns


Divide = Callable[[list[str]], dict[str, list[str]]]
"""Returns the shards of each part."""


def by_ratio(ratio: str, path: Path, *, shuffle: bool) -> Divide:
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


def by_patterns(patterns: Mapping[str, Sequence[str]], path: Path) -> Divide:
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
    patterns = list(islice(expand([text], path), _MOST_PATTERNS))
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
