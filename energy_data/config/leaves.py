"""The tree of one split with nested files written out: what is inherited, and ids of leaves."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from attrs import define, evolve, field, frozen

from energy_data.config.grammar import Origins
from energy_data.config.keys import (
    FORMAT_KEYS,
    SUFFIXES,
    DatasetsSpec,
    JoinSpec,
    LeafKeys,
    NodeKeys,
    PathSpec,
    UnopenedSpec,
)
from energy_data.config.rules import FULL, Aux, Subset
from energy_data.config.staged import DocsPerStepSpec, mixtures
from energy_data.config.storage import StorageTable
from energy_data.config.windows import set_longest, two_lengths_in
from energy_data.config.yaml_nodes import Diagnostics
from energy_data.core.recipe import listed
from energy_data.core.spec import Spec
from energy_data.data.join_table import Nonmatch
from energy_data.nodes.blend import BlendSpec

MAX_NODES = 200_000  # of one split, with nested files written out
MAX_DEPTH = 64  # nodes below each other, with nested files written out; also files

_FOR_ONE_DATASET = (
    "tokens_per_sample", "max_repetitions", "id", "dataset_config", "split_config", "filter", "aux",
    *FORMAT_KEYS,
)  # fmt: skip
"""Keys that mean nothing where a path is that of a metadataset."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@frozen(eq=False)
class File:
    """One file of a metadataset, checked."""

    name: str  # in messages
    key: str  # equal for the same file, however it is reached; empty: not a file
    directory: str  # relative paths start here
    splits: Mapping[str, Spec] = field(factory=dict)
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
    if is_remote(directory):
        base, _, key = directory.partition("://")
        return f"{base}://{posixpath.normpath(posixpath.join(key, path))}"
    full = os.path.join(directory, path)  # noqa: PTH118 - patterns are not paths
    return os.path.realpath(full) if ".." in full.split("/") else os.path.normpath(full)


def relative(folder: str, path: str) -> str:
    """Return `path` as written in a file, from the folder of the outermost file."""
    if is_remote(path) or is_remote(folder):
        return joined(folder, path)
    return os.path.normpath(os.path.join(folder, path))  # noqa: PTH118 - may be a pattern


def file_key(path: str) -> str:
    """Return a key that is equal for the same file, however it is reached: its real folder."""
    if is_remote(path):
        return path
    folder, name = os.path.split(path)
    return f"{os.path.realpath(folder or '.')}/{name}"


@frozen(kw_only=True)
class DatasetPart:
    """A part of a dataset, and how it is read: alone, or in a join.

    Equal for two places that have the same samples.
    """

    path: str = field(eq=False)  # to open
    storage: Mapping[str, Any] = field(eq=False)  # options of its store
    real_path: str  # equal for the same dataset
    written: str = field(eq=False)  # as the files write it, from the outermost file's folder
    split_part: str
    config: tuple[tuple[str, Any], ...] = ()  # keys of its format and of files in `.nv-meta`
    # The same of windows of tokens, which stages may read with other values.
    windows: tuple[tuple[str, Any], ...] = field(default=(), eq=False)
    nonmatch: Nonmatch = "error"  # in a join
    subflavors: Mapping[str, Any] = field(eq=False)

    @property
    def name(self) -> str:
        """Its name in ids."""
        nonmatch = () if self.nonmatch == "error" else (("nonmatch", self.nonmatch),)
        options = [f";{name}={value}" for name, value in (*self.config, *nonmatch)]
        return "".join([self.written, ":", self.split_part, *options])

    def __str__(self) -> str:
        return f"the part {self.split_part!r} of {self.path}"


@define(kw_only=True, eq=False)
class LeafUse(UnopenedSpec):
    """One place where samples are drawn from, of one dataset or of several joined ones."""

    kind = "leaf_use"
    holders = MappingProxyType[str, Any]({})  # `recipe` is how it is written, and not a child

    recipe: PathSpec | JoinSpec  # as written
    keys: LeafKeys  # as written
    parts: tuple[DatasetPart, ...]  # several for a join
    subset: Subset
    epochs: int | None  # mixed with each other; -1: all; None: the order of the files
    aux: Mapping[str, Aux]  # paths to open
    cache: str | None  # folder for what is computed of it; None: that of the user
    id: str = ""  # set once all leaves of the tree are known

    def listed(self, names: list[str]) -> str:
        """Return the names of its datasets as one."""
        return f"join({','.join(names)})" if isinstance(self.recipe, JoinSpec) else names[0]

    @property
    def written(self) -> str:
        """The datasets as the files write them, from the outermost file's folder."""
        return self.listed([part.written for part in self.parts])

    @property
    def data(self) -> tuple[object, ...]:
        """Equal for two places that draw from the same samples in the same order."""
        return self.parts, self.subset, self.epochs

    @property
    def default_id(self) -> str:
        """The id it has if none is given."""
        subset = "" if self.subset == FULL else str(self.subset)
        epochs = "" if self.epochs == 1 else f";epochs={self.epochs}"
        return f"{self.listed([part.name for part in self.parts])}{subset}{epochs}"

    def __str__(self) -> str:
        return "the join" if isinstance(self.recipe, JoinSpec) else str(self.parts[0])


