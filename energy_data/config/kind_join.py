"""`join`: several datasets as one, their samples matched by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import field, frozen

from energy_data.config.code import CODE, Code
from energy_data.config.definitions import Children, Keyed, LeafDefinition, Part, key
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.kind_path import PathDefinition
from energy_data.config.rules import one_of
from energy_data.data.join.table import Nonmatch

_OF_THE_JOIN = "It is of the join as a whole: write it beside `join`"


@frozen(kw_only=True, eq=False)
class JoinedPart(Part):
    """A dataset of a join."""

    kinds: ClassVar[Sequence[str] | None] = ("path",)
    refuses: ClassVar[Mapping[str, str]] = {
        "subset": _OF_THE_JOIN,
        "shuffle_over_epochs_multiplier": _OF_THE_JOIN,
        "id": _OF_THE_JOIN,
        "tokens_per_sample": _OF_THE_JOIN,
        "max_repetitions": _OF_THE_JOIN,
        "independent": _OF_THE_JOIN,
        "aux": "Cookers of joined samples get no files: take it out",
    }

    nonmatch: Nonmatch = field(
        default="error",
        metadata=key(
            one_of("error", "skip", "none"),
            "What becomes of a sample of the first dataset that has no match here.",
            "nonmatch: skip",
        ),
    )


@frozen(kw_only=True, eq=False)
class JoinDefinition(LeafDefinition):
    """Several datasets as one, their samples matched by key."""

    kind: ClassVar[str] = "join"

    join: Children = field(
        metadata=key(
            Keyed(JoinedPart),
            "Prepared datasets whose samples are joined by key, as a list or under names.",
            "join: [{path: ./images}, {path: ./texts, nonmatch: skip}]",
        )
    )
    joiner: Code | None = field(
        default=None,
        metadata=key(
            CODE,
            "Makes the joined sample: a sample type, or a function. Without it: the parts of all.",
            "joiner: {__module__: megatron.energon, __class__: CaptioningSample}",
        ),
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The datasets."""
        return self.join.parts

    @property
    def members(self) -> Sequence[tuple[str | None, PathDefinition, Nonmatch]]:
        """Name, place and rule of each dataset."""
        names = self.join.names or [None] * len(self.join.parts)
        return [
            (name, part.of, part.nonmatch)
            for name, part in zip(names, self.join.parts, strict=True)
            if isinstance(part, JoinedPart) and isinstance(part.of, PathDefinition)
        ]

    def check(self, faults: Diagnostics) -> None:
        """Note it if there are not two datasets, or the first is not what the others match."""
        where = f"{self.where}.join"
        if len(self.members) < 2:
            problem = "a join takes two datasets or more, found 1. Add one, or write `path`."
            faults.report(self.places["join"], where, problem)
        for number, (name, path, nonmatch) in enumerate(self.members):
            inner = f"{where}.{name}" if name else f"{where}[{number}]"
            if path.names_metadataset:
                faults.report(
                    path.places["path"],
                    f"{inner}.path",
                    f"datasets are joined, found the metadataset {path.path!r}. Name its datasets.",
                )
            if not number and nonmatch != "error":
                faults.report(
                    path.places["nonmatch"],
                    f"{inner}.nonmatch",
                    f"the others are matched to the first dataset, found {nonmatch!r} for the "
                    "first itself. Take it out, or put another first.",
                )
