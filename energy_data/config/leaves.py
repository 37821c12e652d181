"""The tree of one split with nested files written out: what is inherited, and ids of leaves."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from attrs import define, evolve, field, frozen

from energy_data.config.diagnostics import Diagnostics
from energy_data.config.files import File, file_key, is_metadataset, joined
from energy_data.config.grammar import Origins
from energy_data.config.keys import (
    ONLY_FOR_DATASETS,
    SUFFIXES,
    DatasetsSpec,
    JoinSpec,
    LeafKeys,
    NodeKeys,
    PathSpec,
    UnopenedSpec,
)
from energy_data.config.rules import FULL, Aux, Subset
from energy_data.config.staged import DocsPerStepSpec
from energy_data.core.recipe import parts_of, with_children
from energy_data.core.rules import listed
from energy_data.core.spec import Spec
from energy_data.data.join_table import Nonmatch

MAX_LEAVES = 200_000  # of one split, with nested files written out
MAX_DEPTH = 64  # nodes below each other, with nested files written out; also files


@frozen(kw_only=True)
class DatasetPart:
    """A part of a dataset, and how it is read."""

    path: str  # to open
    written: str  # as the files write it, from the outermost file's folder
    split_part: str
    dataset_config: str | None = None
    split_config: str | None = None

    @property
    def data(self) -> tuple[object, ...]:
        """Equal for two places that have the same samples."""
        return os.path.realpath(self.path), self.split_part, self.split_config, self.dataset_config

    @property
    def name(self) -> str:
        """Its name in ids."""
        options = {"split_config": self.split_config, "dataset_config": self.dataset_config}
        given = [f";{name}={value}" for name, value in options.items() if value is not None]
        return "".join([self.written, ":", self.split_part, *given])

    def __str__(self) -> str:
        return f"the part {self.split_part!r} of {self.path}"


@frozen(kw_only=True)
class JoinedDataset:
    """A dataset of a join."""

    nonmatch: Nonmatch
    of: DatasetPart
    subflavors: Mapping[str, Any] = field(eq=False)

    @property
    def data(self) -> tuple[object, ...]:
        """Equal for two datasets that are joined alike."""
        return self.of.data, self.nonmatch

    @property
    def name(self) -> str:
        """Its name in ids."""
        rule = "" if self.nonmatch == "error" else f";nonmatch={self.nonmatch}"
        return f"{self.of.name}{rule}"


@define(kw_only=True, eq=False)
class LeafUse(UnopenedSpec):
    """One place where samples are drawn from, of one dataset or of several joined ones."""

    kind = "leaf_use"

    recipe: PathSpec | JoinSpec  # as written
    keys: LeafKeys  # as written
    of: DatasetPart | tuple[JoinedDataset, ...]
    subset: Subset
    epochs: int | None  # mixed with each other; -1: all; None: the order of the files
    subflavors: Mapping[str, Any]
    aux: Mapping[str, Aux]  # paths to open
    independent: bool
    cache: str | None  # folder for what is computed of it; None: it belongs to no file
    names: tuple[str, ...]  # its path in the tree
    id: str = ""  # set once all leaves of the tree are known

    @property
    def written(self) -> str:
        """The datasets as the files write them, from the outermost file's folder."""
        if isinstance(self.of, DatasetPart):
            return self.of.written
        return f"join({', '.join(member.of.written for member in self.of)})"

    @property
    def data(self) -> tuple[object, ...]:
        """Equal for two places that draw from the same samples in the same order."""
        of = self.of.data if isinstance(self.of, DatasetPart) else tuple(m.data for m in self.of)
        return of, self.subset, self.epochs

    @property
    def default_id(self) -> str:
        """The id it has if none is given."""
        if isinstance(self.of, DatasetPart):
            name = self.of.name
        else:
            name = f"join({','.join(member.name for member in self.of)})"
        epochs = "" if self.epochs == 1 else f";epochs={self.epochs}"
        return f"{name}{self.subset}{epochs}"

    def __str__(self) -> str:
        return str(self.of) if isinstance(self.of, DatasetPart) else "the join"


def leaf_uses(tree: Spec) -> Iterator[LeafUse]:
    """Yield the leaves of a tree, in order."""
    if isinstance(tree, LeafUse):
        yield tree
    else:
        for child, _ in parts_of(tree):
            yield from leaf_uses(child)


