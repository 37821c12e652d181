"""Loading a metadataset: its file, the files it names, and the faults of all of them together."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from attrs import field, frozen

from energy_data.config.convert import convert_file
from energy_data.config.definitions import SPLITS, Definition
from energy_data.config.diagnostics import Diagnostics, Place, did_you_mean, listed
from energy_data.config.kind_path import SUFFIXES, PathDefinition
from energy_data.config.rules import TEXT_PATTERN
from energy_data.config.yaml_nodes import MAX_BYTES, Value, read_data, read_text
from energy_data.errors import SpecError

PathLike: TypeAlias = str | os.PathLike[str]

MAX_LEAVES = 200_000  # of one split, nested files written out
MAX_DEPTH = 64  # nodes above each other, nested files written out

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@frozen(eq=False)
class File:
    """One file of a metadataset, checked."""

    name: str  # in messages
    key: str  # the same for the same file, however it is reached
    directory: str  # relative paths start here
    splits: Mapping[str, Definition]
    any_split: bool = False  # it stands for one dataset, whose splits are its own business

    def split(self, name: str) -> Definition | None:
        """Return the node of a split, or None if there is none."""
        return self.splits["train"] if self.any_split else self.splits.get(name)


@frozen(eq=False)
class Metadataset:
    """A metadataset, read and checked; nothing is opened yet."""

    root: File
    nested: Mapping[str, File] = field(factory=dict, repr=False)  # by key

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of its splits."""
        return SPLITS if self.root.any_split else tuple(self.root.splits)

    def split(self, name: str) -> Definition:
        """Return the node of a split. SpecError if there is none."""
        if (definition := self.root.split(name)) is None:
            known = f"it has {listed(self.splits)}"
            raise SpecError(
                f"{self.root.name}: splits: there is no split {name!r}, {known}. Add it below "
                "`splits:`, or ask for another."
            )
        return definition

    def file_of(self, path: PathDefinition, within: File) -> File | None:
        """Return the nested metadataset a node names, or None if it names a dataset."""
        if not path.path.endswith(SUFFIXES):
            return None
        return self.nested.get(file_key(joined(within.directory, path.path)))


def load(path: PathLike | Mapping[str, Any], *, base_dir: PathLike | None = None) -> Metadataset:
    """Return the metadataset at `path`, or one that stands for the dataset there.

    path: a metadataset file; a dataset folder, a tar or a pattern of tars; or a mapping.
    base_dir: what relative paths start at; the working folder if None. SpecError: see
    `load_metadataset`.
    """
    if isinstance(path, Mapping) or is_metadataset(joined(_folder(base_dir), os.fspath(path))):
        return load_metadataset(path, base_dir=base_dir)
    whole = joined(_folder(base_dir), os.fspath(path))
    folder, name = ("/", whole) if is_remote(whole) else os.path.split(whole.rstrip("/"))
    faults = Diagnostics()
    value = read_data({"splits": {"train": {"path": name or "/"}}}, os.fspath(path), faults)
    return _Loader(faults).load(value, File(os.fspath(path), "", folder, {}, any_split=True))


def load_metadataset(
    path: PathLike | Mapping[str, Any], *, base_dir: PathLike | None = None
) -> Metadataset:
    """Return the metadataset in a file or a mapping, checked with all files it names.

    base_dir: what the path, or the relative paths in a mapping, start at; the working folder if
    None. No dataset is looked at. Raises SpecError with every fault of all the files, one line
    each: `file:line:column: where: what is wrong, what was found. What to do.`
    """
    faults, folder = Diagnostics(), _folder(base_dir)
    loader = _Loader(faults)
    if isinstance(path, Mapping):
        value = read_data(path, "<mapping>", faults)
        return loader.load(value, File("<mapping>", "", folder, {}))
    name = os.fspath(path)
    whole = joined(folder, name)
    value = loader.read(whole, name, Place(name), "")
    return loader.load(value, File(name, file_key(whole), file_folder(whole), {}))


def parse_metadataset(
    text: str | bytes, *, base_dir: PathLike | None = None, name: str = "<text>"
) -> Metadataset:
    """Return the metadataset in YAML text; otherwise as `load_metadataset`.

    name: what stands in messages in place of a file.
    """
    faults = Diagnostics()
    value = read_text(text, name, faults)
    return _Loader(faults).load(value, File(name, "", _folder(base_dir), {}))


