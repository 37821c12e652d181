"""The grammar: what the keys of a metadataset hold, and what every node has in common.

There is one class per kind of node, each in a file of its own (`kind_blend`, ...), and one
attribute per key. The checker (`convert`), the JSON Schema (`schema`) and the reference page
(`docs/metadataset.md`) all follow these classes; a new key is one line there, a new kind is one
file and one line of the table (`kinds`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar, Literal, TypeAlias

from attrs import Attribute, field, fields, frozen

from energy_data.config.diagnostics import Diagnostics, Place
from energy_data.config.rules import (
    EPOCHS,
    FLAG,
    MAPPING,
    POSITIVE,
    TEXT,
    Rule,
    one_of,
    subset_range,
)
from energy_data.config.subset import Subset
from energy_data.nodes.references import OrderSpec

Mode: TypeAlias = Literal["train", "val"]
Share: TypeAlias = Any
"""What a parent gives a child: the number of its `share_key`, or how it changes over the run."""

SPLITS = ("train", "val", "test")
MODULES = ("megatron.energon", "energy_data")


@frozen
class Node:
    """A key that holds one node."""

    says: ClassVar[str] = "a node: a mapping with `path`, `blend` or another kind"


@frozen
class Nodes:
    """A key that holds a list of nodes, each with the keys of `part` beside its own."""

    part: type[Part]
    says: ClassVar[str] = "a list of nodes, not empty"


@frozen
class Keyed:
    """A key that holds nodes, each with the keys of `part` beside its own: a list, or by name."""

    part: type[Part]
    says: ClassVar[str] = "a list of nodes, or a mapping of names to nodes, not empty"


@frozen(eq=False)
class Children:
    """What stands in a `Keyed`."""

    parts: tuple[Part, ...]
    names: tuple[str, ...] | None = None  # None: it is a list


@frozen
class Group:
    """A key that holds a mapping with the keys of `of`."""

    of: type[Any]
    says: ClassVar[str] = "a mapping"


@frozen
class Splits:
    """The key that holds a node per split."""

    says: ClassVar[str] = "a mapping with one or more splits, such as train, val and test"


Holds: TypeAlias = Rule | Node | Nodes | Keyed | Group | Splits


def key(
    holds: Holds, about: str, example: str, *, name: str | None = None, or_null: bool = False
) -> dict[str, Any]:
    """Return the metadata of an attribute that is a key.

    about: one line for users. example: `key: value`. name: the key, if not the attribute's name.
    or_null: nothing may stand there, as in Energon, and means the default.
    """
    return {"holds": holds, "about": about, "example": example, "name": name, "or_null": or_null}


def keys_of(cls: type[Any]) -> dict[str, Attribute[Any]]:
    """Return the attributes of `cls` that are keys, by key."""
    return {
        attribute.metadata["name"] or attribute.name: attribute
        for attribute in fields(cls)
        if "holds" in attribute.metadata
    }


@frozen(kw_only=True, eq=False)
class Definition:
    """What every node may have, whatever its kind, and what each kind says for itself."""

    kind: ClassVar[str]  # the key that makes a node of this kind
    weighs: ClassVar[bool] = False  # whether shares, not sizes, say how often children are drawn
    apart: ClassVar[bool] = False  # whether each child is drawn from in a time of its own
    renews: ClassVar[bool] = False  # whether its children go on without end wherever it stands
    below_split_only: ClassVar[bool] = False  # whether it stands directly below a split
    outermost: ClassVar[bool] = False  # whether nothing of an order tree may stand over it
    older: ClassVar[bool] = False  # whether it is of Energon's older `Metadataset`
    elsewhere: ClassVar[str] = "Name datasets by their `path`."  # what to do if it may not stand

    place: Place
    where: str  # such as `splits.train.blend[1]`
    places: Mapping[str, Place]  # where the values of its keys stand

    split_part: str | None = field(
        default=None,
        metadata=key(
            TEXT,
            "Part of the datasets to use, in place of the one of the split. The innermost counts.",
            "split_part: train",
            or_null=True,
        ),
    )
    subset: Subset | None = field(
        default=None,
        metadata=key(
            subset_range(absolute=False),
            "Contiguous range of the samples; an outer range is taken of what an inner one leaves.",
            'subset: {range: ["0%", "25%"]}',
            or_null=True,
        ),
    )
    subflavors: Mapping[str, Any] = field(
        factory=dict,
        metadata=key(
            MAPPING,
            "Plain data put into `__subflavors__` of every sample. The outermost counts.",
            "subflavors: {task: captioning}",
            or_null=True,
        ),
    )
    subflavor: str | None = field(
        default=None,
        metadata=key(
            TEXT,
            "Energon's older form: sets `__subflavor__` in `subflavors`, unless that has it.",
            "subflavor: captioning",
            or_null=True,
        ),
    )
    independent: bool = field(
        default=False,
        metadata=key(
            FLAG,
            "Draw from the datasets here apart from other places that list the same ones.",
            "independent: true",
        ),
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children, each with what its parent says of it."""
        return ()

    @property
    def names(self) -> Sequence[str]:
        """The names of the children in the tree of specs."""
        return [str(number) for number in range(len(self.parts))]

    @property
    def label(self) -> str:
        """What the node is called in the tree that is shown to people."""
        return self.kind

    def check(self, faults: Diagnostics) -> None:
        """Note what is wrong with the node though each of its keys is fine."""

    def compile(
        self, children: Sequence[OrderSpec], shares: Sequence[Share], mode: Mode
    ) -> OrderSpec:
        """Return the spec of an inner node over those of its children that may be drawn."""
        raise NotImplementedError

    def plain(self, children: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return an inner node as it is written in YAML; the children have their shares."""
        return {self.kind: list(children)}

    def drawn(self, share: Share | None, size: Fraction | None, mode: Mode) -> Fraction | None:
        """Return how many draws of a child of this size are in one pass. None: not known."""
        return Fraction(0) if share == 0 else size

    def size(self, drawn: Sequence[Fraction | None]) -> Fraction | None:
        """Return the number of draws in one pass, from those of each child. None: not known."""
        known = [size for size in drawn if size is not None]
        return sum(known, Fraction(0)) if len(known) == len(drawn) else None

    @property
    def all_subflavors(self) -> dict[str, Any]:
        """The subflavors with the older form merged in."""
        older = {} if self.subflavor is None else {"__subflavor__": self.subflavor}
        return {**older, **self.subflavors}


@frozen(kw_only=True, eq=False)
class LeafDefinition(Definition):
    """What every node has that samples are drawn from."""

    subset: Subset | None = field(
        default=None,
        metadata=key(
            subset_range(absolute=True),
            "Contiguous range of the samples; an outer range is taken of what an inner one leaves.",
            "subset: {range: [0, 1000]}",
            or_null=True,
        ),
    )
    id: str | None = field(
        default=None,
        metadata=key(
            TEXT,
            "Name of the dataset in orders and states. Default: path as written, part, range.",
            "id: coco",
        ),
    )
    shuffle_over_epochs_multiplier: int | None = field(
        default=1,
        metadata=key(
            EPOCHS,
            "Epochs that are mixed with each other; -1: all; null: the order of the files.",
            "shuffle_over_epochs_multiplier: 3",
        ),
    )
    tokens_per_sample: float | None = field(
        default=None,
        metadata=key(
            POSITIVE,
            "Mean tokens of its samples, for weights by tokens. Default: what its index knows.",
            "tokens_per_sample: 812.5",
        ),
    )
    max_repetitions: float | None = field(
        default=None,
        metadata=key(
            POSITIVE,
            "How often each of its samples may come up over the run, at most; more is an error.",
            "max_repetitions: 4",
        ),
    )


@frozen(kw_only=True, eq=False)
class Part:
    """A child, with what its parent says of it."""

    share_key: ClassVar[str | None] = None  # the key of the number its parent gives it
    kinds: ClassVar[Sequence[str] | None] = None  # that it may be of; None: any
    refuses: ClassVar[Mapping[str, str]] = {}  # keys that nodes have, but not here -> what to do

    of: Definition

    def plain(self) -> dict[str, Any]:
        """Return the keys of this part as they are written in YAML."""
        return {self.share_key: self.share} if self.share_key else {}

    @property
    def share(self) -> Share | None:
        """The number its parent gives it; None: all children are alike."""
        return None if self.share_key is None else getattr(self, self.share_key)


def check_some_share(definition: Definition, faults: Diagnostics) -> None:
    """Note it if a node has no child with a share > 0."""
    parts = definition.parts
    if any(part.share for part in parts):
        return
    kind, name = definition.kind, parts[0].share_key
    problem = f"no child has {name} > 0, found only 0. Give at least one {name} > 0."
    faults.report(definition.places[kind], f"{definition.where}.{kind}", problem)


@frozen(kw_only=True, eq=False)
class SplitPart(Part):
    """The node of a split."""


@frozen(kw_only=True, eq=False)
class FileDefinition:
    """The top of a file."""

    module: Literal["megatron.energon", "energy_data"] = field(
        default="energy_data",
        metadata=key(
            one_of(*MODULES),
            "Energon's header; may be left out.",
            "__module__: megatron.energon",
            name="__module__",
        ),
    )
    class_: Literal["MetadatasetV2", "Metadataset"] | None = field(
        default=None,
        metadata=key(
            one_of("MetadatasetV2", "Metadataset"),
            "Energon's header; may be left out. `Metadataset` is the older one, with `datasets`.",
            "__class__: MetadatasetV2",
            name="__class__",
        ),
    )
    splits: Mapping[str, Definition] = field(
        metadata=key(Splits(), "What each split draws from.", "splits: {train: {path: ./coco}}")
    )

    def check(self, faults: Diagnostics) -> None:
        """Note it if a split is of another class of files than the header says."""
        for name, split in self.splits.items():
            if self.class_ is None or split.older == (self.class_ == "Metadataset"):
                continue
            found, wanted = split.kind, "blend" if split.older else "datasets"
            other = "MetadatasetV2" if self.class_ == "Metadataset" else "Metadataset"
            problem = f"'{found}' is of `{other}`, found it in a `{self.class_}`. Write `{wanted}`"
            faults.report(split.place, f"splits.{name}", f"{problem}, or another `__class__`.")
