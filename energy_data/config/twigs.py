"""The tree of one split with nested files written out: branches, and twigs to draw from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define, field, frozen

from energy_data.config.aux import Aux
from energy_data.config.definitions import Definition, Share
from energy_data.config.kind_join import JoinDefinition
from energy_data.config.kind_path import PathDefinition
from energy_data.config.subset import Subset
from energy_data.data.join.table import Nonmatch


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
        """What is equal for two places that have the same samples."""
        return os.path.realpath(self.path), self.split_part, self.split_config, self.dataset_config

    @property
    def said(self) -> str:
        """What it is called in ids."""
        options = {"split_config": self.split_config, "dataset_config": self.dataset_config}
        given = [f";{name}={value}" for name, value in options.items() if value is not None]
        return "".join([self.written, ":", self.split_part, *given])

    def __str__(self) -> str:
        return f"the part {self.split_part!r} of {self.path}"


@frozen(kw_only=True)
class Joined:
    """A dataset of a join."""

    name: str | None  # None: its place in the list
    nonmatch: Nonmatch
    of: DatasetPart
    subflavors: Mapping[str, Any] = field(eq=False)
    definition: PathDefinition = field(eq=False)

    @property
    def data(self) -> tuple[object, ...]:
        """What is equal for two datasets that are joined alike."""
        return self.of.data, self.nonmatch

    @property
    def said(self) -> str:
        """What it is called in ids."""
        rule = "" if self.nonmatch == "error" else f";nonmatch={self.nonmatch}"
        return f"{self.of.said}{rule}"


@define(kw_only=True, eq=False)
class Twig:
    """A leaf: one place where samples are drawn from, of one dataset or of several joined."""

    definition: PathDefinition | JoinDefinition
    share: Share | None
    of: DatasetPart | tuple[Joined, ...]
    subset: Subset
    epochs: int | None  # mixed with each other; -1: all; None: the order of the files
    subflavors: Mapping[str, Any]
    aux: Mapping[str, Aux]  # paths to open
    independent: bool
    cache: str | None  # folder for what is computed of it; None: there is no file it belongs to
    names: tuple[str, ...]  # its path in the tree of specs
    id: str = ""  # given once all leaves are known

    @property
    def kind(self) -> str:
        """The key that says what kind it is of."""
        return self.definition.kind

    @property
    def written(self) -> str:
        """The datasets as the files write them, from the outermost file's folder."""
        if isinstance(self.of, DatasetPart):
            return self.of.written
        return f"join({', '.join(member.of.written for member in self.of)})"

    @property
    def data(self) -> tuple[object, ...]:
        """What is equal for two places that draw from the same samples in the same order."""
        of = self.of.data if isinstance(self.of, DatasetPart) else tuple(m.data for m in self.of)
        return of, self.subset, self.epochs

    @property
    def default_id(self) -> str:
        """The id it has if none is given."""
        if isinstance(self.of, DatasetPart):
            said = self.of.said
        else:
            said = f"join({','.join(member.said for member in self.of)})"
        epochs = "" if self.epochs == 1 else f";epochs={self.epochs}"
        return f"{said}{self.subset}{epochs}"

    def __str__(self) -> str:
        return str(self.of) if isinstance(self.of, DatasetPart) else "the join"


def twigs(tree: Branch | Twig) -> Iterator[Twig]:
    """Yield the leaves of a tree, in order."""
    if isinstance(tree, Twig):
        yield tree
    else:
        for child in tree.children:
            yield from twigs(child)
