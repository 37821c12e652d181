"""MDS: the datasets of MosaicML Streaming.

    source = open_source("/data/pages", columns=["text"])
    source.read(np.arange(256))  # -> [{"__key__": "0", "text": "..."}, ...]

A sample is the sizes of its columns that do not have a fixed size, uint32 each, and their bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from energy_data.core.lazy import cached_property
from energy_data.core.sample import Sample, make_source
from energy_data.data.chunks.encodings import Decode, decoder_of
from energy_data.data.chunks.mds_index import MDS, Columns, find_shard, index_of
from energy_data.data.chunks.table import ADVICE, INDEX
from energy_data.data.decode.parts import Decoding
from energy_data.data.part import names_dataset
from energy_data.data.records import Int64s, RecordSource
from energy_data.data.source import OpenOptions, Unit
from energy_data.data.tables.source import TableKeys, chosen_columns
from energy_data.errors import MissingExtraError, SampleError, SpecError, StructureError


class MdsSource(RecordSource):
    """Samples of MDS: a dict with an entry for each column.

    Numbers are int and float, arrays tensors, pictures what `decode` makes of pictures. A column
    `__key__` is the key of samples; else that is the number of the sample in its shard.

    Opening it reads index.json and the sizes of the files. Raises SpecError for a column that is a
    pickle, StructureError if the index or a file is damaged.
    """

    kind = MDS
    advice = ADVICE

    def __init__(self, path: str, options: OpenOptions) -> None:
        super().__init__(path, options)
        root = self.part.root
        with names_dataset(path):
            index = index_of(Path(root))
            shards = [find_shard(index, name, f"{root}/") for name in self.part.shards]
            names = [name for name, _, _ in shards[0].columns]
            self.columns = chosen_columns(names, TableKeys(**options.keys).columns, path)
            layouts = {one: self._layout(one) for one in dict.fromkeys(s.columns for s in shards)}
        self._layouts = [layouts[shard.columns] for shard in shards]
        self._all_columns = tuple(layouts)
        files = zip(shards, self.part.shards, strict=True)
        packed = [shard.count for shard, name in files if name != shard.raw]
        self._run_length = max(packed, default=None)

    @property
    def run_length(self) -> int | None:
        """The samples of the largest compressed shard; None: none is compressed."""
        return self._run_length

    def costs(self, indices: Int64s, unit: Unit) -> Int64s | None:
        """Return the bytes of each sample in its shard; None if shards are compressed."""
        return None if self._run_length else super().costs(indices, unit)

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that do not depend on the path, and change with the data."""
        with names_dataset(self.path):
            facts = self._row, self._length, self._gaps, self.columns, self._all_columns
            return self.part.fingerprint(*facts)

    def sample(self, number: int, row: int, data: memoryview, offset: int) -> Sample | SampleError:
        """Return the columns of a sample."""
        shard = self.part.shards[number]
        try:
            values = self._layouts[number].values(data)
        except (MissingExtraError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - damaged data can raise any error
            return SampleError(
                f"it cannot be decoded: {error}. Write it again.",
                dataset=self.path,
                shard=shard,
                key=str(row),
                index=row,
                offset=offset,
            )
        return {
            "__key__": str(row),
            "__subflavors__": self.options.subflavors,
            "__sources__": (make_source((self.path, shard, row)),),
            **values,
        }

    def _layout(self, columns: Columns) -> _Layout:
        """Return how samples with some columns are decoded."""
        index = f"{self.part.root}/{INDEX}"
        if missing := [one for one in self.columns if one not in {name for name, _, _ in columns}]:
            problem = f"lists a shard without the column {missing[0]!r}"
            raise StructureError(f"{problem}. Choose `columns` that all shards have.", shard=index)
        return _Layout(columns, self.columns, self.options.decoding, index)


class _Layout:
    """Decodes samples of shards with the same columns."""

    def __init__(
        self, columns: Columns, chosen: Sequence[str], decoding: Decoding, index: str
    ) -> None:
        self._sizes = [size for _, _, size in columns]
        self._heads = struct.Struct(f"<{self._sizes.count(None)}I")
        self._wanted: list[tuple[int, str, Decode]] = []
        for place, (name, encoding, size) in enumerate(columns):
            if name not in chosen:
                continue
            try:
                decode, fixed = decoder_of(name, encoding, decoding)
            except ValueError as error:
                raise SpecError(
                    f"{index}: column {name!r} is encoded as {encoding!r}: {error}. Choose "
                    "`columns` without it, or write the dataset with another encoding."
                ) from error
            if size is not None and fixed not in (None, size):
                problem = f"says that each {encoding!r} of column {name!r} has {size} bytes"
                raise StructureError(f"{problem}, but that is {fixed}. {ADVICE}", shard=index)
            self._wanted.append((place, name, decode))
        self._wanted.sort(key=lambda one: chosen.index(one[1]))

    def values(self, data: memoryview) -> dict[str, Any]:
        """Return the chosen columns of a sample; any error for a bad one."""
        if len(data) < self._heads.size:
            raise ValueError(f"it has {len(data)} bytes, less than the sizes of its columns")
        given = iter(self._heads.unpack_from(data))
        sizes = (next(given) if size is None else size for size in self._sizes)
        bounds = list(accumulate(sizes, initial=self._heads.size))
        if bounds[-1] != len(data):
            raise ValueError(f"its columns end at byte {bounds[-1]}, but it has {len(data)} bytes")
        found: dict[str, Any] = {}
        for place, name, decode in self._wanted:
            try:
                found[name] = decode(data[bounds[place] : bounds[place + 1]])
            except (ValueError, TypeError, ArithmeticError, struct.error) as error:
                raise ValueError(f"{name!r}: {error}") from error
        return found
