"""`datasets`: a blend as files of Energon's older `Metadataset` have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from attrs import field, frozen

from energy_data.config.definitions import Definition, Mode, Nodes, Part, check_some_share, key
from energy_data.config.diagnostics import Diagnostics
from energy_data.config.kind_blend import WeightedPart, blended
from energy_data.nodes.references import OrderSpec

_NEWER = "It is of the newer `MetadatasetV2`: write `blend` in place of `datasets` to use it"


@frozen(kw_only=True, eq=False)
class OldPart(WeightedPart):
    """A child of `datasets`."""

    kinds: ClassVar[Sequence[str] | None] = ("path",)
    refuses: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("subset", "aux", "id", "independent"), _NEWER
    )


@frozen(kw_only=True, eq=False)
class DatasetsDefinition(Definition):
    """Datasets mixed by weight, directly below a split."""

    kind: ClassVar[str] = "datasets"
    weighs: ClassVar[bool] = True
    below_split_only: ClassVar[bool] = True
    older: ClassVar[bool] = True
    elsewhere: ClassVar[str] = "It is of the older `Metadataset`: write `blend` in its place."

    datasets: tuple[OldPart, ...] = field(
        metadata=key(
            Nodes(OldPart),
            "Energon's older `Metadataset`: as `blend`, directly below a split.",
            "datasets: [{path: ./coco, weight: 2}, {path: ./coyo}]",
        )
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The children."""
        return self.datasets

    def check(self, faults: Diagnostics) -> None:
        """Note it if there is nothing to draw, or there are keys of newer files."""
        check_some_share(self, faults)
        for name, place in self.places.items():
            if name != self.kind:
                problem = f"'{name}' does not belong beside `datasets`. {_NEWER}."
                faults.report(place, self.where, problem)

    def compile(
        self, children: Sequence[OrderSpec], shares: Sequence[float], mode: Mode
    ) -> OrderSpec:
        """Return a blend in training, else the children one after another."""
        return blended(children, shares, mode)

    def plain(self, children: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return the node as it is written in YAML today."""
        return {"blend": list(children)}
