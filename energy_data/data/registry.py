"""The formats of datasets: one line per format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from energy_data.core.recipe import keys_of
from energy_data.data.decode.parts import Decoding, Overrides
from energy_data.data.files.stores import FileStore
from energy_data.data.jsonl import JsonlFileStore, JsonlSource, prepare_jsonl
from energy_data.data.source import OpenOptions, Source
from energy_data.data.tar.file_store import WebdatasetFileStore
from energy_data.data.tar.source import WebdatasetSource
from energy_data.data.tokens.layouts import SUFFIXES as TOKEN_SUFFIXES
from energy_data.data.tokens.source import TokenKeys, TokenSource
from energy_data.data.typed.dataset_yaml import check_dataset_config
from energy_data.errors import SpecError


class SourceFormat(NamedTuple):
    """One format: how to recognise a dataset by its path, and how to open it."""

    suffix: str | tuple[str, ...]  # of the path
    open: Callable[[str, OpenOptions], Source]
    open_store: Callable[[str], FileStore[bytes]] | None  # the parts of all samples by key
    index_file: Callable[[str], int] | None  # prepares a dataset of one file; returns its samples
    decodes_parts: bool  # whether its samples have parts that decoders apply to
    keys: type[Any] | None = None  # class of the keys that only this format has


FORMATS = [
    SourceFormat(".jsonl", JsonlSource, JsonlFileStore, prepare_jsonl, decodes_parts=False),
    SourceFormat(TOKEN_SUFFIXES, TokenSource, None, None, decodes_parts=False, keys=TokenKeys),
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
    **keys: Any,
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
        keys: Keys that only datasets of one format have, such as `seq_len`.

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
        keys=keys,
    )
    return open_format(path, options)


def open_format(path: str | Path, options: OpenOptions) -> Source:
    """Return the samples of a dataset. SpecError for keys that are of other formats."""
    found = format_of(path)
    known = keys_of(found.keys) if found.keys else {}
    if wrong := sorted(options.keys.keys() - known.keys()):
        raise SpecError(f"{path}: {wrong[0]} is not for datasets of its format. Remove it.")
    return found.open(str(path), options)


def open_store(path: str | Path) -> FileStore[bytes]:
    """Return the parts of all samples of a dataset, by key. SpecError if it has no index."""
    store = format_of(path).open_store
    if store is None:
        raise SpecError(f"{path}: its samples have no files by key. Name a folder of tars.")
    return store(str(path))
