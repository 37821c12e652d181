"""Datasets of any kind, by their path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from energy_data.data.decode.parts import Overrides
from energy_data.data.files.stores import FileStore
from energy_data.data.jsonl.file_store import JsonlFileStore
from energy_data.data.jsonl.source import is_jsonl, open_jsonl
from energy_data.data.source import Source
from energy_data.data.tar.file_store import WebdatasetFileStore
from energy_data.data.tar.source import open_dataset
from energy_data.data.typed.dataset_yaml import check_dataset_config


def open_source(
    path: str | Path,
    *,
    split_part: str = "train",
    subset: tuple[int, int | None] | None = None,
    subflavors: Mapping[str, Any] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    decoders: Overrides | None = None,
) -> Source:
    """Return the samples of one part of a dataset, as dicts of parts by extension.

    Args:
        path: What `open_dataset` takes, or a JSONL file, which is whole in every part.
        split_part: The part to read.
        subset: Samples [start, end) of the part; end None means to its end.
        subflavors: The `__subflavors__` of every sample.
        dataset_config: Name of the file in `.nv-meta` that gives samples a type. It must be there,
            and dicts have none: it is for `energy_data.data.typed.wrap.open_typed`.
        split_config: Name of the file in `.nv-meta` that says what parts there are.
        decoders: For tars, as for `open_dataset`.

    Raises SpecError for what does not exist, StructureError for damaged files.
    """
    if dataset_config is not None:
        check_dataset_config(Path(path), dataset_config)
    if is_jsonl(path):
        return open_jsonl(path, subset=subset, subflavors=subflavors)
    return open_dataset(
        path,
        split_part=split_part,
        subset=subset,
        subflavors=subflavors,
        split_config=split_config,
        decoders=decoders,
    )


def open_store(path: str | Path) -> FileStore[bytes]:
    """Return the parts of all samples of a dataset, by key. SpecError if it cannot be.

    path: a prepared folder of tars, or a JSONL file.
    """
    return JsonlFileStore(path) if is_jsonl(path) else WebdatasetFileStore(path)
