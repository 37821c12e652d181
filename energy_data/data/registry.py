"""The formats of datasets: one line per format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from energy_data.data.decode.parts import Decoding, Overrides
from energy_data.data.files.stores import FileStore
from energy_data.data.jsonl import JsonlFileStore, JsonlSource, prepare_jsonl
from energy_data.data.source import OpenOptions, Source
from energy_data.data.tar.file_store import WebdatasetFileStore
from energy_data.data.tar.source import WebdatasetSource
from energy_data.data.typed.dataset_yaml import check_dataset_config


class SourceFormat(NamedTuple):
    """One format: how to recognise a dataset by its path, and how to open it."""

    suffix: str  # of the path
    open: Callable[[str, OpenOptions], Source]
    open_store: Callable[[str], FileStore[bytes]]  # the parts of all samples by key
    index_file: Callable[[str], int] | None  # prepares a dataset of one file; returns its samples
    decodes_parts: bool  # whether its samples have parts that decoders apply to


FORMATS = [
    SourceFormat(".jsonl", JsonlSource, JsonlFileStore, prepare_jsonl, decodes_parts=False),
    SourceFormat("", WebdatasetSource, WebdatasetFileStore, None, decodes_parts=True),
]
"""All formats; the first one that fits a path is used."""


def format_of(path: str | Path) -> SourceFormat:
    """Return the format of a dataset by its path."""
    return next(one for one in FORMATS if str(path).endswith(one.suffix))


def open_source(
    path: str | Path,
    *,
    split_part: str = "train",
    subset: tuple[int, int | None] | None = None,
    subflavors: Mapping[str, Any] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    decode: Literal["auto", "bytes"] = "auto",
    decoders: Overrides | None = None,
) -> Source:
    """Return the samples of one part of a dataset, as dicts of parts by extension.

    Args:
        path: The dataset: a folder of tars, a tar, a pattern of tars, or a JSONL file.
        split_part: The part to read. Unprepared tars, and a JSONL file, have one part, "train".
        subset: Samples [start, end) of the part; end None means to its end.
        subflavors: The `__subflavors__` of every sample; one dict that all of them share.
        dataset_config: Name of the file in `.nv-meta` that declares the sample type. It must exist,
            but dicts have no type: `energy_data.data.typed.wrap.open_typed` uses it.
        split_config: Name of the file in `.nv-meta` that defines the parts; None: split.yaml.
        decode: "auto" decodes parts by extension; "bytes" decodes nothing.
        decoders: Extension (`png`, or more specific `seg.png`) -> function of the part's bytes, or
            "bytes"; takes precedence over `decode`.

    Raises SpecError if the dataset or part does not exist, StructureError for damaged files.
    """
    if dataset_config is not None:
        check_dataset_config(Path(path), dataset_config)
    options = OpenOptions(
        split_part=split_part,
        subset=subset,
        subflavors=dict(subflavors or {}),
        decoding=Decoding(decode, dict(decoders or {})),
        split_config=split_config,
    )
    return format_of(path).open(str(path), options)


def open_store(path: str | Path) -> FileStore[bytes]:
    """Return the parts of all samples of a dataset, by key. SpecError if it has no index."""
    return format_of(path).open_store(str(path))
