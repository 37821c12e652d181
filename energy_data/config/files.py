"""The files of a metadataset: a file is read once, and so are the files that it names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

from energy_data.config.diagnostics import Diagnostics, Place
from energy_data.config.grammar import Grammar, Origins
from energy_data.config.keys import SUFFIXES
from energy_data.config.yaml_nodes import MAX_BYTES, Value, read_text
from energy_data.core.rules import TEXT_PATTERN, did_you_mean
from energy_data.core.spec import Spec

PathLike: TypeAlias = str | os.PathLike[str]

FREE_DATA = ("subflavors", "params", "aux")  # keys below which `path` has no meaning of ours
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@frozen(eq=False)
class File:
    """One file of a metadataset, checked."""

    name: str  # in messages
    key: str  # equal for the same file, however it is reached
    directory: str  # relative paths start here
    splits: Mapping[str, Spec]
    any_split: bool = False  # it stands for one dataset, which may have any split


def is_metadataset(path: str) -> bool:
    """Return whether a path names a metadataset, by its ending; a folder is a dataset."""
    return path.endswith(SUFFIXES) and not Path(path).is_dir()


def is_remote(path: str) -> bool:
    """Return whether a path has a scheme, as in `s3://bucket/coco`; such a path is never joined."""
    return _SCHEME.match(path) is not None


def joined(directory: str, path: str) -> str:
    """Return `path` as seen from `directory`, normalised without a change of meaning."""
    if is_remote(path):
        return path
    full = os.path.join(directory, path)  # noqa: PTH118 - patterns are not paths
    return os.path.realpath(full) if ".." in full.split("/") else os.path.normpath(full)


def file_folder(path: str) -> str:
    """Return the real folder of a file, where its relative paths start."""
    return os.path.realpath(os.path.dirname(path) or ".")  # noqa: PTH120 - patterns are not paths


def file_key(path: str) -> str:
    """Return a key that is equal for the same file, however it is reached."""
    return f"{file_folder(path)}/{os.path.basename(path)}"  # noqa: PTH119 - patterns are not paths


class Files:
    """Reads files, and all that they name."""

    def __init__(self, diagnostics: Diagnostics, origins: Origins) -> None:
        self.diagnostics, self.grammar = diagnostics, Grammar(diagnostics, origins)
        self.known: dict[str, File | None] = {}  # by key; None: it has errors

    def add(self, value: Value | None, bare: File) -> File | None:
        """Return the file that holds `value`, after all files that it names are read.

        bare: the file without splits. Errors do not keep nested files from being read.
        """
        self.known[bare.key] = self._checked(value, bare)
        unread = [] if value is None else [(_named_paths(value, ""), bare)]
        while unread:
            paths, file = unread[-1]
            named = next(paths, None)
            if named is None:
                unread.pop()
            elif (found := self._nested(file, *named)) is not None:
                nested, below = found
                unread.append((_named_paths(nested, ""), below))
        return self.known[bare.key]

    def _nested(self, file: File, path: str, place: Place, where: str) -> tuple[Value, File] | None:
        """Return what the file at a path holds; None: it is known, cannot be read, or a dataset."""
        if is_remote(path):
            self.diagnostics.report(place, where, _remote(path))
            return None
        full = joined(file.directory, path)
        if not is_metadataset(full):
            return None
        key, name = file_key(full), _name_of(path, file)
        # A missing file is reported wherever it is named.
        is_known = self.known.get(key) is not None or (key in self.known and Path(full).is_file())
        if is_known:
            return None
        value, bare = self.read(full, name, place, where), File(name, key, file_folder(full), {})
        self.known[key] = self._checked(value, bare)
        return None if value is None else (value, bare)

    def read(self, path: str, name: str, place: Place, where: str) -> Value | None:
        """Return what a file holds, or None if it has errors, which are reported."""
        try:
            if Path(path).is_file():
                with Path(path).open("rb") as file:
                    return read_text(file.read(MAX_BYTES + 1), name, self.diagnostics)
            problem = _remote(path) if is_remote(path) else _missing(path)
        except (OSError, ValueError) as error:
            problem = f"cannot be read, {error}. Check the path and its permissions."
        self.diagnostics.report(place, where, problem)
        return None

    def _checked(self, value: Value | None, bare: File) -> File | None:
        splits = None if value is None else self.grammar.file(value)
        if splits is None:
            return None
        return File(bare.name, bare.key, bare.directory, splits, bare.any_split)


def _remote(path: str) -> str:
    """Return the problem of a path with a scheme."""
    return f"remote paths are not supported yet, found {path!r}. Give a local path."


def _name_of(path: str, file: File) -> str:
    """Return the name in messages of a file that `file` names."""
    folder = os.path.dirname(file.name)  # noqa: PTH120 - stays empty where `.` is meant
    return os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - as above


def _named_paths(value: Value, where: str) -> Iterator[tuple[str, Place, str]]:
    """Yield the text of every `path:` in a file, with errors or without."""
    if isinstance(value.data, list):
        for number, item in enumerate(value.data):
            yield from _named_paths(item, f"{where}[{number}]")
    if not isinstance(value.data, dict):
        return
    for name, item in value.data.items():
        inner = f"{where}.{name}" if where else name
        if name == "path" and isinstance(item.data, str) and TEXT_PATTERN.fullmatch(item.data):
            yield item.data, item.place, inner
        elif name not in FREE_DATA:
            yield from _named_paths(item, inner)


def _missing(path: str) -> str:
    """Return the problem of a file that does not exist."""
    folder, name = os.path.split(path)
    if not Path(folder).is_dir():
        return f"there is no folder {folder!r}. Check the path; it starts at its file's folder."
    near = did_you_mean(name, [each.name for each in Path(folder).iterdir()])
    advice = f"Did you mean {near!r}?" if near else "Check the path."
    return f"there is no metadataset {name!r} in {folder!r}. {advice}"
