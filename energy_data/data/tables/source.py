"""Rows of Parquet and Arrow files as samples.

source = open_source("/data/pages.parquet", columns=["text"])
source.read(np.arange(256))  # -> [{"__key__": "0", "text": "..."}, ...]
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from attrs import frozen

from energy_data.core import recipe
from energy_data.core.arrays import Int64s
from energy_data.core.lazy import cached_property
from energy_data.core.recipe import NAMES
from energy_data.core.sample import Sample, make_source
from energy_data.data.decode.media import extension_of
from energy_data.data.decode.parts import Decoders
from energy_data.data.files.local import CHANGED, LocalFile, Version, version_of
from energy_data.data.files.recent import RECENT
from energy_data.data.part import ShardedSource, names_dataset
from energy_data.data.runs import RunOrder, piece_length
from energy_data.data.shards import NO_INDEX, Scan, ShardKind
from energy_data.data.source import OpenOptions
from energy_data.data.tables.files import TableFile, open_table, pyarrow
from energy_data.data.tables.groups import MakeGroup, RowGroup, read_group, read_pieces
from energy_data.errors import MissingExtraError, SampleError, SpecError, StructureError
from energy_data.remote.cache_space import Range

Decode = Callable[[Any], Any]

_OURS = ("__subflavors__", "__sources__", "__restore_key__")


@frozen(kw_only=True, slots=False)  # a base next to others
class TableKeys:
    """The keys of a dataset of Parquet or Arrow files."""

    columns: tuple[str, ...] | None = recipe.key(
        NAMES,
        "Of Parquet, Arrow and MDS: the columns that are read. Default: all.",
        "columns: [text, url]",
        default=None,
    )


def _scan(file: LocalFile) -> Scan:
    table = open_table(file.path)
    return Scan(NO_INDEX, [], list(table.names), rows=table.num_rows)


def _listed(folder: Path) -> Mapping[str, Scan | None] | None:
    """Return the files that `datasets` lists in a folder of `save_to_disk`; None: it is none."""
    if (folder / "dataset_dict.json").is_file():
        raise SpecError(
            f"{folder}: it is a DatasetDict of several splits. Name the folder of one, such as "
            f"{folder / 'train'}."
        )
    state = folder / "state.json"
    try:
        found = json.loads(state.read_bytes()) if state.is_file() else {}
        chosen = found.get("_indices_data_files") or found.get("_indices_files")
        files = [str(one["filename"]) for one in found.get("_data_files", [])]
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        problem = f"it does not list the files of a dataset: {error!r}"
        raise StructureError(f"{problem}. Save the dataset again.", shard=str(state)) from error
    if chosen:
        problem = f"{folder}: its rows are chosen by a file of indices, which only old versions of"
        raise SpecError(
            f"{problem} `datasets` write and read. Save it again with one, after "
            "`flatten_indices()`."
        )
    return dict.fromkeys(files) if files else None


PARQUET = ShardKind(".parquet", (), _scan)
ARROW = ShardKind(".arrow", (), _scan, listed=_listed)


class FileLayout(NamedTuple):
    """What is known of a file once it was opened."""

    key: str  # of its path, version and columns
    ends: Sequence[int]  # rows up to the end of each group
    decoders: Mapping[str, Decode]  # of the columns that have one


class Run(NamedTuple):
    """A group of a file, or a piece of one, in memory."""

    end: int  # row after its last one, of all files
    before: int  # rows of the files before
    first: int  # its first row in its file
    key: Hashable
    shard: str
    group: RowGroup | str  # or why it cannot be read
    decoders: Mapping[str, Decode]


class TableSource(ShardedSource):
    """Samples of Parquet or Arrow files: a row is a sample, a column an entry of its dict.

    A list of numbers is a tensor, another value is as pyarrow converts it to Python. A struct of
    `bytes` and `path`, as `datasets` stores images in, is decoded by the format of its bytes. A
    column `__key__` is the key of samples; else that is the number of the row in its file.

    Opening it reads the schema of the largest file, and the footers of files that are not prepared.
    """

    def __init__(self, path: str, options: OpenOptions) -> None:
        super().__init__(path, options)
        self._decoders = Decoders(options.decoding)
        self._versions: dict[int, Version | None] = {}
        if self.part.uuid is None:  # not prepared: its rows were counted now
            paths = [self.part.paths(number)[0] for number in range(len(self.part.counts))]
            self._versions = dict(enumerate(map(version_of, paths)))
        self._layouts: dict[int, FileLayout] = {}
        # Files of one group may have fewer rows than others: the largest says most about groups.
        with names_dataset(path):
            largest = self._table(int(np.argmax(self.part.counts)))
        self.columns = chosen_columns(largest.names, TableKeys(**options.keys).columns, path)
        counts = largest.groups.counts
        self._run_length = max(counts)
        # Groups of fewer rows may have larger ones. A file may have very many groups.
        some = {counts.index(self._run_length), *range(0, len(counts), len(counts) // 32 + 1)}
        sizes = [(counts[n], largest.groups.num_bytes(n, self.columns)) for n in some]
        self._piece_length = min(filter(None, starmap(piece_length, sizes)), default=None)

    @property
    def run_length(self) -> int:
        """The rows of the largest group of the file that has most rows."""
        return self._run_length

    @property
    def piece_length(self) -> int | None:
        """The rows of such a file that have about 4 MiB; None: its groups have 8 MiB at most."""
        return self._piece_length

    @cached_property
    def run_order(self) -> RunOrder | None:
        """The order in which whole groups come first, if all but the last of a file are equal."""
        if self._gaps or self.is_filtered:
            return None
        counts = self.part.counts
        begins = [end - count - self._row for end, count in zip(self._ends, counts, strict=True)]
        order = RunOrder(begins, counts, length=self._run_length, num_samples=len(self))
        return None if order.is_trivial else order

    def _ranges(self, number: int, rows: Int64s) -> Iterable[Range]:
        """Return the bytes of the groups that have some rows of a file."""
        self._opened(number)
        file = self._table(number)
        groups = np.unique(np.searchsorted(file.ends, rows, side="right")).tolist()
        return (one for group in groups for one in file.groups.ranges(group, self.columns))

    def _check_shard(self, number: int) -> None:
        """Raise StructureError if a file does not have the rows or columns that it should have."""
        self._opened(number)

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order; a bad sample is a SampleError."""
        order = indices.argsort(kind="stable")
        wanted: list[int] = indices[order].tolist()
        if wanted and not 0 <= wanted[0] <= wanted[-1] < self._length:
            raise IndexError(f"one of {wanted} of {self._length} samples")
        rows, places = self.rows_of(wanted), order.tolist()
        samples: list[Sample | SampleError] = [{}] * len(rows)
        done = 0
        with names_dataset(self.path):
            while done < len(rows):
                run = self._run_of(rows[done])
                end = bisect_left(rows, run.end, done)
                RECENT.use(run.key, end - done, run.end - run.before - run.first)
                found = self._samples(run, [row - run.before for row in rows[done:end]])
                for place, sample in zip(places[done:end], found, strict=True):
                    samples[place] = sample
                done = end
        return samples

    def _run_of(self, row: int) -> Run:
        """Return the group, or the piece of a large one, that has a row."""
        number = bisect_right(self._ends, row)
        before = self._ends[number] - self.part.counts[number]
        layout = self._layouts.get(number) or self._opened(number)
        at = bisect_right(layout.ends, row - before)
        first, end = (layout.ends[at - 1] if at else 0), layout.ends[at]
        length = self._piece_length
        if length is None or end - first <= length:
            key: Hashable = (layout.key, at)
            group = RECENT.get(key, lambda: read_group(self._table(number), at, self.columns))
        else:
            piece, count = (row - before - first) // length, -(-(end - first) // length)
            first, end = first + piece * length, min(first + (piece + 1) * length, end)
            of = layout.key, at, length
            key = of, piece
            group = RECENT.piece(of, piece, count, lambda: self._pieces(number, at, length))
        shard = self.part.shards[number]
        return Run(before + end, before, first, key, shard, group, layout.decoders)

    def _pieces(self, number: int, group: int, length: int) -> tuple[Iterator[MakeGroup], int]:
        """Return what makes pieces of a group of a file, and about how many bytes it holds."""
        file = self._table(number)
        pieces = read_pieces(file, group, self.columns, length)
        of_piece = file.groups.num_bytes(group, self.columns) * length // file.groups.counts[group]
        # The arrays of the next piece may have twice its bytes.
        return pieces, file.groups.page_bytes(group, self.columns) + 2 * of_piece

    def _samples(self, run: Run, numbers: Sequence[int]) -> list[Sample | SampleError]:
        """Return samples by their numbers in the file of a run, all of its group."""
        if isinstance(run.group, str):
            return [self._bad(run, number, run.group) for number in numbers]
        try:
            columns = self._columns(run, run.group, numbers)
        except (MissingExtraError, MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - damaged data can raise any error
            if len(numbers) > 1:
                return [sample for number in numbers for sample in self._samples(run, [number])]
            return [self._bad(run, numbers[0], f"it cannot be decoded: {error}.")]
        path, shard, subflavors = self.path, run.shard, self.options.subflavors
        samples: list[Any] = [
            {
                "__key__": str(number),
                "__subflavors__": subflavors,
                "__sources__": (make_source((path, shard, number)),),
            }
            for number in numbers
        ]
        for name, values in columns.items():
            for sample, value in zip(samples, values, strict=True):
                sample[name] = value
        return samples

    def _columns(
        self, run: Run, group: RowGroup, numbers: Sequence[int]
    ) -> dict[str, Sequence[Any]]:
        """Return the columns of samples, each with its values, decoded."""
        rows = [number - run.first for number in numbers]
        columns = {name: take(rows) for name, take in group.items()}
        if "__key__" in group:
            keys = zip(columns["__key__"], numbers, strict=True)
            columns["__key__"] = [str(number if key is None else key) for key, number in keys]
        for name, decode in run.decoders.items():
            try:
                columns[name] = _each(decode)(columns[name])
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name!r}: {error}") from error
        return columns

    def _bad(self, run: Run, row: int, problem: str) -> SampleError:
        return SampleError(problem, dataset=self.path, shard=run.shard, key=str(row), index=row)

    def _table(self, number: int) -> TableFile:
        """Return a file. StructureError if it changed, or lacks rows that it should have."""
        path, _ = self.part.paths(number)
        now = version_of(path)
        version = self._versions.setdefault(number, now)
        if now is None or version is None or now[1:] != version[1:]:
            raise StructureError(CHANGED, shard=path)
        file = open_table(path, now)
        if file.num_rows != self.part.counts[number]:
            raise StructureError(
                f"has {file.num_rows} rows, not {self.part.counts[number]}. If it was written "
                "again, run `energy-data prepare --tar-index-only`, and restart the run.",
                shard=path,
            )
        return file

    def _opened(self, number: int) -> FileLayout:
        """Return where groups of a file are and what decodes it. StructureError if it is not so."""
        file = self._table(number)
        if (layout := self._layouts.get(number)) is None:
            names = file.names
            if missing := [name for name in self.columns if names.count(name) != 1]:
                problem = f"has no column {missing[0]!r}, or several, only {', '.join(names)}"
                raise StructureError(
                    f"{problem}. Choose `columns` that all files have.", shard=file.path
                )
            decoders = {
                name: decode
                for name in self.columns
                if (decode := self._decoder(name, file.groups.schema.field(name).type)) is not None
            }
            key = repr((file.path, file.version, self.columns))
            layout = self._layouts[number] = FileLayout(key, file.ends, decoders)
        return layout

    def _decoder(self, name: str, kind: Any) -> Decode | None:
        """Return what decodes the values of a column."""
        types, decoding = pyarrow().types, self.options.decoding
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if is_list:
            decode_one = self._decoder(name, kind.value_type)
            return None if decode_one is None else _each(decode_one)
        is_file = types.is_struct(kind) and {part.name for part in kind} == {"bytes", "path"}
        if not (is_file or types.is_binary(kind) or types.is_large_binary(kind)):
            return None
        if not is_file and name not in decoding.overrides:
            return None

        def decode(value: Any) -> Any:
            data = value["bytes"] if is_file else value
            if data is None:
                problem = f"its bytes are not in the table, only its path {value['path']!r}"
                raise ValueError(f"{problem}. Embed the files when the table is written")
            found = "" if name in decoding.overrides else extension_of(data)
            return self._decoders.find(f"{name}.{found}" if found else name)(data)

        return decode


