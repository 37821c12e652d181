"""`path`: one dataset, or another metadataset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from attrs import field, frozen

from energy_data.config.aux import STORES, Aux
from energy_data.config.definitions import LeafDefinition, key
from energy_data.config.rules import META_FILE, TEXT

SUFFIXES = (".yaml", ".yml")  # of metadatasets


@frozen(kw_only=True, eq=False)
class PathDefinition(LeafDefinition):
    """One dataset, or another metadataset."""

    kind: ClassVar[str] = "path"
    of_datasets: ClassVar[Mapping[str, str]] = {
        "tokens_per_sample": "it is of a single dataset, found a metadataset. Write it there.",
        "max_repetitions": "it is of a single dataset, found a metadataset. Write it there.",
        "id": "an id is for a single dataset, found a metadataset. Give the ids there.",
        "dataset_config": "it is of a single dataset, found a metadataset. Write it there.",
        "split_config": "it is of a single dataset, found a metadataset. Write it there.",
        "aux": "it is for the cookers of a single dataset, found a metadataset. Write it there.",
    }
    """Keys that mean nothing where the path is that of a metadataset -> what to say."""

    path: str = field(
        metadata=key(
            TEXT,
            "A dataset folder, a tar, a pattern such as `{000..099}.tar`, or a metadataset.",
            "path: ./coco",
        )
    )
    dataset_config: str | None = field(
        default=None,
        metadata=key(
            META_FILE,
            "File in the dataset's `.nv-meta` that is read in place of `dataset.yaml`.",
            "dataset_config: crude.yaml",
            or_null=True,
        ),
    )
    split_config: str | None = field(
        default=None,
        metadata=key(
            META_FILE,
            "File in the dataset's `.nv-meta` that is read in place of `split.yaml`.",
            "split_config: split-half.yaml",
            or_null=True,
        ),
    )
    aux: Mapping[str, Aux] = field(
        factory=dict,
        metadata=key(
            STORES,
            "Files that cookers get by name: a prepared dataset, or a folder by `filesystem://`.",
            "aux: {images: ./images, more: filesystem://./files}",
            or_null=True,
        ),
    )

    @property
    def names_metadataset(self) -> bool:
        """Whether it looks like the path of a metadataset; a folder may look like one too."""
        return self.path.endswith(SUFFIXES)
