"""What the sources of MDS and of litdata have in common: samples of columns, one after another."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from energy_data.core.arrays import Int64s
from energy_data.core.lazy import cached_property
from energy_data.core.sample import Sample
from energy_data.data.chunks.encodings import Decode
from energy_data.data.chunks.table import ADVICE
from energy_data.data.part import names_dataset
from energy_data.data.records import RecordSource
from energy_data.data.runs import piece_length
from energy_data.data.source import Unit
from energy_data.errors import MissingExtraError, SampleError
from energy_data.remote.cache_space import Range


class ChunkSource(RecordSource):
    """Samples of chunks, each a dict.

    columns: the names of the entries that are read. facts: what else a fingerprint depends on.
    """

    advice = ADVICE
    columns: tuple[str, ...]
    facts: object
    _packed: Mapping[int, tuple[int, int]]  # samples and bytes of compressed chunks, by number

    @abstractmethod
    def values(self, number: int, data: memoryview) -> dict[str, Any]:
        """Return the columns of a sample of chunk `number`; any error for a bad one."""

    @property
    def run_length(self) -> int | None:
        """The samples of the largest compressed chunk; None: none is compressed."""
        return max(self._packed.values())[0] if self._packed else None

    @property
    def piece_length(self) -> int | None:
        """The samples of such a chunk that have about 4 MiB; None: all of it has 8 MiB at most."""
        return piece_length(*max(self._packed.values())) if self._packed else None

    def _ranges(self, number: int, rows: Int64s) -> Iterable[Range] | None:
        """Return the bytes of samples of a chunk: all of them if it is compressed."""
        if number not in self._packed:
            return super()._ranges(number, rows)
        path, _ = self.part.paths(number)
        return [(path, 0, Path(path).stat().st_size)]

    def costs(self, indices: Int64s, unit: Unit) -> Int64s | None:
        """Return the costs of samples; None for bytes if chunks are compressed."""
        return None if self._packed and unit == "bytes" else super().costs(indices, unit)

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that do not depend on the path, and change with the data."""
        with names_dataset(self.path):
            facts = self._row, self._length, self._gaps, self.columns, self.facts
            return self.part.fingerprint(*facts)

    def sample(self, number: int, row: int, data: memoryview, offset: int) -> Sample | SampleError:
        """Return the columns of a sample, and the fields that all samples have."""
        try:
            values = self.values(number, data)
        except (MissingExtraError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - damaged data can raise any error
            problem = f"it cannot be decoded: {error}. Write it again."
            return self.bad_sample(problem, number, row, offset)
        if "__key__" in values:
            values["__key__"] = str(values["__key__"])
        return self.fields(number, row) | values


class ColumnLayout:
    """Where the columns of a sample are: the sizes of those of any size, uint32, come first.

    sizes: the bytes of each column; None: any number. wanted: place, name and decoder of those that
    are read.
    """

    def __init__(
        self, sizes: Sequence[int | None], wanted: Sequence[tuple[int, str, Decode]]
    ) -> None:
        self._sizes, self._wanted = sizes, wanted
        self._heads = struct.Struct(f"<{list(sizes).count(None)}I")

    def values(self, data: memoryview) -> dict[str, Any]:
        """Return the columns of a sample; any error for a bad one."""
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
            except (ValueError, TypeError, ArithmeticError, LookupError, struct.error) as error:
                raise ValueError(f"{name!r}: {error}") from error
        return found