def _each(decode: Decode) -> Decode:
    return lambda values: [value if value is None else decode(value) for value in values]


class ParquetSource(TableSource):
    """Samples of Parquet files."""

    kind = PARQUET


class ArrowSource(TableSource):
    """Samples of files or streams of Arrow, such as `datasets` writes by `save_to_disk`."""

    kind = ARROW


def chosen_columns(
    names: Sequence[str], columns: Sequence[str] | None, path: str
) -> tuple[str, ...]:
    """Return the names of the columns that are read, of those there are.

    columns: those that the user chose; None: all. SpecError if there are no such columns.
    """
    chosen = tuple(names if columns is None else columns)
    if wrong := [name for name in chosen if names.count(name) != 1]:
        found = "are several columns" if wrong[0] in names else "is no column"
        problem = f"there {found} {wrong[0]!r}, found {', '.join(names)}"
        raise SpecError(f"{path}: {problem}. Choose `columns` among those.")
    if len(set(chosen)) < len(chosen):
        raise SpecError(f"{path}: `columns` names one twice, found {', '.join(chosen)}.")
    if not chosen:
        raise SpecError(f"{path}: its files have no columns. Write them again.")
    if ours := [name for name in chosen if name in _OURS]:
        problem = f"samples have a field {ours[0]!r} of their own, and it has such a column"
        raise SpecError(f"{path}: {problem}. Choose `columns` without it.")
    return chosen