@frozen(kw_only=True)
class Scope:
    """What a node inherits from above."""

    file: File
    folder: str = ""  # of the file, as written from the outermost one
    split_part: str
    subset: Subset = FULL
    subflavors: Mapping[str, Any] = field(factory=dict)
    epochs: int | None = 1
    independent: bool = False
    names: tuple[str, ...] = ()
    chain: tuple[tuple[File, str], ...] = ()  # the files and splits that lead here

    def inside(self, keys: NodeKeys) -> Scope:
        """Return what is valid inside a node with these keys."""
        own, epochs = keys.all_subflavors, self.epochs
        if isinstance(keys, LeafKeys):
            epochs = _mixed(epochs, keys.shuffle_over_epochs_multiplier)
        return evolve(
            self,
            split_part=keys.split_part or self.split_part,
            subset=self.subset.within(keys.subset),
            subflavors={**own, **self.subflavors} if own else self.subflavors,
            epochs=epochs,
            independent=self.independent or keys.independent,
        )

    def written(self, path: str) -> str:
        """Return a path as seen from the folder of the outermost file."""
        return os.path.join(self.folder, path)  # noqa: PTH118 - may be a pattern


class _TooLarge(Exception):  # noqa: N818 - never leaves this module
    """The tree exceeds the limits; it has been reported."""


