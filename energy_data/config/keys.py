"""What only YAML has: the keys of every node, and leaves as written.

The keys of `NodeKeys` may stand at every node. They are pushed down to the leaves while nested
files are followed (`leaves`), so that no running node has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from attrs import frozen

from energy_data.config.rules import (
    CODE,
    EPOCHS,
    META_FILE,
    STORES,
    Aux,
    Code,
    Subset,
    subset_range,
)
from energy_data.core import recipe
from energy_data.core.recipe import (
    MAPPING,
    POSITIVE,
    TEXT,
    Children,
    FieldProblem,
    Yaml,
    matching,
    one_of,
)
from energy_data.data.join_table import Nonmatch
from energy_data.data.tables.hub import HubKeys
from energy_data.data.tokens.reader import TokenKeys
from energy_data.nodes.blend import Part
from energy_data.nodes.leaf import LeafTable
from energy_data.nodes.references import OrderSpec
from energy_data.order.tree import Order

SUFFIXES = (".yaml", ".yml")  # of metadatasets

_FILTER = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")

FORMAT_KEYS = (*recipe.keys_of(TokenKeys), *recipe.keys_of(HubKeys))
"""Keys of a path that only datasets of one format have."""

_RANGE = "Contiguous range of the samples; an outer range is taken of what an inner one leaves."


@frozen(kw_only=True)
class NodeKeys:
    """The keys of every node."""

    split_part: str | None = recipe.key(
        TEXT,
        "Part of the datasets to use, in place of the one of the split. The innermost counts.",
        "split_part: train",
        default=None,
    )
    subset: Subset | None = recipe.key(
        subset_range(absolute=False),
        _RANGE,
        'subset: {range: ["0%", "25%"]}',
        default=None,
    )
    subflavors: Mapping[str, Any] = recipe.key(
        MAPPING,
        "Plain data put into `__subflavors__` of every sample. The outermost counts. Or: `tags`.",
        "subflavors: {task: captioning}",
        factory=dict,
        alias="tags",
    )
    subflavor: str | None = recipe.key(
        TEXT,
        "Energon's older form: sets `__subflavor__` in `subflavors`, unless that has it.",
        "subflavor: captioning",
        default=None,
    )


@frozen(kw_only=True)
class LeafKeys(NodeKeys):
    """The keys of every node that samples are drawn from."""

    subset: Subset | None = recipe.key(
        subset_range(absolute=True),
        _RANGE,
        "subset: {range: [0, 1000]}",
        default=None,
    )
    id: str | None = recipe.key(
        TEXT,
        "Name of the dataset in orders and states. Default: path as written, part, range.",
        "id: coco",
        default=None,
    )
    shuffle_over_epochs_multiplier: int | None = recipe.key(
        EPOCHS,
        "Epochs that are mixed with each other; -1: all; null: the order of the files.",
        "shuffle_over_epochs_multiplier: 3",
        default=1,
    )
    tokens_per_sample: float | None = recipe.key(
        POSITIVE,
        "Mean tokens of its samples, for weights by tokens. Default: what its index knows.",
        "tokens_per_sample: 812.5",
        default=None,
    )
    max_repetitions: float | None = recipe.key(
        POSITIVE,
        "How often each of its samples may come up over the run, at most; more is an error.",
        "max_repetitions: 4",
        default=None,
    )


class UnopenedSpec(OrderSpec):
    """A leaf whose dataset is not open: it has no samples and no order."""

    is_saved: ClassVar[bool] = False

    @property
    def size(self) -> Fraction:
        """Raises LookupError: the number of samples is not known."""
        raise LookupError(f"{self.kind}: its dataset is not open")

    def order(self, context: Any, leaves: LeafTable, *, endless: bool) -> Order:
        """Raises LookupError: there are no samples to order."""
        raise LookupError(f"{self.kind}: its dataset is not open")


@frozen(kw_only=True, eq=False)
class PathSpec(UnopenedSpec, TokenKeys, HubKeys):
    """`path`: one dataset, or another metadataset, as written."""

    kind = "path"

    path: str = recipe.key(
        TEXT,
        "A dataset folder, a file, a pattern such as `{000..099}.tar`, a dataset of the Hub as "
        "`hf://datasets/OWNER/NAME`, or a metadataset.",
        "path: ./coco",
    )
    dataset_config: str | None = recipe.key(
        META_FILE,
        "File in the dataset's `.nv-meta` that is read in place of `dataset.yaml`.",
        "dataset_config: crude.yaml",
        default=None,
    )
    split_config: str | None = recipe.key(
        META_FILE,
        "File in the dataset's `.nv-meta` that is read in place of `split.yaml`.",
        "split_config: split-half.yaml",
        default=None,
    )
    filter: str | None = recipe.key(
        matching(_FILTER, "the name of a filter index: letters, digits, '_', '-' and '.'"),
        "Filter index of the dataset, by its name: only the samples that it keeps are drawn.",
        "filter: quality_v1",
        default=None,
    )
    aux: Mapping[str, Aux] = recipe.key(
        STORES,
        "Files that cookers get by name: a prepared dataset, or a folder by `filesystem://`.",
        "aux: {images: ./images, more: filesystem://./files}",
        factory=dict,
    )


@frozen(kw_only=True, eq=False)
class JoinedPart:
    """A dataset of a join."""

    kinds: ClassVar[Sequence[str]] = ("path",)
    refuses: ClassVar[Mapping[str, str]] = {
        "aux": "Cookers of joined samples get no files: remove it",
        "filter": "A filter index is of one dataset, and a join has rows of its own: remove it",
        **dict.fromkeys(FORMAT_KEYS, "Samples of its format have no keys to join by: remove it"),
        **dict.fromkeys(
            recipe.keys_of(LeafKeys).keys() - {"split_part", "subflavors", "subflavor"},
            "It is of the join as a whole: write it next to `join`",
        ),
    }

    of: PathSpec
    nonmatch: Nonmatch = recipe.key(
        one_of("error", "skip", "none"),
        "What becomes of a sample of the first dataset that has no match here.",
        "nonmatch: skip",
        default="error",
    )


@frozen(kw_only=True, eq=False)
class JoinSpec(UnopenedSpec):
    """`join`: several datasets as one, their samples matched by key, as written."""

    kind = "join"

    parts: tuple[JoinedPart, ...] = recipe.key(
        Children(JoinedPart, "list or mapping"),
        "Datasets of tars whose samples are joined by key, as a list or under names.",
        "join: [{path: ./images}, {path: ./texts, nonmatch: skip}]",
        name="join",
    )
    names: tuple[str, ...] | None = None  # of the datasets; None: they are a list
    joiner: Code | None = recipe.key(
        CODE,
        "Makes the joined sample: a sample type, or a function. Without it: the parts of all.",
        "joiner: {__module__: megatron.energon, __class__: CaptioningSample}",
        default=None,
    )

    def check(self) -> Iterator[FieldProblem]:
        """Yield the problems of the fields."""
        if len(self.parts) < 2:
            yield "join", "a join needs at least two datasets, found 1. Add one, or write `path`."
        for number, part in enumerate(self.parts):
            inner = f"join.{self.names[number]}" if self.names else f"join[{number}]"
            if part.of.path.endswith(SUFFIXES):
                yield (
                    f"{inner}.path",
                    f"a join needs datasets, found the metadataset {part.of.path!r}. Name its "
                    "datasets.",
                )
            if not number and part.nonmatch != "error":
                yield (
                    f"{inner}.nonmatch",
                    f"the others are matched to the first dataset, found {part.nonmatch!r} for the "
                    "first itself. Remove it, or put another dataset first.",
                )


@frozen
class DatasetsSpec(UnopenedSpec):
    """`datasets`: a blend as Energon's older `Metadataset` has it, directly below a split."""

    kind = "datasets"
    yaml: ClassVar[Yaml] = Yaml(
        under_split_only=True,
        advice="It is of the older `Metadataset`: write `blend` in its place.",
    )

    parts: tuple[Part, ...] = recipe.children(
        Part,
        "Energon's older `Metadataset`: as `blend`, directly below a split.",
        "datasets: [{path: ./coco, weight: 2}, {path: ./coyo}]",
        name="datasets",
    )

    def check(self) -> Iterator[FieldProblem]:
        """Yield the problems of the fields."""
        if not any(part.weight for part in self.parts):
            yield "datasets", "no child has weight > 0. Give at least one weight > 0."
