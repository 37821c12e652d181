"""JSONL files: one JSON object per line, with random access through an index next to the file.

source = open_source("/data/notes.jsonl")
source.read(np.arange(256))  # -> [{"__key__": "0", "json": {...}}, ...]
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from energy_data.core.sample import Sample, SampleSource
from energy_data.data.decode.parts import decode_json
from energy_data.data.files.local import open_file
from energy_data.data.files.offsets import Offsets
from energy_data.data.jsonl.index import find_jsonl_index, load_jsonl_index
from energy_data.data.source import OpenOptions, Source, reopen
from energy_data.errors import SampleError, SpecError, StructureError

Int64s = npt.NDArray[np.int64]

_GAP = 8192  # bytes between two lines that are cheaper to read than to skip
_MOST = 1 << 26  # bytes read at once
_PROBES = 4096  # offsets that the fingerprint looks at


class JsonlSource(Source):
    """Samples of a JSONL file: one part, `json`; their keys are their numbers.

    The file has no parts: every split part is all of it. It is indexed now if it has no index, or
    an older one. Raises SpecError if it does not exist, StructureError for a line that is not a
    JSON object.
    """

    def __init__(self, path: str, options: OpenOptions) -> None:
        self.path, self.options = path, options
        if not Path(path).is_file():
            raise SpecError(f"{path}: there is no such file. Name a .jsonl file.")
        self._index = find_jsonl_index(path)
        total = Path(self._index).stat().st_size // 8 - 1
        self._first, self._length = options.range_of(total, path)
        self._name = Path(path).name

    def __len__(self) -> int:
        return self._length

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits: another if lines begin elsewhere or other ones are meant."""
        offsets = self._offsets
        some = np.linspace(0, len(offsets) - 1, _PROBES).astype(np.int64)
        digest = hashlib.blake2b(offsets[some].tobytes(), digest_size=8)
        digest.update(repr((len(offsets), self._first, self._length)).encode())
        return digest.hexdigest()

    @cached_property
    def _offsets(self) -> Offsets:
        return load_jsonl_index(self._index, self.path)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return reopen, (type(self), self.path, self.options, self.fingerprint)

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order; a bad sample is a SampleError."""
        wanted = np.asarray(indices, np.int64)
        order = wanted.argsort(kind="stable")
        rows, begins, ends = self._located(wanted[order])
        samples: list[Sample | SampleError] = [{}] * len(wanted)
        for first, end in _runs(begins, ends):
            data = memoryview(self._read(begins[first], ends[end - 1]))
            shift = begins[first]
            for n in range(first, end):
                line = data[begins[n] - shift : ends[n] - shift]
                samples[int(order[n])] = self._sample(rows[n], line, begins[n])
        return samples

    def hint(self, indices: Int64s) -> None:
        """Start read-ahead for `indices`."""
        try:
            _, begins, ends = self._located(np.sort(np.asarray(indices, np.int64)))
            file = open_file(self.path)
        except StructureError:  # left to `read`
            return
        for first, end in _runs(begins, ends):
            file.will_need(begins[first], ends[end - 1] - begins[first])

    def _located(self, wanted: Int64s) -> tuple[list[int], list[int], list[int]]:
        """Return numbers in the file, and where the lines of sorted `wanted` begin and end."""
        if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < self._length:
            raise IndexError(f"one of {wanted.tolist()} of {self._length} samples")
        rows = wanted + self._first
        begins, ends = self._offsets[rows], self._offsets[rows + 1]
        wrong = np.flatnonzero((begins >= ends) | (ends > self._offsets[-1]))
        if len(wrong):
            begin, end = int(begins[wrong[0]]), int(ends[wrong[0]])
            raise StructureError(
                f"its index has a line from byte {begin} to {end}, which cannot be. Run "
                "`energy-data prepare` on the file.",
                dataset=self.path,
                offset=begin,
            )
        return rows.tolist(), begins.tolist(), ends.tolist()

    def _read(self, begin: int, end: int) -> bytes:
        try:
            return open_file(self.path).read(begin, end - begin)
        except StructureError as error:
            error.dataset = self.path
            raise

    def _sample(self, row: int, line: memoryview, offset: int) -> Sample | SampleError:
        try:
            value = decode_json(line[:-1] if line[-1] == 10 else line)
        except (ValueError, RecursionError) as error:
            return SampleError(
                f"line is not JSON: {error}. Fix the line.",
                dataset=self.path,
                shard=self._name,
                key=str(row),
                index=row,
                offset=offset,
            )
        return {
            "__key__": str(row),
            "__subflavors__": self.options.subflavors,
            "__sources__": (SampleSource(self.path, self._name, row),),
            "json": value,
        }


def _runs(begins: list[int], ends: list[int]) -> list[tuple[int, int]]:
    """Return the rows [first, end) that are read together: neighbours in the file."""
    bounds, start = [0], 0
    for n in range(1, len(begins)):
        if begins[n] > ends[n - 1] + _GAP or ends[n] - begins[start] > _MOST:
            bounds.append(n)
            start = n
    return list(pairwise([*bounds, len(begins)])) if begins else []