def leaf_uses(tree: Spec) -> Iterator[LeafUse]:
    """Yield the leaves of a tree, in order."""
    return (inner for _, inner in tree.walk() if isinstance(inner, LeafUse))


@frozen(kw_only=True)
class Scope:
    """What a node inherits from above."""

    file: File
    storage: StorageTable
    folder: str = ""  # of the file, as written from the outermost one
    split_part: str
    subset: Subset = FULL
    subflavors: Mapping[str, Any] = field(factory=dict)
    epochs: int | None = 1
    chain: tuple[tuple[File, str], ...] = ()  # the files and splits that lead here

    def inside(self, keys: NodeKeys) -> Scope:
        """Return what is valid inside a node with these keys."""
        own = {} if keys.subflavor is None else {"__subflavor__": keys.subflavor}
        own.update(keys.subflavors)
        epochs, subset = self.epochs, self.subset
        if isinstance(keys, LeafKeys):
            inner = keys.shuffle_over_epochs_multiplier
            if epochs is None or inner is None:
                epochs = None
            else:
                epochs = -1 if -1 in (epochs, inner) else epochs * inner
        return evolve(
            self,
            split_part=keys.split_part or self.split_part,
            subset=subset if keys.subset is None else subset.within(keys.subset),
            subflavors={**own, **self.subflavors} if own else self.subflavors,
            epochs=epochs,
        )

    def part(self, recipe: PathSpec, nonmatch: Nonmatch = "error") -> DatasetPart:
        """Return where a dataset is read from."""
        names = ("split_config", "dataset_config", "filter", *FORMAT_KEYS)
        config = [(name, getattr(recipe, name)) for name in names]
        path = joined(self.file.directory, recipe.path)
        return DatasetPart(
            path=path,
            storage=self.storage.of(path),
            real_path=path if is_remote(path) else os.path.realpath(path),
            written=relative(self.folder, recipe.path),
            split_part=self.split_part,
            config=tuple(
                (name, value) for name, value in config if value is not None and value is not False
            ),
            nonmatch=nonmatch,
            subflavors=self.subflavors,
        )


class _TooLarge(Exception):  # noqa: N818 - never leaves this module
    """The tree exceeds the limits."""


