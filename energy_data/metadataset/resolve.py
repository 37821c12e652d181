"""One split with nested files written out: what is inherited is merged, and leaves have ids."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from attrs import define, evolve, field, frozen

from energy_data.metadataset.definitions import Definition, Share
from energy_data.metadataset.faults import Faults
from energy_data.metadataset.kind_path import PathDefinition
from energy_data.metadataset.load import File, Metadataset, joined
from energy_data.metadataset.subset import WHOLE, Subset, percent


@define(kw_only=True, eq=False)
class Branch:
    """An inner node."""

    definition: Definition
    share: Share | None  # weight or repetitions its parent gives it
    children: list[Branch | Twig] = field(factory=list)

    @property
    def kind(self) -> str:
        """The key that says what kind it is of."""
        return self.definition.kind


@define(kw_only=True, eq=False)
class Twig:
    """A leaf: one place where a dataset is drawn from."""

    definition: PathDefinition
    share: Share | None
    path: str  # to open
    written: str  # as the files write it, from the outermost file's folder
    split_part: str
    subset: Subset
    subflavors: Mapping[str, Any]
    independent: bool
    names: tuple[str, ...]  # its path in the tree of specs
    id: str = ""  # given once all leaves are known
    kind: ClassVar[str] = "path"

    @property
    def data(self) -> tuple[str, str, Subset]:
        """What is equal for two places that draw from the same samples."""
        return os.path.realpath(self.path), self.split_part, self.subset

    @property
    def default_id(self) -> str:
        """The id it has if none is given."""
        return f"{self.written}:{self.split_part}{self.subset}"


def expand(metadataset: Metadataset, split: str) -> Branch | Twig:
    """Return the tree of a split. SpecError if there is no such split, or ids clash."""
    scope = _Scope(metadataset=metadataset, file=metadataset.root, split_part=split)
    tree = scope.expand(metadataset.split(split), None)
    faults = Faults()
    _identify(list(twigs(tree)), faults)
    faults.raise_any()
    return tree


def twigs(tree: Branch | Twig) -> Iterator[Twig]:
    """Yield the leaves of a tree, in order."""
    if isinstance(tree, Twig):
        yield tree
    else:
        for child in tree.children:
            yield from twigs(child)


def resolve(metadataset: Metadataset, split: str) -> dict[str, Any]:
    """Return one split as a mapping that stands alone, for `load_metadataset`.

    Nested files are written out, paths are absolute, and every leaf has its id, so that the
    mapping compiles to the same tree. Where each leaf comes from is told by `describe_tree`.
    """
    return {"splits": {split: _plain(expand(metadataset, split))}}


@frozen(kw_only=True)
class _Scope:
    """What a node inherits from above."""

    metadataset: Metadataset
    file: File
    folder: str = ""  # of the file, as written from the outermost one
    split_part: str
    subset: Subset = WHOLE
    subflavors: Mapping[str, Any] = field(factory=dict)
    independent: bool = False
    names: tuple[str, ...] = ()

    def expand(self, definition: Definition, share: Share | None) -> Branch | Twig:
        """Return the tree below a node."""
        own = definition.all_subflavors
        inner = evolve(
            self,
            split_part=definition.split_part or self.split_part,
            subset=self.subset.within(definition.subset),
            subflavors={**own, **self.subflavors} if own else self.subflavors,
            independent=self.independent or definition.independent,
        )
        if isinstance(definition, PathDefinition):
            return inner.expand_path(definition, share)
        branch = Branch(definition=definition, share=share)
        for name, part in zip(definition.names, definition.parts, strict=True):
            below = evolve(inner, names=(*self.names, name))
            branch.children.append(below.expand(part.of, part.share))
        return branch

    def expand_path(self, definition: PathDefinition, share: Share | None) -> Branch | Twig:
        """Return a leaf, or the tree of a nested file."""
        written = os.path.join(self.folder, definition.path)  # noqa: PTH118 - may be a pattern
        nested = self.metadataset.file_of(definition, self.file)
        if nested is not None:
            folder = os.path.dirname(written)  # noqa: PTH120 - stays empty where `.` is meant
            below = evolve(self, file=nested, folder=folder)
            return below.expand(nested.splits[self.split_part], share)
        return Twig(
            definition=definition,
            share=share,
            path=joined(self.file.directory, definition.path),
            written=os.path.normpath(written),
            split_part=self.split_part,
            subset=self.subset,
            subflavors=self.subflavors,
            independent=self.independent,
            names=self.names,
        )


def _identify(leaves: list[Twig], faults: Faults) -> None:
    """Give every leaf its id: equal for places that draw from the same samples, else different."""
    data = {leaf: leaf.data for leaf in leaves}
    given: dict[tuple[str, str, Subset], set[str]] = {}
    default: dict[tuple[str, str, Subset], str] = {}
    for leaf in leaves:
        same = data[leaf]
        if leaf.definition.id is not None:
            given.setdefault(same, set()).add(leaf.definition.id)
        else:
            default[same] = min(leaf.default_id, default.get(same, leaf.default_id))
    owners: dict[str, tuple[object, Twig]] = {}
    for leaf in leaves:
        same = data[leaf]
        leaf.id = leaf.definition.id or default[same]
        if leaf.definition.id is None and len(names := given.get(same, set())) == 1:
            (leaf.id,) = names  # one dataset under a name and without: one leaf
        if leaf.independent:
            leaf.id += f"@{'/'.join(leaf.names)}"
        owner = (same, leaf.names if leaf.independent else None)
        known, first = owners.setdefault(leaf.id, (owner, leaf))
        if known != owner:
            _note_clash(leaf, first, faults)


def _note_clash(leaf: Twig, first: Twig, faults: Faults) -> None:
    places = leaf.definition.places
    faults.add(
        places.get("id", places["path"]),
        leaf.definition.where,
        f"the id {leaf.id!r} stands for two different datasets, found {_named(leaf)} here and "
        f"{_named(first)} at {first.definition.place}. Give one of them another `id`.",
    )


def _named(leaf: Twig) -> str:
    return f"{leaf.written} ({leaf.split_part}{leaf.subset})"


def _plain(tree: Branch | Twig) -> dict[str, Any]:
    """Return a tree as it is written in YAML."""
    if isinstance(tree, Twig):
        return _plain_leaf(tree)
    children = []
    for child, part in zip(tree.children, tree.definition.parts, strict=True):
        children.append({**part.plain(), **_plain(child)})
    return tree.definition.plain(children)


def _plain_leaf(leaf: Twig) -> dict[str, Any]:
    plain: dict[str, Any] = {"path": leaf.path, "id": leaf.id, "split_part": leaf.split_part}
    if leaf.subflavors:
        plain["subflavors"] = dict(leaf.subflavors)
    subset = leaf.subset
    relative = {"range": [percent(subset.low), percent(subset.high)]}
    if not subset.is_absolute:
        return {**plain, "subset": relative} if subset.is_relative else plain
    if subset.end is not None:
        return {**plain, "subset": {"range": list(subset.bounds(subset.end))}}
    plain["subset"] = {"range": [subset.first, "end"]}
    # A part of a range whose end is not known takes two nodes to write.
    return {"concat": [plain], "subset": relative} if subset.is_relative else plain
