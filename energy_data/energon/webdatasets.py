"""Energon's classes of datasets: names for programs that import them or derive from them.

Datasets are opened by `get_train_dataset` and `get_val_dataset`. Energon has deprecated these
classes: a dataset.yaml with a `sample_type` declares the same for every program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from braceexpand import braceexpand

from energy_data.data.jsonl import JSONL
from energy_data.data.part import index_files
from energy_data.data.prepare import prepare
from energy_data.data.typed import sample_types
from energy_data.data.typed.samples import CrudeSample, TypedDataset
from energy_data.errors import SpecError
from energy_data.tasks.mixture import BaseCoreDatasetFactory

T = TypeVar("T")

__all__ = [
    "BaseWebdatasetFactory",
    "BinIdxDatasetFactory",
    "CaptioningWebdataset",
    "CrudeJsonlDatasetFactory",
    "CrudeJsonlShardListDatasetFactory",
    "CrudeWebdataset",
    "DefaultBinIdxDatasetFactory",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultCrudeJsonlShardListDatasetFactory",
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


class BaseWebdatasetFactory(TypedDataset, BaseCoreDatasetFactory[T]):
    """A dataset of typed samples. It cannot be created: pass its path to `get_train_dataset`."""

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
        shuffle_seed: int | None = 42,
        workers: int | None = None,
        tar_index_only: bool = False,
        fix_duplicates: bool = False,
        **options: Any,
    ) -> tuple[set[str], list[str]]:
        """Index tars of a folder and write its `.nv-meta` folder, but no dataset.yaml.

        Return the extensions of parts, and an empty list: duplicate keys are an error.

        Args:
            parent_path: The folder. If it is prepared, it is prepared again.
            paths: The tars, relative to the folder; braces are expanded.
            split_parts_ratio: "train", "val" and "test", with their shares of the tars.
            split_parts_patterns: Or names of splits, with patterns of their tars.
            shuffle_seed: None: shares are of the tars in order; otherwise in Energon's order of 42.
            workers: Ignored: there are as many processes as are useful.
            tar_index_only: Only index the tars of a prepared folder again; its splits are kept.
            fix_duplicates: As in `energy_data.data.prepare.prepare`.
            options: `progress_fn` and `index_sqlite_tmp_path` are ignored. SpecError for others.
        """
        if unknown := sorted(options.keys() - {"progress_fn", "index_sqlite_tmp_path"}):
            problem = f"{unknown[0]} is not supported. Use `energy-data prepare` for it."
            raise SpecError(f"prepare_dataset: {problem}")
        folder = Path(parent_path)
        if tar_index_only:
            return set(prepare(folder, index_only=True, sqlite=True).extensions), []
        names = chain.from_iterable(map(braceexpand, paths))
        summary = prepare(
            folder,
            split=_split_of(split_parts_ratio or [("train", 1)], split_parts_patterns or ()),
            exclude=f"^(?!({'|'.join(map(re.escape, names))})$)",
            force=True,
            sqlite=True,
            shuffle=shuffle_seed is not None,
            fix_duplicates=fix_duplicates,
            declare=lambda _: {},
        )
        return set(summary.extensions), []


def _split_of(
    ratio: Sequence[tuple[str, float]], patterns: Sequence[tuple[str, str]]
) -> str | dict[str, list[str]]:
    """Return what `prepare` calls a split. Patterns take precedence."""
    if patterns:
        split: dict[str, list[str]] = {}
        for part, pattern in patterns:
            split.setdefault(part, []).append(pattern)
        return split
    parts = ("train", "val", "test")
    if unknown := sorted(dict(ratio).keys() - set(parts)):
        raise SpecError(
            f"prepare_dataset: split_parts_ratio must name train, val and test, got {unknown[0]!r}."
            f" Pass split_parts_patterns for other names."
        )
    return ",".join(str(dict(ratio).get(part, 0)) for part in parts)


class CrudeJsonlDatasetFactory(BaseWebdatasetFactory[CrudeSample]):
    """A JSONL file. It cannot be created: pass its path to `get_train_dataset`."""

    __sample_type__ = CrudeSample

    @classmethod
    def prepare_dataset(cls, path: str | Path) -> int:  # type: ignore[override]  # as in Energon
        """Write the index next to a JSONL file, and return its number of samples."""
        return index_files(str(path), JSONL)


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
DefaultCrudeJsonlDatasetFactory = CrudeJsonlDatasetFactory
CrudeJsonlShardListDatasetFactory = CrudeJsonlDatasetFactory
DefaultCrudeJsonlShardListDatasetFactory = CrudeJsonlDatasetFactory
BinIdxDatasetFactory = DefaultBinIdxDatasetFactory = BaseWebdatasetFactory
CrudeWebdataset = _of(CrudeSample)
CaptioningWebdataset = _of(sample_types.CaptioningSample)
ImageWebdataset = _of(sample_types.ImageSample)
ImageClassificationWebdataset = _of(sample_types.ImageClassificationSample)
InterleavedWebdataset = _of(sample_types.InterleavedSample)
SimilarityInterleavedWebdataset = _of(sample_types.SimilarityInterleavedSample)
MultiChoiceVQAWebdataset = _of(sample_types.MultiChoiceVQASample)
OCRWebdataset = _of(sample_types.OCRSample)
TextWebdataset = _of(sample_types.TextSample)
VidQAWebdataset = _of(sample_types.VidQASample)
VQAOCRWebdataset = _of(sample_types.VQAOCRSample)
VQAWebdataset = _of(sample_types.VQASample)