class Expander:
    """Writes out nested files, and pushes what is inherited down to the leaves."""

    def __init__(
        self, files: Mapping[str, File | None], origins: Origins, diagnostics: Diagnostics
    ) -> None:
        self.files, self.origins, self.diagnostics = files, origins, diagnostics
        self.counts: dict[tuple[str, str], int] = {}  # leaves, by key of a file and split

    def tree(self, root: File, split: str, epochs: int | None = 1) -> Spec | None:
        """Return the tree of a split, with ids; None: it is too large. Problems are reported.

        epochs: `shuffle_over_epochs_multiplier` at its root.
        """
        recipe = root.splits["train" if root.any_split else split]
        scope = Scope(file=root, split_part=split, epochs=epochs, chain=((root, split),))
        try:
            if (found := self.count(recipe, root, split, ())) > MAX_LEAVES:
                _stop(f"found {found:,} datasets where {MAX_LEAVES:,} are allowed")
            tree = self.node(recipe, scope, 1)
        except _TooLarge as error:
            self.report(recipe, "", str(error))
            return None
        self.identify(list(leaf_uses(tree)))
        return tree

    def report(self, recipe: Spec, key: str, problem: str) -> None:
        """Report a problem at a key of a node, or else at the node."""
        self.diagnostics.report(*self.origins.of(recipe).locate(key), problem)

    def count(self, recipe: Spec, file: File, part: str, chain: tuple[str, ...]) -> int:
        """Return the number of leaves below a node, with nested files written out.

        The cost is that of the files, not of the tree, which may be exponentially larger.
        """
        part = self.origins.of(recipe).keys.split_part or part
        if not isinstance(recipe, PathSpec):
            if isinstance(recipe, JoinSpec):
                return 1
            return sum(self.count(node, file, part, chain) for node, _ in parts_of(recipe))
        path = joined(file.directory, recipe.path)
        nested = self.files.get(file_key(path)) if path.endswith(SUFFIXES) else None
        if nested is None or part not in nested.splits:
            return 1
        place = f"{nested.key}:{part}"
        if place in chain or len(chain) >= MAX_DEPTH:
            return 1  # reported when it is expanded
        if (nested.key, part) not in self.counts:
            found = self.count(nested.splits[part], nested, part, (*chain, place))
            self.counts[nested.key, part] = found
        return self.counts[nested.key, part]

    def node(self, recipe: Spec, scope: Scope, depth: int) -> Spec:
        """Return the tree below a node."""
        if depth > MAX_DEPTH:
            _stop(f"found more than {MAX_DEPTH} nodes below each other")
        origin = self.origins.of(recipe)
        inner = scope.inside(origin.keys)
        if isinstance(recipe, PathSpec):
            return self.path(recipe, inner, depth)
        if isinstance(recipe, JoinSpec):
            return self.leaf(recipe, inner, self.members(recipe, inner))
        if isinstance(recipe, DocsPerStepSpec) and scope.names:
            problem = "must be all of a split, found its file in a part of one."
            assert recipe.yaml is not None
            self.report(recipe, "docs_per_step", f"{problem} {recipe.yaml.advice}")
        nodes = [
            self.node(child, evolve(inner, names=(*scope.names, name)), depth + 1)
            for name, child in recipe.children.items()
        ]
        tree = recipe.blend(nodes) if isinstance(recipe, DatasetsSpec) else None
        return self.origins.add(tree or with_children(recipe, nodes), origin)

    def path(self, recipe: PathSpec, scope: Scope, depth: int) -> Spec:
        """Return a leaf, or the tree of a nested file."""
        path = joined(scope.file.directory, recipe.path)
        if is_metadataset(path) and (nested := self.files.get(file_key(path))) is not None:
            self.check_nested(recipe)
            if self.may_enter(nested, recipe, scope):
                folder = os.path.dirname(scope.written(recipe.path))  # noqa: PTH120 - may be empty
                chain = (*scope.chain, (nested, scope.split_part))
                below = evolve(scope, file=nested, folder=folder, chain=chain)
                return self.node(nested.splits[scope.split_part], below, depth)
        aux = {
            name: evolve(store, path=joined(scope.file.directory, store.path))
            for name, store in recipe.aux.items()
        }
        return self.leaf(recipe, scope, _part(recipe, scope), aux)

    def check_nested(self, recipe: PathSpec) -> None:
        """Report keys of single datasets next to the path of a metadataset."""
        keys = self.origins.of(recipe).keys
        if keys.subset is not None and keys.subset.is_absolute:
            problem = "numbers of samples are for single datasets, found a metadataset"
            self.report(recipe, "subset", f"{problem}. Use percentages.")
        for name, problem in ONLY_FOR_DATASETS.items():
            if getattr(keys if hasattr(keys, name) else recipe, name):
                self.report(recipe, name, problem)

    def may_enter(self, nested: File, recipe: PathSpec, scope: Scope) -> bool:
        """Return whether a nested file has the split, and does not lead back to itself."""
        part = scope.split_part
        if part not in nested.splits:
            known = listed(nested.splits) if nested.splits else "none"
            problem = f"{nested.name} has no split '{part}', it has {known}. Add the split there, "
            self.report(recipe, "path", f"{problem}or `split_part` here.")
            return False
        if (nested.key, part) in [(file.key, split) for file, split in scope.chain]:
            names = [f"{file.name} ({split})" for file, split in scope.chain]
            circle = " -> ".join([*names, f"{nested.name} ({part})"])
            problem = f"the files form a cycle, found {circle}. Remove one of these paths."
            self.report(recipe, "path", problem)
            return False
        if len(scope.chain) >= MAX_DEPTH:
            problem = f"more than {MAX_DEPTH} files below each other. Flatten them."
            self.report(recipe, "path", problem)
            return False
        return True

    def members(self, recipe: JoinSpec, scope: Scope) -> tuple[JoinedDataset, ...]:
        """Return the datasets of a join."""
        found = []
        for part in recipe.parts:
            inner = scope.inside(self.origins.of(part.of).keys)
            found.append(
                JoinedDataset(
                    nonmatch=part.nonmatch, of=_part(part.of, inner), subflavors=inner.subflavors
                )
            )
        return tuple(found)

    def leaf(
        self,
        recipe: PathSpec | JoinSpec,
        scope: Scope,
        of: DatasetPart | tuple[JoinedDataset, ...],
        aux: Mapping[str, Aux] | None = None,
    ) -> LeafUse:
        """Return a leaf."""
        keys = self.origins.of(recipe).keys
        assert isinstance(keys, LeafKeys)
        return LeafUse(
            recipe=recipe,
            keys=keys,
            of=of,
            subset=scope.subset,
            epochs=scope.epochs,
            subflavors=scope.subflavors,
            aux=aux or {},
            independent=scope.independent,
            cache=f"{scope.file.key}.cache" if scope.file.key else None,
            names=scope.names,
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
            if leaf.independent:
                leaf.id += f"@{'/'.join(leaf.names)}"
            owner = (same, leaf.names if leaf.independent else None)
            known, first = owners.setdefault(leaf.id, (owner, leaf))
            if known != owner:
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


def _stop(found: str) -> NoReturn:
    raise _TooLarge(
        f"too large with nested files written out, {found}. Look for files that name each other "
        "many times."
    )


def _part(recipe: PathSpec, scope: Scope) -> DatasetPart:
    """Return where a dataset is read from."""
    return DatasetPart(
        path=joined(scope.file.directory, recipe.path),
        written=os.path.normpath(scope.written(recipe.path)),
        split_part=scope.split_part,
        dataset_config=recipe.dataset_config,
        split_config=recipe.split_config,
    )


def _mixed(outer: int | None, inner: int | None) -> int | None:
    """Return how many epochs are mixed, from the numbers around a node and at it."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner
