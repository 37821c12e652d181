"""Loading a metadataset: a file is read once, and so are the files that it names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from energy_data.config.grammar import Grammar, Origins
from energy_data.config.leaves import Expander, File, file_key, is_metadataset, is_remote, joined
from energy_data.config.schema import SPLITS
from energy_data.config.storage import StorageTable
from energy_data.config.yaml_nodes import (
    MAX_BYTES,
    Diagnostics,
    Place,
    Value,
    read_data,
    read_text,
)
from energy_data.core.recipe import did_you_mean, listed
from energy_data.core.spec import Spec
from energy_data.data.tables.hub import SCHEME
from energy_data.errors import SpecError
from energy_data.remote.mirror_paths import NO_OPTIONS, SCHEMES, is_url
from energy_data.remote.mirrors import mirror

PathLike: TypeAlias = str | os.PathLike[str]


@frozen(eq=False)
class LoadedMetadataset:
    """A metadataset, read and checked; no dataset is open."""

    root: File
    origins: Origins = field(repr=False)
    _files: Mapping[str, File | None] = field(repr=False)
    _storage: StorageTable = field(repr=False)
    _trees: dict[tuple[str, int | None], Spec] = field(repr=False)

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of its splits."""
        return SPLITS if self.root.any_split else tuple(self.root.splits)

    def tree(self, split: str, epochs: int | None = 1) -> Spec:
        """Return the tree of a split, with nested files written out and leaves not opened.

        epochs: `shuffle_over_epochs_multiplier` at its root. Raises SpecError if there is no such
        split.
        """
        if split not in self.root.splits and not self.root.any_split:
            raise SpecError(
                f"{self.root.name}: splits: there is no split {split!r}, it has "
                f"{listed(self.splits)}. Add it below `splits:`, or ask for another."
            )
        if (split, epochs) not in self._trees:
            diagnostics = Diagnostics()
            expander = Expander(self._files, self._storage, self.origins, diagnostics)
            tree = expander.tree(self.root, split, epochs)
            diagnostics.raise_if_any()
            self._trees[split, epochs] = tree
        return self._trees[split, epochs]


def load(
    path: PathLike | Mapping[str, Any],
    *,
    base_dir: PathLike | None = None,
    find_missing: bool = False,
) -> LoadedMetadataset:
    """Return a metadataset, checked with all files it names. No dataset is opened.

    path: a metadataset file; a mapping; or a dataset: a folder, a file or a pattern, for a
    metadataset that stands for this one dataset. base_dir: where relative paths start; the working
    folder if None. find_missing: whether to report datasets that do not exist along with other
    errors. Raises SpecError with every error of all the files, one line each:
    `file:line:column: where: what is wrong, what was found. What to do.`
    """
    diagnostics, folder = Diagnostics(), os.fspath(base_dir or ".")
    folder = folder if is_remote(folder) else os.path.realpath(folder)
    if isinstance(path, Mapping):
        value = read_data(path, "<mapping>", diagnostics)
        return checked(File("<mapping>", "", folder), value, diagnostics)
    name = os.fspath(path)
    full = joined(folder, name)
    if is_metadataset(full):
        found = _read(File("", "", folder), name, Place(name), "", {}, diagnostics)
        if found is None:
            diagnostics.raise_if_any()
        assert found is not None
        return checked(*found, diagnostics, find_missing=find_missing)
    folder, path = ("/", full) if is_remote(full) else os.path.split(full.rstrip("/"))
    value = read_data({"splits": {"train": {"path": path or "/"}}}, name, diagnostics)
    return checked(File(name, "", folder, any_split=True), value, diagnostics)


def checked(
    root: File, value: Value | None, diagnostics: Diagnostics, *, find_missing: bool = False
) -> LoadedMetadataset:
    """Return the metadataset whose outermost file holds `value`, with all files it names."""
    origins, storage = Origins(), StorageTable(diagnostics)
    files, named = _read_files(root, value, Grammar(diagnostics, origins), storage)
    storage.check_files()
    file = files[root.key]
    trees: dict[tuple[str, int | None], Spec] = {}
    if file is not None and not file.any_split:
        for name in file.splits:
            expander = Expander(files, storage, origins, diagnostics)
            trees[name, 1] = expander.tree(file, name, 1)
    if find_missing and diagnostics.num_reports:
        _report_missing(named, diagnostics)
    diagnostics.raise_if_any()
    assert file is not None
    return LoadedMetadataset(file, origins, files, storage, trees)


