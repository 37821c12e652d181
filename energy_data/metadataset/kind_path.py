"""`path`: one dataset, or another metadataset."""

from __future__ import annotations

from typing import ClassVar

from attrs import field, frozen

from energy_data.metadataset.definitions import Definition, key
from energy_data.metadataset.rules import TEXT, subset_range
from energy_data.metadataset.subset import Subset


@frozen(kw_only=True, eq=False)
class PathDefinition(Definition):
    """One dataset, or another metadataset."""

    kind: ClassVar[str] = "path"

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
