"""Chunks of litdata.

source = open_source("/data/optimized")
source.read(np.arange(256))  # -> [{"__key__": "0", "text": "...", "ids": tensor}, ...]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from energy_data.core.arrays import Int64s
from energy_data.data.chunks.litdata_index import LITDATA, litdata_index
from energy_data.data.chunks.serializers import Tree, TreeLeaf, filled, itemsize_of, leaf_decoder
from energy_data.data.chunks.source import ChunkSource, ColumnLayout
from energy_data.data.chunks.table import INDEX, find_entry
from energy_data.data.part import names_dataset
from energy_data.data.source import OpenOptions, Source, Unit
from energy_data.data.tables.source import TableKeys, chosen_columns
from energy_data.errors import SpecError


class LitdataSource(ChunkSource):
    """Samples of litdata: the entries of its items, which are dicts; those of lists are numbered.

    Items of a `TokensLoader` are documents: a sample has their `tokens`.

    Opening it reads index.json and the sizes of the files. Raises SpecError for chunks in a form
    that cannot be read, and for a leaf that is a pickle, StructureError for damage.
    """

    kind = LITDATA

    def __init__(self, path: str, options: OpenOptions) -> None:
        super().__init__(path, options)
        where = f"{self.part.root}/{INDEX}"
        with names_dataset(path):
            index = litdata_index(self.part.root)
            chunks = [find_entry(index.chunks, name, where) for name in self.part.shards]
        self._is_tokens = index.is_tokens
        entries = {"tokens": index.leaves[0]} if self._is_tokens else index.entries
        self.columns = chosen_columns(list(entries), TableKeys(**options.keys).columns, path)
        self._entries = {name: entries[name] for name in self.columns}
        self.facts = tuple(index.formats), tuple(index.leaves), tuple(index.entries)
        self._packed = dict(enumerate(chunks)) if index.is_packed else {}
        self._wanted = []
        for leaf in (leaf for one in self._entries.values() for leaf in _leaves(one)):
            written = index.formats[leaf.place]
            try:
                decode = leaf_decoder(leaf.name, written, options.decoding)
            except ValueError as error:
                raise SpecError(
                    f"{where}: {leaf.name!r} is written by the serializer {written!r}: {error}. "
                    "Choose `columns` without it, or write the dataset with another one."
                ) from error
            self._wanted.append((leaf.place, leaf.name, decode))
        self._bytes_per_token = itemsize_of(index.formats[0]) if self._is_tokens else None
        self._layout = ColumnLayout([None] * len(index.leaves), self._wanted)

    def costs(self, indices: Int64s, unit: Unit) -> Int64s | None:
        """Return the costs of samples; the tokens of documents are known by their bytes."""
        if self._bytes_per_token is None or unit != "tokens":
            return super().costs(indices, unit)
        found = super().costs(indices, "bytes")
        return None if found is None else found // self._bytes_per_token

    def total_cost(self, unit: Unit) -> int | None:
        """Return the sum of the costs of all samples; None if no index has them."""
        of = ChunkSource if self._bytes_per_token is None else Source
        return of.total_cost(self, unit)

    def values(self, number: int, data: memoryview) -> dict[str, Any]:
        """Return the entries of an item."""
        if self._is_tokens:
            (_, _, decode), *_ = self._wanted
            return {"tokens": decode(data).long()}
        values = self._layout.values(data)
        return {name: filled(tree, values) for name, tree in self._entries.items()}


def _leaves(tree: Tree) -> Iterator[TreeLeaf]:
    """Yield the leaves of a tree, in order."""
    if isinstance(tree, TreeLeaf):
        yield tree
    else:
        for one in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _leaves(one)
