"""Energon's classes of datasets: names for programs that import them or derive from them.

Datasets are opened by `get_train_dataset` and `get_val_dataset`. Energon has deprecated these
classes: a dataset.yaml with a `sample_type` declares the same for every program.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from energy_data.data.tar.prepare import prepare
from energy_data.data.typed import samples
from energy_data.errors import SpecError
from energy_data.tasks.mixture import BaseCoreDatasetFactory

T = TypeVar("T")

__all__ = [
    "BaseWebdatasetFactory",
    "CaptioningWebdataset",
    "CrudeJsonlDatasetFactory",
    "CrudeWebdataset",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "ImageClassificationWebdataset",
    "ImageWebdataset",
    "InterleavedWebdataset",
    "JoinedWebdatasetFactory",
    "MultiChoiceVQAWebdataset",
    "OCRWebdataset",
    "SimilarityInterleavedWebdataset",
    "StandardWebdatasetFactory",
    "TextWebdataset",
    "VQAOCRWebdataset",
    "VQAWebdataset",
    "VidQAWebdataset",
]


class BaseWebdatasetFactory(BaseCoreDatasetFactory[T]):
    """A dataset of typed samples. It cannot be created: pass its path to `get_train_dataset`."""

    __sample_type__: ClassVar[type[Any] | None] = None

    def __init__(self, path: str | Path, **kwargs: Any) -> None:
        """Raise SpecError: datasets are opened by path."""
        raise SpecError(
            f"{type(self).__name__}: datasets are opened by their path, got {path}. Pass it to "
            f"get_train_dataset, and declare the type of its samples in its dataset.yaml: "
            f"`sample_type: {{__module__: ..., __class__: ...}}`."
        )

    @classmethod
    def prepare_dataset(
        cls,
        parent_path: str | Path,
        paths: Sequence[str],
        *,
        split_parts_ratio: Sequence[tuple[str, float]] | None = None,
        split_parts_patterns: Sequence[tuple[str, str]] | None = None,
        workers: int | None = None,
        **_: Any,
    ) -> tuple[set[str], list[str]]:
        """Index the tars of a folder and write its `.nv-meta` folder; return the part extensions.

        Args:
            parent_path: The folder.
            paths: Ignored: all tars below the folder are indexed.
            split_parts_ratio: "train", "val" and "test", with their shares of the tars.
            split_parts_patterns: Or names of splits, with patterns of their tars.
            workers: Processes; None: as many as are useful.
        """
        ratios = dict(split_parts_ratio or [("train", 1)])
        split: str | dict[str, list[str]] = ",".join(
            str(ratios.get(part, 0)) for part in ("train", "val", "test")
        )
        if split_parts_patterns:
            split = {}
            for part, pattern in split_parts_patterns:
                split.setdefault(part, []).append(pattern)
        summary = prepare(Path(parent_path), split=split, workers=workers)
        return set(summary.extensions), []


class JoinedWebdatasetFactory(BaseCoreDatasetFactory[T]):
    """Datasets joined by key. It cannot be created: use `join:` in a metadataset."""

    def __init__(self, inner_datasets: Any, **kwargs: Any) -> None:
        """Raise SpecError: only metadatasets can join."""
        raise SpecError(
            "JoinedWebdatasetFactory: datasets are joined by a metadataset. Write `join:` with the "
            "same datasets in a .yaml or a dict, and pass it to get_train_dataset."
        )


def _of(sample_type: type[T]) -> type[BaseWebdatasetFactory[T]]:
    """Return the class of datasets whose samples are of a type."""
    name = sample_type.__name__.removesuffix("Sample") + "Webdataset"
    about = f"A dataset of {sample_type.__name__}."
    body = {"__sample_type__": sample_type, "__doc__": about, "__module__": __name__}
    return type(name, (BaseWebdatasetFactory,), body)


DefaultGenericWebdatasetFactory = BaseWebdatasetFactory
DefaultDecoderWebdatasetFactory = BaseWebdatasetFactory
StandardWebdatasetFactory = BaseWebdatasetFactory
CrudeJsonlDatasetFactory = BaseWebdatasetFactory
DefaultCrudeJsonlDatasetFactory = BaseWebdatasetFactory
CrudeWebdataset = _of(samples.CrudeSample)
CaptioningWebdataset = _of(samples.CaptioningSample)
ImageWebdataset = _of(samples.ImageSample)
ImageClassificationWebdataset = _of(samples.ImageClassificationSample)
InterleavedWebdataset = _of(samples.InterleavedSample)
SimilarityInterleavedWebdataset = _of(samples.SimilarityInterleavedSample)
MultiChoiceVQAWebdataset = _of(samples.MultiChoiceVQASample)
OCRWebdataset = _of(samples.OCRSample)
TextWebdataset = _of(samples.TextSample)
VidQAWebdataset = _of(samples.VidQASample)
VQAOCRWebdataset = _of(samples.VQAOCRSample)
VQAWebdataset = _of(samples.VQASample)
