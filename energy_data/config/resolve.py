"""One split with nested files written out: what is inherited is merged, and leaves have ids."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from energy_data.config.aux import Aux
from energy_data.config.definitions import Definition, LeafDefinition, Share
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.kind_join import JoinDefinition
from energy_data.config.kind_path import PathDefinition
from energy_data.config.load import File, Metadataset, joined
from energy_data.config.plain import plain_tree
from energy_data.config.subset import WHOLE, Subset
from energy_data.config.twigs import Branch, DatasetPart, Joined, Twig, twigs


def expand(metadataset: Metadataset, split: str, epochs: int | None = 1) -> Branch | Twig:
    """Return the tree of a split. SpecError if there is no such split, or ids clash.

    epochs: what `shuffle_over_epochs_multiplier` is at its root.
    """
    scope = _Scope(metadataset=metadataset, file=metadataset.root, split_part=split, epochs=epochs)
    tree = scope.expand(metadataset.split(split), None)
    faults = Diagnostics()
    _identify(list(twigs(tree)), faults)
    faults.raise_if_any()
    return tree


def resolve(metadataset: Metadataset, split: str) -> dict[str, Any]:
    """Return one split as a mapping that stands alone, for `load_metadataset`.

    Nested files are written out, paths are absolute, and every leaf has its id, so that the
    mapping compiles to the same tree. Where each leaf comes from is told by `describe_tree`.
    """
    return {"splits": {split: plain_tree(expand(metadataset, split))}}


@frozen(kw_only=True)
class _Scope:
    """What a node inherits from above."""

    metadataset: Metadataset
    file: File
    folder: str = ""  # of the file, as written from the outermost one
    split_part: str
    subset: Subset = WHOLE
    subflavors: Mapping[str, Any] = field(factory=dict)
    epochs: int | None = 1
    independent: bool = False
    names: tuple[str, ...] = ()

    def expand(self, definition: Definition, share: Share | None) -> Branch | Twig:
        """Return the tree below a node."""
        inner = self.inside(definition)
        if isinstance(definition, PathDefinition):
            return inner.expand_path(definition, share)
        if isinstance(definition, JoinDefinition):
            return inner.twig(definition, share, inner.members(definition))
        branch = Branch(definition=definition, share=share)
        for name, part in zip(definition.names, definition.parts, strict=True):
            below = evolve(inner, names=(*self.names, name))
            branch.children.append(below.expand(part.of, part.share))
        return branch

    def inside(self, definition: Definition) -> _Scope:
        """Return what the children of a node inherit."""
        own, epochs = definition.all_subflavors, self.epochs
        if isinstance(definition, LeafDefinition):
            epochs = _mixed(epochs, definition.shuffle_over_epochs_multiplier)
        return evolve(
            self,
            split_part=definition.split_part or self.split_part,
            subset=self.subset.within(definition.subset),
            subflavors={**own, **self.subflavors} if own else self.subflavors,
            epochs=epochs,
            independent=self.independent or definition.independent,
        )

    def expand_path(self, definition: PathDefinition, share: Share | None) -> Branch | Twig:
        """Return a leaf, or the tree of a nested file."""
        nested = self.metadataset.file_of(definition, self.file)
        if nested is not None:
            folder = os.path.dirname(self.written(definition.path))  # noqa: PTH120 - may be empty
            below = evolve(self, file=nested, folder=folder)
            return below.expand(nested.splits[self.split_part], share)
        aux = {
            name: evolve(store, path=joined(self.file.directory, store.path))
            for name, store in definition.aux.items()
        }
        return self.twig(definition, share, self.place(definition), aux)

    def twig(
        self,
        definition: PathDefinition | JoinDefinition,
        share: Share | None,
        of: DatasetPart | tuple[Joined, ...],
        aux: Mapping[str, Aux] | None = None,
    ) -> Twig:
        """Return a leaf."""
        return Twig(
            definition=definition,
            share=share,
            of=of,
            subset=self.subset,
            epochs=self.epochs,
            subflavors=self.subflavors,
            aux=aux or {},
            independent=self.independent,
            cache=f"{self.file.key}.cache" if self.file.key else None,
            names=self.names,
        )

    def place(self, definition: PathDefinition) -> DatasetPart:
        """Return where a dataset is read from."""
        return DatasetPart(
            path=joined(self.file.directory, definition.path),
            written=os.path.normpath(self.written(definition.path)),
            split_part=self.split_part,
            dataset_config=definition.dataset_config,
            split_config=definition.split_config,
        )

    def members(self, definition: JoinDefinition) -> tuple[Joined, ...]:
        """Return the datasets of a join."""
        return tuple(
            Joined(
                name=name,
                nonmatch=nonmatch,
                of=(inner := self.inside(path)).place(path),
                subflavors=inner.subflavors,
                definition=path,
            )
            for name, path, nonmatch in definition.members
        )

    def written(self, path: str) -> str:
        """Return a path as seen from the folder of the outermost file."""
        return os.path.join(self.folder, path)  # noqa: PTH118 - may be a pattern


def _mixed(outer: int | None, inner: int | None) -> int | None:
    """Return how many epochs are mixed, as said around a node and at it."""
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


def _identify(leaves: list[Twig], faults: Diagnostics) -> None:
    """Give every leaf its id: equal for places that draw from the same samples, else different."""
    data = {leaf: leaf.data for leaf in leaves}
    given: dict[tuple[object, ...], set[str]] = {}
    default: dict[tuple[object, ...], str] = {}
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


def _note_clash(leaf: Twig, first: Twig, faults: Diagnostics) -> None:
    places = leaf.definition.places
    faults.report(
        places.get("id", places[leaf.kind]),
        leaf.definition.where,
        f"the id {leaf.id!r} stands for two different datasets, found {_named(leaf)} here and "
        f"{_named(first)} at {first.definition.place}. Give one of them another `id`.",
    )


def _named(leaf: Twig) -> str:
    return leaf.default_id
