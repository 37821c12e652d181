"""The formats of datasets: one line per format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from energy_data.core.recipe import keys_of
from energy_data.data.decode.parts import Decoding, Overrides
from energy_data.data.files.stores import FileStore
from energy_data.data.jsonl import JSONL, JsonlFileStore, JsonlSource
from energy_data.data.part import prepared_at
from energy_data.data.shards import ShardKind, find_files, named_files
from energy_data.data.source import OpenOptions, Source
from energy_data.data.tables.source import (
    ARROW,
    PARQUET,
    ArrowSource,
    ParquetSource,
    TableKeys,
)
from energy_data.data.tar.file_store import WebdatasetFileStore
from energy_data.data.tar.source import TARS, WebdatasetSource
from energy_data.data.tokens.reader import TokenKeys
from energy_data.data.tokens.source import (
    ARRAYS,
    DATATROVE,
    MEGATRON,
    ArraySource,
    DatatroveSource,
    MegatronSource,
)
from energy_data.data.typed.dataset_yaml import check_dataset_config
from energy_data.errors import SpecError


class SourceFormat(NamedTuple):
    """One format: how to recognise a dataset by the names of its files, and how to open it."""

    suffix: str  # of its files
    open: Callable[[str, OpenOptions], Source]
    # For folders, patterns and `prepare`; None: single files only.
    shards: ShardKind | None = None
    keys: type[Any] | None = None  # class of the keys that only this format has
    open_store: Callable[[str], FileStore[bytes]] | None = None  # parts of all samples by key
    decodes_parts: bool = False  # whether its samples have parts that decoders apply to

    @property
    def endings(self) -> tuple[str, ...]:
        """The suffixes of its files, compressed ones included."""
        return self.shards.endings if self.shards else (self.suffix,)


FORMATS = [
    SourceFormat(".jsonl", JsonlSource, JSONL, open_store=JsonlFileStore),
    SourceFormat(".bin", MegatronSource, MEGATRON, TokenKeys),
    SourceFormat(".ds", DatatroveSource, DATATROVE, TokenKeys),
    SourceFormat(".npy", ArraySource, ARRAYS, TokenKeys),
    SourceFormat(".parquet", ParquetSource, PARQUET, TableKeys),
    SourceFormat(".arrow", ArrowSource, ARROW, TableKeys),
    SourceFormat(
        ".tar", WebdatasetSource, TARS, open_store=WebdatasetFileStore, decodes_parts=True
    ),
]
"""All formats; the last one is that of files with other names."""


def format_of(
    path: str | Path, *, exclude: str | None = None, prepared: bool = True
) -> SourceFormat:
    """Return the format of a dataset.

    Args:
        path: A folder, a file, or a pattern of files.
        exclude: Leave out shards in a folder whose name contains a match of this regular
            expression.
        prepared: Whether a prepared folder has the shards that it was prepared with; otherwise all
            that are in it now.

    Raises SpecError for files of several formats, and for a folder without shards.
    """
    found: dict[SourceFormat, str] = {}
    for name in _files_of(str(path), exclude, prepared=prepared):
        for one in FORMATS:
            if name.endswith(one.endings):
                found.setdefault(one, name)
                break
    if len(found) > 1:
        names = " and ".join(found.values())
        raise SpecError(
            f"{path}: a dataset has one format, found {names}. Move the files of one elsewhere, or "
            "run `energy-data prepare` with --exclude to leave them out."
        )
    return next(iter(found), FORMATS[-1])


def _files_of(path: str, exclude: str | None, *, prepared: bool) -> Iterable[str]:
    """Return the names of the shards in a folder, or of the files that a path stands for."""
    meta = prepared_at(path) if prepared else None
    if meta is not None:
        return meta.counts
    if Path(path).is_dir():
        return find_files(Path(path), [one.shards for one in FORMATS if one.shards], exclude)
    if any(path.endswith(one.endings) for one in FORMATS):
        return [path]  # also a pattern, if all it stands for end alike
    return named_files(path)


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
        path: The dataset: a folder of tars or of JSONL files, one of them, a pattern of them, or a
            file of tokens.
        split_part: The part to read. What is not prepared has one part, "train".
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
    return open_format(format_of(path), path, options)


def open_format(found: SourceFormat, path: str | Path, options: OpenOptions) -> Source:
    """Return the samples of a dataset. SpecError for keys that are of other formats."""
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
