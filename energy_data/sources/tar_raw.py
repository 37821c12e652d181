"""Samples that begin with a raw tensor, read straight into the rows of their batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from energy_data import compiled
from energy_data.core.rows import Row, Rows, make_row
from energy_data.core.sample import Sample
from energy_data.errors import SampleError
from energy_data.sources.raw_tensor import RawTensor
from energy_data.sources.tar_alone import read_alone, take_parts
from energy_data.sources.tar_headers import BLOCK, are_idle, plain_header, plain_name, size_digits
from energy_data.sources.tar_samples import Origin, Spans

_MOST_BEHIND = 65536  # bytes of other parts that are read with the tensor
_PATIENCE = 8  # samples that begin otherwise and teach nothing
_WITH_PAX = 3 * BLOCK  # a header, the records that it heads, and the header of the file


class Beginning(NamedTuple):
    """What the samples of a dataset begin with: this many bytes of headers, then this tensor."""

    tensor: RawTensor
    lead: int = BLOCK

    def instead(self, lead: bytes) -> Beginning | None:
        """Return what a sample seems to begin with that does not begin so; None: no idea."""
        hopeful = self.lead == BLOCK and _is_pax(lead)
        return self._replace(lead=_WITH_PAX) if hopeful else None

    @classmethod
    def of(cls, overrides: Mapping[str, Any]) -> Beginning | None:
        """Return what is hoped for at first; None if samples have no tensor, or several kinds."""
        tensors = [one for one in overrides.values() if type(one) is RawTensor]
        return cls(tensors[0]) if len(tensors) == 1 else None


@dataclass
class Begun:
    """How samples began that were read so far."""

    samples: int = 0
    others: int = 0  # those that did not begin as it was hoped

    def are_others(self) -> bool:
        """Whether to hope for something else: others are many, and more than half."""
        return self.others > _PATIENCE and 2 * self.others > self.samples


Others = dict[int, Beginning | None]
"""Row of a sample that does not begin as it was hoped -> what it seems to begin with."""


def read_raw(
    spans: Spans, places: list[int], rows: Rows, beginning: Beginning
) -> tuple[list[Sample | SampleError], Others]:
    """Return the samples in the order of `spans`; and what those that begin otherwise begin with.

    places: for each sample the row that its tensor is read into. A sample that begins otherwise, or
    in which much follows, is read again, alone.
    """
    if compiled.TAR is None or beginning.lead != BLOCK:
        return _read_raw(spans, places, rows, beginning)
    tensor, read_rows = beginning.tensor, compiled.TAR.read_rows

    def is_tensor(origin: Origin, extension: str) -> bool:
        found = origin.decoders.find_sane(extension)
        return found is tensor or found == tensor

    found: list[Any] = []
    data = rows.data, tensor.num_bytes, is_tensor, Row, rows.whole
    if not read_rows(found, *spans.columns(), places, *data):
        return found, {}
    left = [row for row, sample in enumerate(found) if sample is None]
    there = [places[row] for row in left]
    samples, others = _read_raw(spans.only(left), there, rows, beginning)
    for row, sample in zip(left, samples, strict=True):
        found[row] = sample
    return found, {left[number]: seems for number, seems in others.items()}


def _read_raw(
    spans: Spans, places: Sequence[int], rows: Rows, beginning: Beginning
) -> tuple[list[Sample | SampleError], Others]:
    """Return the same as `read_raw`, by Python alone."""
    whole, digits = rows.whole, size_digits(beginning.tensor.num_bytes)
    pad = -beginning.tensor.num_bytes % BLOCK
    name_in = plain_name if beginning.lead == BLOCK else _name_behind_pax
    found: list[Sample | SampleError] = []
    others: Others = {}
    known, ending, is_tensor = None, "", False  # whether parts of that origin and extension are it
    loaded = _load(spans, places, rows.data, beginning)
    columns = zip(loaded, places, spans.origins, spans.sources, strict=True)
    for (lead, tail), place, origin, source in columns:
        key, _, extension = (name_in(lead, digits) or "").partition(".")
        if key and (extension != ending or origin is not known):
            known, ending = origin, extension
            is_tensor = origin.decoders.find_sane(extension) == beginning.tensor
        if key and is_tensor:
            sample = {
                "__key__": key,
                "__subflavors__": origin.subflavors,
                "__sources__": source,
                extension: make_row((whole, place)),
            }
            if not tail or take_parts(sample, tail, pad, origin.decoders):
                found.append(sample)
                continue
        others[len(found)] = beginning.instead(lead)
        found.append(read_alone(spans.place(len(found)), *origin))
    return found, others


def _load(
    spans: Spans, places: Sequence[int], data: memoryview, beginning: Beginning
) -> Iterator[tuple[bytes, bytes]]:
    """Read the samples; yield the headers of each, and what follows its tensor if more than zeros.

    Nothing of samples that are too small or too large.
    """
    size = beginning.tensor.num_bytes
    pad, least = -size % BLOCK, beginning.lead + size
    lead = bytearray(beginning.lead)
    head = memoryview(lead)
    bounds = zip(spans.begins, spans.ends, places, strict=True)
    for file, run in spans.runs():
        for begin, end, place in islice(bounds, run.stop - run.start):
            at, num_behind = place * size, end - begin - least
            if num_behind == pad:
                file.read_parts([head, data[at : at + size]], begin, least)
                yield bytes(lead), b""
            elif pad < num_behind <= _MOST_BEHIND:
                tail = bytearray(num_behind)
                buffers = [head, data[at : at + size], memoryview(tail)]
                file.read_parts(buffers, begin, least + num_behind)
                yield bytes(lead), bytes(tail)
            else:
                yield b"", b""


def _name_behind_pax(lead: bytes, size: bytes) -> str | None:
    """Return what `plain_name` does of the header behind pax records, if they change nothing."""
    idle = _is_pax(lead) and are_idle(lead[BLOCK:-BLOCK])
    return plain_name(lead[-BLOCK:], size) if idle else None


def _is_pax(lead: bytes) -> bool:
    """Return whether it begins with the header of pax records that one block holds."""
    header = plain_header(lead, 0)
    return header is not None and header[2] and 0 < header[1] <= BLOCK
