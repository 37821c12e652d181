"""The grammar: one class per kind of node, one attribute per key.

The checker (`convert`), the JSON Schema (`schema`) and the reference page (`docs/metadataset.md`)
all follow these classes; a new key is one line here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from attrs import Attribute, field, fields, frozen

from energy_data.metadataset.faults import Place
from energy_data.metadataset.rules import (
    COUNT,
    FLAG,
    MAPPING,
    TEXT,
    Rule,
    number,
    one_of,
    subset_range,
)
from energy_data.metadataset.subset import Subset

SPLITS = ("train", "val", "test")
MODULES = ("megatron.energon", "energy_data")
MAX_WEIGHT = 1e15
MAX_REPETITIONS = 1e9

LATER = "Take it out for now"
KNOWN_TO_ENERGON: Mapping[str, str] = {
    "aux": LATER,
    "dataset_config": LATER,
    "datasets": "It is of the older `Metadataset`: write `blend` in its place",
    "join": LATER,
    "joiner": LATER,
    "nonmatch": LATER,
    "shuffle_over_epochs_multiplier": LATER,
    "split_config": LATER,
}
"""Keys of Energon's that come later -> what to do until then."""


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
class Group:
    """A key that holds a mapping with the keys of `of`."""

    of: type[Any]
    says: ClassVar[str] = "a mapping"


@frozen
class Splits:
    """The key that holds a node per split."""

    says: ClassVar[str] = "a mapping with one or more of train, val and test"


Holds: TypeAlias = Rule | Node | Nodes | Group | Splits


def key(holds: Holds, about: str, example: str, name: str | None = None) -> dict[str, Any]:
    """Return the metadata of an attribute that is a key.

    about: one line for users. example: `key: value`. name: the key, if not the attribute's name.
    """
    return {"holds": holds, "about": about, "example": example, "name": name}


def keys_of(cls: type[Any]) -> dict[str, Attribute[Any]]:
    """Return the attributes of `cls` that are keys, by key."""
    return {
        attribute.metadata["name"] or attribute.name: attribute
        for attribute in fields(cls)
        if "holds" in attribute.metadata
    }