_Named = tuple[File, str, Place, str]  # a file, a path that it names, and where it does


def _read_files(
    root: File, value: Value | None, grammar: Grammar, storage: StorageTable
) -> tuple[dict[str, File | None], list[_Named]]:
    """Return the outermost file and all files that it names, by key; and all paths in them.

    A file with errors is None. The files that it names are read nevertheless.
    """
    files: dict[str, File | None] = {}
    read, unread = [(root, value)], list[_Named]()
    named: list[_Named] = []
    while read or unread:
        if not read:
            named.append(unread.pop())
            found = _read(*named[-1], files, grammar.diagnostics, storage)
            read += [] if found is None else [found]
            continue
        file, value = read.pop()
        if value is not None:
            storage.add(value)
        splits = None if value is None else grammar.file(value)
        files[file.key] = None if splits is None else evolve(file, splits=splits)
        unread += [(file, *each) for each in reversed(grammar.paths)]
        grammar.paths.clear()
    return files, named


def _report_missing(named: Sequence[_Named], diagnostics: Diagnostics) -> None:
    """Report datasets that do not exist; not those whose paths are patterns."""
    for by, path, place, where in named:
        full = joined(by.directory, path)
        if is_remote(path) or is_metadataset(full) or set(path) & set("{*?["):
            continue
        with suppress(OSError, ValueError):  # reported when it is opened
            if not Path(full).exists():
                diagnostics.report(place, where, _missing(full, "dataset"))


def _read(
    by: File,
    path: str,
    place: Place,
    where: str,
    known: Mapping[str, File | None],
    diagnostics: Diagnostics,
    storage: StorageTable | None = None,
) -> tuple[File, Value | None] | None:
    """Return the file at a path of another file; None for a dataset, or a known file.

    Also None for a file that cannot be read, which is reported where it is named.
    """
    full = joined(by.directory, path)
    key = file_key(full)
    if path.startswith(SCHEME) or key in known:
        return None
    if is_remote(full) and not is_url(full):
        known_schemes = ", ".join(f"{one}://" for one in SCHEMES)
        diagnostics.report(place, where, f"{path!r} has none of the schemes {known_schemes}.")
        return None
    if not is_metadataset(full):
        return None
    text = None
    try:
        local = full
        if is_url(full):
            # The outermost file is read as the environment says: no other file names options.
            local = mirror(full, storage.to_read(full, place, where) if storage else NO_OPTIONS)
        if Path(local).is_file():
            with Path(local).open("rb") as file:
                text = file.read(MAX_BYTES + 1)
        problem = _missing(full, "metadataset") if text is None else ""
    except SpecError as error:  # of the store
        problem = str(error)
    except (OSError, ValueError) as error:
        problem = f"cannot be read, {error}. Check the path and its permissions."
    if text is None:
        diagnostics.report(place, where, problem)
        return None
    if is_remote(full):
        return File(full, full, full.rpartition("/")[0]), read_text(text, full, diagnostics)
    folder = os.path.dirname(by.name)  # noqa: PTH120 - stays empty where `.` is meant
    name = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - as above
    return File(name, key, str(Path(key).parent)), read_text(text, name, diagnostics)


def _missing(path: str, what: str) -> str:
    """Return the problem of a metadataset or a dataset that does not exist."""
    folder, name = os.path.split(path)
    if not Path(folder).is_dir():
        return f"there is no folder {folder!r}. Check the path; it starts at its file's folder."
    near = did_you_mean(name, [each.name for each in Path(folder).iterdir()])
    advice = f"Did you mean {near!r}?" if near else "Check the path."
    return f"there is no {what} {name!r} in {folder!r}. {advice}"