@define(eq=False)
class Expander:
    """Writes out nested files, and pushes what is inherited down to the leaves."""

    files: Mapping[str, File | None]
    storage: StorageTable
    origins: Origins
    diagnostics: Diagnostics
    num_nodes: int = 0

    def tree(self, root: File, split: str, epochs: int | None) -> Spec:
        """Return the tree of a split, with ids. Problems are reported.

        epochs: `shuffle_over_epochs_multiplier` at its root.
        """
        recipe = root.splits["train" if root.any_split else split]
        scope = Scope(
            file=root,
            storage=self.storage,
            split_part=split,
            epochs=epochs,
            chain=((root, split),),
        )
        try:
            tree = self.node(recipe, scope, 1)
        except _TooLarge as error:
            problem = f"too large with nested files written out, found more than {error}."
            advice = "Look for files that name each other many times."
            self.report(recipe, "", f"{problem} {advice}")
            return recipe
        leaves = list(leaf_uses(tree))
        set_longest(leaves)
        self.identify(leaves)
        for mixture in mixtures(tree):
            for leaf, problem in two_lengths_in(leaf_uses(mixture)):
                self.report(leaf.recipe, "seq_len", problem)
        return tree

    def report(self, recipe: Spec, key: str, problem: str) -> None:
        """Report a problem at a key of a node, or else at the node."""
        self.diagnostics.report(*self.origins.of(recipe).locate(key), problem)

    def node(self, recipe: Spec, scope: Scope, depth: int) -> Spec:
        """Return the tree below a node."""
        self.num_nodes += 1
        if self.num_nodes > MAX_NODES:
            raise _TooLarge(f"{MAX_NODES:,} nodes")
        if depth > MAX_DEPTH:
            raise _TooLarge(f"{MAX_DEPTH} nodes below each other")
        origin = self.origins.of(recipe)
        inner = scope.inside(origin.keys)
        if isinstance(recipe, PathSpec):
            return self.path(recipe, inner, depth)
        if isinstance(recipe, JoinSpec):
            parts = [(inner.inside(self.origins.of(one.of).keys), one) for one in recipe.parts]
            below = [one_scope.part(one.of, one.nonmatch) for one_scope, one in parts]
            return self.leaf(recipe, inner, below)
        if isinstance(recipe, DocsPerStepSpec) and depth > 1:
            problem = "must be all of a split, found its file in a part of one."
            self.report(recipe, "docs_per_step", f"{problem} {recipe.yaml.advice}")
        nodes = [self.node(child, inner, depth + 1) for child in recipe.children.values()]
        tree: Spec = recipe.with_children(nodes)
        if isinstance(tree, DatasetsSpec):
            tree = BlendSpec(tree.parts)
        return self.origins.add(tree, origin)

    def path(self, recipe: PathSpec, scope: Scope, depth: int) -> Spec:
        """Return a leaf, or the tree of a nested file."""
        part = scope.part(recipe)
        nested = self.files.get(file_key(part.path)) if part.path.endswith(SUFFIXES) else None
        if nested is None or not self.may_enter(nested, recipe, scope):
            return self.leaf(recipe, scope, [part])
        folder = os.path.dirname(part.written)  # noqa: PTH120 - may be empty
        chain = (*scope.chain, (nested, scope.split_part))
        below = evolve(scope, file=nested, folder=folder, chain=chain)
        return self.node(nested.splits[scope.split_part], below, depth)

    def may_enter(self, nested: File, recipe: PathSpec, scope: Scope) -> bool:
        """Return whether a nested file has the split, and does not lead back to itself.

        Problems are reported, also those of keys that are for single datasets.
        """
        keys, part = self.origins.of(recipe).keys, scope.split_part
        if keys.subset is not None and keys.subset.is_absolute:
            problem = "numbers of samples are for single datasets, found a metadataset"
            self.report(recipe, "subset", f"{problem}. Use percentages.")
        for name in _FOR_ONE_DATASET:
            if getattr(keys if hasattr(keys, name) else recipe, name):
                problem = "it is for a single dataset, found a metadataset. Write it there."
                self.report(recipe, name, problem)
        if part not in nested.splits:
            problem = f"{nested.name} has no split '{part}', it has {listed(nested.splits)}."
            problem = f"{problem} Add the split there, or `split_part` here."
        elif (nested.key, part) in [(file.key, split) for file, split in scope.chain]:
            names = [f"{file.name} ({split})" for file, split in scope.chain]
            circle = " -> ".join([*names, f"{nested.name} ({part})"])
            problem = f"the files form a cycle, found {circle}. Remove one of these paths."
        elif len(scope.chain) >= MAX_DEPTH:
            problem = f"more than {MAX_DEPTH} files below each other. Flatten them."
        else:
            return True
        self.report(recipe, "path", problem)
        return False

    def leaf(
        self, recipe: PathSpec | JoinSpec, scope: Scope, parts: Iterable[DatasetPart]
    ) -> LeafUse:
        """Return a leaf of some datasets."""
        keys, directory = self.origins.of(recipe).keys, scope.file.directory
        key = scope.file.key
        assert isinstance(keys, LeafKeys)
        stores = recipe.aux if isinstance(recipe, PathSpec) else {}
        aux = {
            name: evolve(one, path=path, storage=self.storage.of(path))
            for name, one in stores.items()
            for path in [joined(directory, one.path)]
        }
        return LeafUse(
            recipe=recipe,
            keys=keys,
            parts=tuple(parts),
            subset=scope.subset,
            epochs=scope.epochs,
            aux=aux,
            cache=None if not key or is_remote(key) else f"{key}.cache",
        )

    def identify(self, leaves: list[LeafUse]) -> None:
        """Set the ids: equal for leaves that draw from the same samples, otherwise different."""
        data = {leaf: leaf.data for leaf in leaves}
        given: dict[tuple[object, ...], set[str]] = {}
        default: dict[tuple[object, ...], str] = {}
        for leaf in leaves:
            same = data[leaf]
            if leaf.keys.id is not None:
                given.setdefault(same, set()).add(leaf.keys.id)
            else:
                default[same] = min(leaf.default_id, default.get(same, leaf.default_id))
        owners: dict[str, tuple[object, LeafUse]] = {}
        for leaf in leaves:
            same = data[leaf]
            leaf.id = leaf.keys.id or default[same]
            if leaf.keys.id is None and len(names := given.get(same, set())) == 1:
                (leaf.id,) = names  # a dataset listed with an id and without: one leaf
            known, first = owners.setdefault(leaf.id, (same, leaf))
            if known != same:
                self.report_clash(leaf, first)

    def report_clash(self, leaf: LeafUse, first: LeafUse) -> None:
        """Report one id for two datasets."""
        origin = self.origins.of(leaf.recipe)
        place, _ = origin.locate("id" if leaf.keys.id is not None else leaf.recipe.kind)
        self.diagnostics.report(
            place,
            origin.where,
            f"the id {leaf.id!r} stands for two different datasets, found {leaf.default_id} here "
            f"and {first.default_id} at {self.origins.of(first.recipe).place}. Give one of them "
            "another `id`.",
        )