def is_metadataset(path: str) -> bool:
    """Return whether a path names a metadataset, by its ending; a folder is a dataset."""
    return path.endswith(SUFFIXES) and not Path(path).is_dir()


def is_remote(path: str) -> bool:
    """Return whether a path has a scheme, as in `s3://bucket/coco`; such a path is never joined."""
    return _SCHEME.match(path) is not None


def joined(directory: str, path: str) -> str:
    """Return `path` as seen from `directory`, tidied without changing what it means."""
    if is_remote(path):
        return path
    whole = os.path.join(directory, path)  # noqa: PTH118 - patterns are not paths
    return os.path.realpath(whole) if ".." in whole.split("/") else os.path.normpath(whole)


def file_folder(path: str) -> str:
    """Return the real folder a file stands in, which is what its relative paths start at."""
    return os.path.realpath(os.path.dirname(path) or ".")  # noqa: PTH120 - patterns are not paths


def file_key(path: str) -> str:
    """Return what is the same for the same file, however it is reached."""
    return f"{file_folder(path)}/{os.path.basename(path)}"  # noqa: PTH119 - patterns are not paths


def _folder(base_dir: PathLike | None) -> str:
    return os.path.realpath(os.fspath(base_dir) if base_dir is not None else ".")


@frozen(eq=False)
class _Extent:
    """How large a split is with nested files written out."""

    num_leaves: int
    height: int


_Chain: TypeAlias = tuple[tuple[File, str], ...]
"""The files and splits that lead to a place, outermost first."""


class _Loader:
    """Reads files and follows what they name."""

    def __init__(self, faults: Diagnostics) -> None:
        self.faults = faults
        self.files: dict[str, File | None] = {}  # by key; None: it has faults
        self.extents: dict[tuple[str, str], _Extent] = {}  # by key and split
        self.unfollowed: list[tuple[Value, File]] = []
        self.skims = False

    def load(self, value: Value | None, bare: File) -> Metadataset:
        """Return the metadataset whose outermost file holds `value`."""
        root = self.files[bare.key] = self.convert(value, bare)
        if root is not None:
            for split, definition in root.splits.items():
                self.bound(self.follow(root, split, ()), definition)
        self.skim()
        self.faults.raise_if_any()
        assert root is not None
        return Metadataset(root, {key: file for key, file in self.files.items() if file})

    def read(self, path: str, name: str, place: Place, where: str) -> Value | None:
        """Return what a file holds, or None if it has faults."""
        problem = None
        try:
            if Path(path).is_file():
                with Path(path).open("rb") as file:
                    return read_text(file.read(MAX_BYTES + 1), name, self.faults)
            problem = _remote(path) if is_remote(path) else _missing(path)
        except (OSError, ValueError) as error:
            problem = f"cannot be read, {error}. Look at the path and its permissions."
        self.faults.report(place, where, problem)
        return None

    def convert(self, value: Value | None, bare: File) -> File | None:
        definition = None if value is None else convert_file(value, self.faults)
        if value is not None and (definition is None or self.skims):
            self.unfollowed.append((value, bare))
        if definition is None:
            return None
        return File(bare.name, bare.key, bare.directory, definition.splits, bare.any_split)

    def follow(self, file: File, split: str, chain: _Chain) -> _Extent:
        """Check what a split names, and return how large it is."""
        known = self.extents.get((file.key, split))
        if known is not None:
            return known
        num_leaves = height = 0
        chain = (*chain, (file, split))
        for definition, depth, part in _leaves(file.splits[split], split, 1):
            extent = self.follow_path(definition, part, file, chain)
            num_leaves += extent.num_leaves
            height = max(height, depth - 1 + extent.height)
        extent = self.extents[file.key, split] = _Extent(num_leaves, height)
        return extent

    def follow_path(self, node: PathDefinition, part: str, file: File, chain: _Chain) -> _Extent:
        place, where = node.places["path"], f"{node.where}.path"
        leaf = _Extent(1, 1)
        if is_remote(node.path):
            self.faults.report(place, where, _remote(node.path))
            return leaf
        path = joined(file.directory, node.path)
        if not is_metadataset(path):
            return leaf
        nested = self.nested(node.path, file, place, where)
        if nested is None:
            return leaf
        if node.subset is not None and node.subset.is_absolute:
            problem = "numbers of samples are for single datasets, found a metadataset"
            self.faults.report(
                node.places["subset"], f"{node.where}.subset", f"{problem}. Use percentages."
            )
        for name, problem in node.of_datasets.items():
            if getattr(node, name):
                self.faults.report(node.places[name], f"{node.where}.{name}", problem)
        if part not in nested.splits:
            known = listed(nested.splits) if nested.splits else "none"
            self.faults.report(
                place,
                where,
                f"{nested.name} has no split '{part}', it has {known}. Add the split there, or "
                "`split_part` here.",
            )
            return leaf
        if not self.may_follow(nested, part, node, chain):
            return leaf
        return self.follow(nested, part, chain)

    def skim(self) -> None:
        """Read what files with faults name, as far as it can be told, for the faults there."""
        self.skims = True
        while self.unfollowed:
            value, file = self.unfollowed.pop(0)
            for path, place, where in _named(value, ""):
                if is_remote(path):
                    self.faults.report(place, where, _remote(path))
                elif is_metadataset(joined(file.directory, path)):
                    self.nested(path, file, place, where)

    def nested(self, written: str, file: File, place: Place, where: str) -> File | None:
        """Return a nested file, read once."""
        path = joined(file.directory, written)
        key = file_key(path)
        if key not in self.files:
            name = _name_of(written, file)
            value = self.read(path, name, place, where)
            if value is None and not Path(path).is_file():
                return None  # told again where it is named again
            self.files[key] = self.convert(value, File(name, key, file_folder(path), {}))
        return self.files[key]

    def may_follow(self, nested: File, part: str, node: PathDefinition, chain: _Chain) -> bool:
        """Return whether a nested split does not lead back to itself."""
        place, where = node.places["path"], f"{node.where}.path"
        names = [f"{file.name} ({split})" for file, split in chain]
        if (nested.key, part) in [(file.key, split) for file, split in chain]:
            circle = " -> ".join([*names, f"{nested.name} ({part})"])
            problem = f"the files form a cycle, found {circle}. Take one of these paths out."
        elif len(chain) >= MAX_DEPTH:
            problem = f"more than {MAX_DEPTH} files below each other. Flatten them."
        else:
            return True
        self.faults.report(place, where, problem)
        return False

    def bound(self, extent: _Extent, definition: Definition) -> None:
        """Note it if a split is beyond all measure."""
        for found, limit, what in (
            (extent.num_leaves, MAX_LEAVES, "datasets"),
            (extent.height, MAX_DEPTH, "nodes below each other"),
        ):
            if found > limit:
                self.faults.report(
                    definition.place,
                    definition.where,
                    f"too large with nested files written out, found {found:,} {what} where "
                    f"{limit:,} are allowed. Look for files that name each other many times.",
                )