@frozen(kw_only=True, eq=False)
class Definition:
    """What every node may have, whatever its kind."""

    place: Place
    where: str  # such as `splits.train.blend[1]`
    places: Mapping[str, Place]  # where the values of its keys stand

    split_part: str | None = field(
        default=None,
        metadata=key(
            TEXT,
            "Part of the datasets to use, in place of the one of the split. The innermost counts.",
            "split_part: train",
        ),
    )
    subset: Subset | None = field(
        default=None,
        metadata=key(
            subset_range(absolute=False),
            "Contiguous range of the samples; an outer range is taken of what an inner one leaves.",
            'subset: {range: ["0%", "25%"]}',
        ),
    )
    subflavors: Mapping[str, Any] = field(
        factory=dict,
        metadata=key(
            MAPPING,
            "Plain data put into `__subflavors__` of every sample. The outermost counts.",
            "subflavors: {task: captioning}",
        ),
    )
    subflavor: str | None = field(
        default=None,
        metadata=key(
            TEXT,
            "Energon's older form: sets `__subflavor__` in `subflavors`, unless that has it.",
            "subflavor: captioning",
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
    def all_subflavors(self) -> dict[str, Any]:
        """The subflavors with the older form merged in."""
        older = {} if self.subflavor is None else {"__subflavor__": self.subflavor}
        return {**older, **self.subflavors}


@frozen(kw_only=True, eq=False)
class Part:
    """A child, with what its parent says of it."""

    of: Definition

    @property
    def share(self) -> float | None:
        """The number its parent gives it; None: all children are alike."""
        return None


@frozen(kw_only=True, eq=False)
class WeightedPart(Part):
    """A child of `blend`."""

    weight: float = field(
        default=1.0,
        metadata=key(
            number(MAX_WEIGHT),
            "Share among its siblings, on any scale. 0: listed, never drawn.",
            "weight: 2.5",
        ),
    )

    @property
    def share(self) -> float:
        """The number its parent gives it."""
        return self.weight


@frozen(kw_only=True, eq=False)
class RepeatedPart(Part):
    """A child of `blend_epochized`."""

    repetitions: float = field(
        default=1,
        metadata=key(
            number(MAX_REPETITIONS),
            "How often each of its samples comes per epoch; fractions are exact over epochs.",
            "repetitions: 1.5",
        ),
    )

    @property
    def share(self) -> float:
        """The number its parent gives it."""
        return self.repetitions


@frozen(kw_only=True, eq=False)
class PathDefinition(Definition):
    """One dataset, or another metadataset."""

    path: str = field(
        metadata=key(
            TEXT,
            "A dataset folder, a tar, a pattern such as `{000..099}.tar`, or a metadataset.",
            "path: ./coco",
        )
    )
    subset: Subset | None = field(
        default=None,
        metadata=key(
            subset_range(absolute=True),
            "Contiguous range of the samples; an outer range is taken of what an inner one leaves.",
            "subset: {range: [0, 1000]}",
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


@frozen(kw_only=True, eq=False)
class BlendDefinition(Definition):
    """Children mixed by weight."""

    blend: tuple[WeightedPart, ...] = field(
        metadata=key(
            Nodes(WeightedPart),
            "Children drawn in proportion to their `weight`; one after another in validation.",
            "blend: [{path: ./coco, weight: 2}, {path: ./coyo}]",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return self.blend


@frozen(kw_only=True, eq=False)
class BlendEpochizedDefinition(Definition):
    """Children mixed by repetitions."""

    blend_epochized: tuple[RepeatedPart, ...] = field(
        metadata=key(
            Nodes(RepeatedPart),
            "Children drawn `repetitions` times per epoch; once, one after another, in validation.",
            "blend_epochized: [{path: ./coco, repetitions: 2}, {path: ./coyo}]",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return self.blend_epochized


@frozen(kw_only=True, eq=False)
class ConcatDefinition(Definition):
    """Children one after another."""

    concat: tuple[Part, ...] = field(
        metadata=key(
            Nodes(Part),
            "Children played one after another, each to its end.",
            "concat: [{path: ./coco}, {path: ./coyo}]",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return self.concat


@frozen(kw_only=True, eq=False)
class Epochize:
    """What stands below `epochize`."""

    length: int = field(
        metadata=key(COUNT, "Samples in an epoch, over all ranks and workers.", "length: 100000")
    )
    of: Definition = field(
        metadata=key(Node(), "What the samples come from; it goes on.", "of: {path: ./coco}")
    )


@frozen(kw_only=True, eq=False)
class EpochizeDefinition(Definition):
    """Epochs of a length of one's own."""

    epochize: Epochize = field(
        metadata=key(
            Group(Epochize),
            "Epochs of a length of one's own; the next goes on where the last ended.",
            "epochize: {length: 100000, of: {path: ./coco}}",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return (Part(of=self.epochize.of),)


@frozen(kw_only=True, eq=False)
class Repeat:
    """What stands below `repeat`."""

    times: int = field(metadata=key(COUNT, "Number of passes.", "times: 3"))
    of: Definition = field(metadata=key(Node(), "What is played again.", "of: {path: ./coco}"))


@frozen(kw_only=True, eq=False)
class RepeatDefinition(Definition):
    """Several passes over one child."""

    repeat: Repeat = field(
        metadata=key(
            Group(Repeat),
            "Several passes over one child, each its next epoch.",
            "repeat: {times: 3, of: {path: ./coco}}",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return (Part(of=self.repeat.of),)


KINDS: Mapping[str, type[Definition]] = {
    "path": PathDefinition,
    "blend": BlendDefinition,
    "blend_epochized": BlendEpochizedDefinition,
    "concat": ConcatDefinition,
    "epochize": EpochizeDefinition,
    "repeat": RepeatDefinition,
}
"""The key that makes a node of a kind -> what such a node is."""

PARTS: Mapping[type[Part], str] = {WeightedPart: "blend", RepeatedPart: "blend_epochized"}


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
    class_: Literal["MetadatasetV2"] = field(
        default="MetadatasetV2",
        metadata=key(
            one_of("MetadatasetV2"),
            "Energon's header; may be left out.",
            "__class__: MetadatasetV2",
            name="__class__",
        ),
    )
    splits: Mapping[str, Definition] = field(
        metadata=key(Splits(), "What each split draws from.", "splits: {train: {path: ./coco}}")
    )
