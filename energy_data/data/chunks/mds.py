"""MDS: the datasets of MosaicML Streaming.

source = open_source("/data/pages", columns=["text"])
source.read(np.arange(256))  # -> [{"__key__": "0", "text": "..."}, ...]
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from energy_data.data.chunks.encodings import Decode, decoder_of
from energy_data.data.chunks.mds_index import MDS, Columns, index_of
from energy_data.data.chunks.source import ChunkSource, ColumnLayout
from energy_data.data.chunks.table import ADVICE, INDEX, find_entry
from energy_data.data.part import names_dataset
from energy_data.data.source import OpenOptions
from energy_data.data.tables.source import TableKeys, chosen_columns
from energy_data.errors import SpecError, StructureError


class MdsSource(ChunkSource):
    """Samples of MDS: a dict with an entry for each column.

    Numbers are int and float, arrays tensors, pictures what `decode` makes of pictures. A column
    `__key__` is the key of samples; else that is the number of the sample in its shard.

    Opening it reads index.json and the sizes of the files. Raises SpecError for a column that is a
    pickle, StructureError if the index or a file is damaged.
    """

    kind = MDS

    def __init__(self, path: str, options: OpenOptions) -> None:
        super().__init__(path, options)
        where = f"{self.part.root}/{INDEX}"
        with names_dataset(path):
            index = index_of(Path(self.part.root))
            shards = [find_entry(index, name, where) for name in self.part.shards]
            names = [name for name, _, _ in shards[0].columns]
            self.columns = chosen_columns(names, TableKeys(**options.keys).columns, path)
            layouts = {one: self._layout(one) for one in dict.fromkeys(s.columns for s in shards)}
        self._layouts = [layouts[shard.columns] for shard in shards]
        self.facts = tuple(layouts)
        files = enumerate(zip(shards, self.part.shards, strict=True))
        self._packed = {
            number: (shard.count, shard.files[shard.raw])
            for number, (shard, name) in files
            if name != shard.raw
        }

    def values(self, number: int, data: memoryview) -> dict[str, Any]:
        """Return the columns of a sample of a shard."""
        return self._layouts[number].values(data)

    def _layout(self, columns: Columns) -> ColumnLayout:
        """Return how samples with some columns are decoded."""
        index = f"{self.part.root}/{INDEX}"
        names = [name for name, _, _ in columns]
        if missing := [name for name in self.columns if name not in names]:
            problem = f"lists a shard without the column {missing[0]!r}"
            raise StructureError(f"{problem}. Choose `columns` that all shards have.", shard=index)
        wanted: list[tuple[int, str, Decode]] = []
        for name in self.columns:
            place = names.index(name)
            _, encoding, size = columns[place]
            try:
                decode, fixed = decoder_of(name, encoding, self.options.decoding)
            except ValueError as error:
                raise SpecError(
                    f"{index}: column {name!r} is encoded as {encoding!r}: {error}. Choose "
                    "`columns` without it, or write the dataset with another encoding."
                ) from error
            if size is not None and fixed not in (None, size):
                problem = f"says that each {encoding!r} of column {name!r} has {size} bytes"
                raise StructureError(f"{problem}, but that is {fixed}. {ADVICE}", shard=index)
            wanted.append((place, name, decode))
        return ColumnLayout([size for _, _, size in columns], wanted)
