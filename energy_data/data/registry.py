"""The formats of datasets: those of this package, one line each, and those that others add."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, NamedTuple

from energy_data.core.recipe import keys_of, listed
from energy_data.data.chunks.litdata import LitdataSource
from energy_data.data.chunks.litdata_index import LITDATA, is_litdata
from energy_data.data.chunks.mds import MdsSource
from energy_data.data.chunks.mds_index import MDS, is_mds
from energy_data.data.decode.parts import Decoding, Overrides
from energy_data.data.files.local import open_file
from energy_data.data.files.stores import FileStore
from energy_data.data.frames.source import (
    JSONL_GZIP,
    JSONL_ZSTD,
    GzipFileStore,
    GzipJsonlSource,
    ZstdFileStore,
    ZstdJsonlSource,
)
from energy_data.data.jsonl import JSONL, JsonlFileStore, JsonlSource
from energy_data.data.part import prepared_at
from energy_data.data.shards import ShardKind, find_files, named_files, no_shards
from energy_data.data.source import OpenOptions, Source
from energy_data.data.tables.hub import SCHEME, HubKeys, open_hub
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
from energy_data.remote.mirror_paths import NO_OPTIONS, is_mirrored, is_url
from energy_data.remote.mirrors import mirror

GROUP = "energy_data.sources"
"""The entry points of packages that add formats: each is a `SourceFormat`."""

_HEAD = 512  # first bytes of a file


class SourceFormat(NamedTuple):
    """One format: how to recognise a dataset, and how to open it."""

    suffix: str  # of its files; or `scheme://`
    open: Callable[[str, OpenOptions], Source]
    # For folders, patterns and `prepare`; None: single files only.
    shards: ShardKind | None = None
    keys: type[Any] | None = None  # class of the keys that only this format has
    open_store: Callable[[str], FileStore[bytes]] | None = None  # parts of all samples by key
    decodes_parts: bool = False  # whether its samples have parts that decoders apply to
    # Whether a path is of this format: a folder, a file that no suffix fits, or `scheme://...`.
    detect: Callable[[str], bool] | None = None

    @property
    def endings(self) -> tuple[str, ...]:
        """The suffixes of its files, compressed ones included."""
        return self.shards.endings if self.shards else (self.suffix,)


def _begins(magic: bytes, at: int = 0) -> Callable[[str], bool]:
    """Return what detects files that have some bytes near their begin."""
    return lambda path: _head_of(path)[at:].startswith(magic)


def _head_of(path: str) -> bytes:
    """Return the first bytes of a file; none of what is no file."""
    if not Path(path).is_file():
        return b""
    file = open_file(path)
    return file.read(0, min(_HEAD, file.size))


FORMATS = [
    SourceFormat(".jsonl", JsonlSource, JSONL, open_store=JsonlFileStore, detect=_begins(b"{")),
    SourceFormat(".jsonl.zst", ZstdJsonlSource, JSONL_ZSTD, open_store=ZstdFileStore),
    SourceFormat(".jsonl.gz", GzipJsonlSource, JSONL_GZIP, open_store=GzipFileStore),
    SourceFormat(".bin", MegatronSource, MEGATRON, TokenKeys),
    SourceFormat(".ds", DatatroveSource, DATATROVE, TokenKeys),
    SourceFormat(".npy", ArraySource, ARRAYS, TokenKeys),
    SourceFormat(".bin", LitdataSource, LITDATA, TableKeys, detect=is_litdata),
    SourceFormat(".mds", MdsSource, MDS, TableKeys, detect=is_mds),
    SourceFormat(".parquet", ParquetSource, PARQUET, TableKeys, detect=_begins(b"PAR1")),
    SourceFormat(".arrow", ArrowSource, ARROW, TableKeys, detect=_begins(b"ARROW1")),
    SourceFormat(SCHEME, open_hub, keys=HubKeys, detect=lambda path: path.startswith(SCHEME)),
    SourceFormat(
        ".tar",
        WebdatasetSource,
        TARS,
        open_store=WebdatasetFileStore,
        decodes_parts=True,
        detect=_begins(b"ustar", at=257),
    ),
]
"""The formats of this package; the first one that fits is used."""


@cache
def installed_formats() -> list[SourceFormat]:
    """Return the formats of other packages that are installed, in the order of their names.

    They are imported when no format of this package fits. Raises SpecError if one cannot be.
    """
    found = []
    for entry in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        try:
            one = entry.load()
        except Exception as error:
            raise SpecError(
                f"entry point {entry.name!r} of {GROUP}: {entry.value} cannot be imported: "
                f"{error!r}. Repair or remove the package that has it."
            ) from error
        if not isinstance(one, SourceFormat):
            problem = f"{entry.value} must be a SourceFormat, found {one!r}"
            raise SpecError(f"entry point {entry.name!r} of {GROUP}: {problem}.")
        found.append(one)
    return found


def located(path: str | Path, storage: Mapping[str, Any] = NO_OPTIONS) -> str:
    """Return the local path of a dataset: that of its mirror, if it is in an object store.

    storage: the options of the store.
    """
    where = os.fspath(path)
    return mirror(where, storage) if is_url(where) else where


def format_of(
    path: str | Path, *, exclude: str | None = None, prepared: bool = True
) -> SourceFormat:
    """Return the format of a dataset.

    A file is recognised by its suffix, or else by its first bytes. A folder is recognised by a file
    that only one format has, or else by the suffixes of its files.

    Args:
        path: A folder, a file, a pattern of files, or a name such as `hf://datasets/OWNER/NAME`.
        exclude: Leave out shards in a folder whose name contains a match of this regular
            expression.
        prepared: Whether a prepared folder has the shards that it was prepared with; otherwise all
            that are in it now.

    Raises SpecError for files of several formats, and for what no format fits.
    """
    where = str(path)
    if found := _fitting(FORMATS, where, exclude, prepared=prepared):
        return found
    if "://" not in where and not (Path(where).exists() or named_files(where) != [where]):
        suffixes = (one.suffix for one in FORMATS if Path(f"{where}{one.suffix}").is_file())
        advice = next((f"Did you mean {where}{suffix}?" for suffix in suffixes), "Check the path.")
        raise SpecError(f"{path}: there is no such file or folder. {advice}")
    if found := _fitting(installed_formats(), where, exclude, prepared=prepared):
        return found
    raise _unknown(where)


def _fitting(
    formats: Sequence[SourceFormat], path: str, exclude: str | None, *, prepared: bool
) -> SourceFormat | None:
    """Return the one of some formats that a dataset has; None: it has none of them."""
    if "://" in path:
        return _detected(formats, path)
    meta = prepared_at(path) if prepared else None
    is_folder = Path(path).is_dir()
    if is_folder and (found := _detected(formats, path)):
        return found
    if meta is not None:
        names: Iterable[str] = meta.counts
    elif is_folder:
        endings = tuple(ending for one in formats if one.shards for ending in one.endings)
        names = find_files(Path(path), endings, exclude)
    elif _named(formats, path):
        names = [path]  # also a pattern, if all it stands for end alike
    else:
        names = named_files(path)
    by_name: dict[SourceFormat, str] = {}
    for name in names:
        if one := _named(formats, name):
            by_name.setdefault(one, name)
    if len(by_name) > 1:
        several = " and ".join(by_name.values())
        raise SpecError(
            f"{path}: a dataset has one format, found {several}. Move the files of one elsewhere, "
            "or run `energy-data prepare` with --exclude to leave them out."
        )
    if not by_name and not is_folder:
        return next((_detected(formats, name) for name in names), None)
    return next(iter(by_name), None)


def _named(formats: Sequence[SourceFormat], name: str) -> SourceFormat | None:
    return next((one for one in formats if name.endswith(one.endings)), None)


def _detected(formats: Sequence[SourceFormat], path: str) -> SourceFormat | None:
    return next((one for one in formats if one.detect and one.detect(path)), None)


def _unknown(path: str) -> SpecError:
    """Return the error for a path that no format fits."""
    formats = [*FORMATS, *installed_formats()]
    if Path(path).is_dir():
        return no_shards(path, dict.fromkeys(one.suffix for one in formats if one.shards))
    file = next(iter(named_files(path)), None)
    if file is None:
        return SpecError(f"{path}: no file fits this pattern. Check it.")
    known = listed(dict.fromkeys(one.suffix for one in formats if "://" not in one.suffix))
    begin = f", and it begins with {_head_of(file)[:8]!r}" if Path(file).is_file() else ""
    return SpecError(
        f"{path}: no format fits: its name does not end with {known}{begin}. Rename it, or "
        f"install a package that reads it (entry points `{GROUP}`)."
    )


def open_source(
    path: str | Path,
    *,
    split_part: str = "train",
    subset: tuple[int, int | None] | None = None,
    subflavors: Mapping[str, Any] | None = None,
    dataset_config: str | None = None,
    split_config: str | None = None,
    filter: str | None = None,  # noqa: A002 - the key of a metadataset
    decode: Literal["auto", "bytes"] = "auto",
    decoders: Overrides | None = None,
    **keys: Any,
) -> Source:
    """Return the samples of one part of a dataset, as dicts of parts by extension.

    Args:
        path: The dataset: a folder of shards, one of them, a pattern of them, or a name such as
            `hf://datasets/OWNER/NAME`.
        split_part: The part to read. What is not prepared has one part, "train".
        subset: Samples [start, end) of the part; end None means to its end.
        subflavors: The `__subflavors__` of every sample; one dict that all of them share.
        dataset_config: Name of the file in `.nv-meta` that declares the sample type. It must exist,
            but dicts have no type: `energy_data.data.typed.wrap.open_typed` uses it.
        split_config: Name of the file in `.nv-meta` that defines the parts; None: split.yaml.
        filter: Name of the filter index whose samples are read; None: all are.
        decode: "auto" decodes parts by extension; "bytes" decodes nothing.
        decoders: Extension (`png`, or more specific `seg.png`) -> function of the part's bytes, or
            "bytes"; takes precedence over `decode`.
        keys: Keys that only datasets of one format have, such as `seq_len`.

    Raises SpecError if the dataset or part does not exist, StructureError for damaged files.
    """
    path = located(path)
    if dataset_config is not None:
        check_dataset_config(Path(path), dataset_config)
    options = OpenOptions(
        split_part=split_part,
        subset=subset,
        subflavors=dict(subflavors or {}),
        decoding=Decoding(decode, dict(decoders or {})),
        split_config=split_config,
        filter=filter,
        keys=keys,
    )
    return open_format(format_of(path), path, options)


def open_format(found: SourceFormat, path: str | Path, options: OpenOptions) -> Source:
    """Return the samples of a dataset. SpecError for keys that are of other formats."""
    if is_mirrored(str(path)) and found not in FORMATS:  # it would read what is not there yet
        problem = f"{found.suffix} is a format of another package, which reads local files only"
        raise SpecError(f"{path}: {problem}. Copy the dataset to a disk.")
    known = keys_of(found.keys) if found.keys else {}
    if wrong := sorted(options.keys.keys() - known.keys()):
        raise SpecError(f"{path}: {wrong[0]} is not for datasets of its format. Remove it.")
    source = found.open(str(path), options)
    if options.filter is not None and not source.is_filtered:
        problem = f"samples of its format have no filter index, found filter {options.filter!r}"
        raise SpecError(f"{path}: {problem}. Remove it.")
    return source


def open_store(path: str | Path) -> FileStore[bytes]:
    """Return the parts of all samples of a dataset, by key. SpecError if it has no index."""
    path = located(path)
    store = format_of(path).open_store
    if store is None:
        raise SpecError(f"{path}: its samples have no files by key. Name a folder of tars.")
    return store(str(path))