def _name_of(path: str, file: File) -> str:
    """Return what a file that `file` names is called in messages."""
    folder = os.path.dirname(file.name)  # noqa: PTH120 - stays empty where `.` is meant
    return os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - as above


def _leaves(
    definition: Definition, part: str, depth: int
) -> Iterator[tuple[PathDefinition, int, str]]:
    """Yield what a node names, how deep it stands, and the part of it that is asked for."""
    part = definition.split_part or part
    if isinstance(definition, PathDefinition):
        yield definition, depth, part
    for child in definition.parts:
        yield from _leaves(child.of, part, depth + 1)


def _remote(path: str) -> str:
    """Return what to say of a path with a scheme."""
    return f"remote paths are not supported yet, found {path!r}. Give a local path."


def _named(value: Value, where: str) -> Iterator[tuple[str, Place, str]]:
    """Yield the text of every `path:` in a file that may have faults."""
    if isinstance(value.data, list):
        for number, item in enumerate(value.data):
            yield from _named(item, f"{where}[{number}]")
    if not isinstance(value.data, dict):
        return
    for name, item in value.data.items():
        inner = f"{where}.{name}" if where else name
        if name == "path" and isinstance(item.data, str) and TEXT_PATTERN.fullmatch(item.data):
            yield item.data, item.place, inner
        elif name != "subflavors":
            yield from _named(item, inner)


def _missing(path: str) -> str:
    """Return what to say of a file that is not there."""
    folder, name = os.path.split(path)
    if not Path(folder).is_dir():
        return f"there is no folder {folder!r}. Look at the path; it starts at its file's folder."
    near = did_you_mean(name, [each.name for each in Path(folder).iterdir()])
    advice = f"Did you mean {near!r}?" if near else "Look at the path."
    return f"there is no metadataset {name!r} in {folder!r}. {advice}"
