"""Loading a metadataset with all files it names, and writing a split as one mapping."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from energy_data.config.diagnostics import Diagnostics, Place
from energy_data.config.files import (
    File,
    Files,
    PathLike,
    file_folder,
    file_key,
    is_metadataset,
    is_remote,
    joined,
)
from energy_data.config.grammar import Origins
from energy_data.config.kinds import SPLITS, is_below
from energy_data.config.leaves import DatasetPart, Expander, LeafUse
from energy_data.config.rules import STORES
from energy_data.config.yaml_nodes import Value, read_data
from energy_data.core.recipe import Child, Children, Group, Rule, keys_of
from energy_data.core.rules import listed
from energy_data.core.spec import Spec
from energy_data.errors import SpecError


@frozen(eq=False)
class LoadedMetadataset:
    """A metadataset, read and checked; no dataset is open."""

    root: File
    origins: Origins = field(repr=False)
    _files: Mapping[str, File | None] = field(repr=False)
    _trees: dict[tuple[str, int | None], Spec] = field(factory=dict, repr=False)

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
            expander = Expander(self._files, self.origins, diagnostics)
            tree = expander.tree(self.root, split, epochs)
            diagnostics.raise_if_any()
            assert tree is not None
            self._trees[split, epochs] = tree
        return self._trees[split, epochs]


def load(
    path: PathLike | Mapping[str, Any], *, base_dir: PathLike | None = None
) -> LoadedMetadataset:
    """Return the metadataset at `path`, or one that stands for the dataset there.

    path: a metadataset file; a dataset folder, a tar or a pattern of tars; or a mapping.
    base_dir: where relative paths start; the working folder if None. SpecError: see
    `load_metadataset`.
    """
    if isinstance(path, Mapping) or is_metadataset(joined(_folder(base_dir), os.fspath(path))):
        return load_metadataset(path, base_dir=base_dir)
    full = joined(_folder(base_dir), os.fspath(path))
    folder, name = ("/", full) if is_remote(full) else os.path.split(full.rstrip("/"))
    diagnostics = Diagnostics()
    data = {"splits": {"train": {"path": name or "/"}}}
    value = read_data(data, os.fspath(path), diagnostics)
    return _loaded(value, File(os.fspath(path), "", folder, {}, any_split=True), diagnostics)


def load_metadataset(
    path: PathLike | Mapping[str, Any], *, base_dir: PathLike | None = None
) -> LoadedMetadataset:
    """Return the metadataset in a file or a mapping, checked with all files it names.

    base_dir: where the path, or relative paths in a mapping, start; the working folder if None. No
    dataset is opened. Raises SpecError with every error of all the files, one line each:
    `file:line:column: where: what is wrong, what was found. What to do.`
    """
    diagnostics, folder = Diagnostics(), _folder(base_dir)
    if isinstance(path, Mapping):
        value = read_data(path, "<mapping>", diagnostics)
        return _loaded(value, File("<mapping>", "", folder, {}), diagnostics)
    name = os.fspath(path)
    full = joined(folder, name)
    value = Files(diagnostics, Origins()).read(full, name, Place(name), "")
    return _loaded(value, File(name, file_key(full), file_folder(full), {}), diagnostics)


def _folder(base_dir: PathLike | None) -> str:
    return os.path.realpath(os.fspath(base_dir) if base_dir is not None else ".")


def _loaded(value: Value | None, bare: File, diagnostics: Diagnostics) -> LoadedMetadataset:
    """Return the metadataset whose outermost file holds `value`."""
    origins = Origins()
    files = Files(diagnostics, origins)
    root = files.add(value, bare)
    trees: dict[tuple[str, int | None], Spec] = {}
    for split in () if root is None else root.splits:
        assert root is not None
        tree = Expander(files.known, origins, diagnostics).tree(root, split)
        if tree is not None and not root.any_split:
            trees[split, 1] = tree
    diagnostics.raise_if_any()
    assert root is not None
    return LoadedMetadataset(root, origins, files.known, trees)


def resolve(metadataset: LoadedMetadataset, split: str) -> dict[str, Any]:
    """Return one split as a mapping that stands alone, for `load_metadataset`.

    Nested files are written out, paths are absolute, and every leaf has its id, so that the
    mapping compiles to the same tree. `describe_tree` reports where each leaf comes from.
    """
    return {"splits": {split: plain_node(metadataset.tree(split))}}


def plain_node(tree: Spec) -> dict[str, Any]:
    """Return a tree as it is written in YAML."""
    if isinstance(tree, LeafUse):
        return _plain_leaf(tree)
    keys = plain_keys(tree)
    return {tree.kind: keys} if is_below(type(tree)) else keys


def plain_keys(owner: Any) -> dict[str, Any]:
    """Return the keys of a recipe, a part or a group as they are written in YAML.

    Defaults are left out, except for weights and repetitions.
    """
    plain: dict[str, Any] = {}
    for name, one in keys_of(type(owner)).items():
        value = getattr(owner, one.attribute)
        is_share = name == getattr(owner, "share_key", None)
        if value is None or value == {} or (value == one.default and not is_share):
            continue
        if isinstance(one.holds, Child):
            plain[name] = plain_node(value)
        elif isinstance(one.holds, Children):
            bare = one.holds.part is None
            plain[name] = [
                plain_node(item) if bare else {**plain_keys(item), **plain_node(item.of)}
                for item in value
            ]
        elif isinstance(one.holds, Group):
            plain[name] = plain_keys(value)
        else:
            assert isinstance(one.holds, Rule)
            plain[name] = one.holds.plain(value)
    return plain


def _plain_leaf(leaf: LeafUse) -> dict[str, Any]:
    if isinstance(leaf.of, DatasetPart):
        plain = _plain_part(leaf.of, leaf.subflavors)
    else:
        plain = _plain_join(leaf)
    plain |= {"id": leaf.id}
    if leaf.epochs != 1:
        plain["shuffle_over_epochs_multiplier"] = leaf.epochs
    for name in ("tokens_per_sample", "max_repetitions"):
        if (value := getattr(leaf.keys, name)) is not None:
            plain[name] = value
    if leaf.aux:
        plain["aux"] = STORES.plain(leaf.aux)
    if (subset := leaf.subset.plain()) is not None:
        plain["subset"] = subset
    if leaf.subset.is_relative and leaf.subset.is_absolute and leaf.subset.end is None:
        # A part of a range without a known end takes two nodes to write.
        return {"concat": [plain], "subset": leaf.subset.plain_relative()}
    return plain


def _plain_part(part: DatasetPart, subflavors: Mapping[str, Any]) -> dict[str, Any]:
    plain = {
        "path": part.path,
        "split_part": part.split_part,
        "dataset_config": part.dataset_config,
        "split_config": part.split_config,
        "subflavors": dict(subflavors) or None,
    }
    return {name: value for name, value in plain.items() if value is not None}


def _plain_join(leaf: LeafUse) -> dict[str, Any]:
    assert not isinstance(leaf.of, DatasetPart)
    recipe: Any = leaf.recipe
    written = [
        _plain_part(member.of, member.subflavors)
        | ({} if member.nonmatch == "error" else {"nonmatch": member.nonmatch})
        for member in leaf.of
    ]
    names = recipe.names
    joiner = {} if recipe.joiner is None else {"joiner": recipe.joiner.plain()}
    return {"join": dict(zip(names, written, strict=True)) if names else written, **joiner}
