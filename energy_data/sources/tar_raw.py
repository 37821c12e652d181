"""Samples that begin with a raw tensor, read straight into the rows of their batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from energy_data.errors import SampleError
from energy_data.rows import Row
from energy_data.sample import Sample
from energy_data.sources.raw_tensor import RawTensor
from energy_data.sources.tar_alone import read_alone, take_parts
from energy_data.sources.tar_headers import BLOCK, PAX, Bools, Headers, are_idle, parse_headers
from energy_data.sources.tar_samples import Bytes, Spans

_MOST_BEHIND = 65536  # bytes of other parts that are read with the tensor
_PATIENCE = 8  # samples that begin otherwise and teach nothing
_WITH_PAX = 3 * BLOCK  # a header, the records that it heads, and the header of the file


class Beginning(NamedTuple):
    """What the samples of a dataset begin with: this many bytes of headers, then this tensor."""

    tensor: RawTensor
    lead: int = BLOCK

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

    def count(self, samples: int, others: int) -> None:
        """Count the samples of a block."""
        self.samples += samples
        self.others += others

    def are_others(self) -> bool:
        """Whether to hope for something else: others are many, and more than half."""
        return self.others > _PATIENCE and 2 * self.others > self.samples


def read_raw(
    spans: Spans, rows: Sequence[Row], data: memoryview, beginning: Beginning
) -> tuple[list[Sample | SampleError], dict[int, Beginning | None]]:
    """Return the samples in the order of `spans`; and what those that begin otherwise begin with.

    rows: for each sample the one that its tensor is read into; data: the bytes of all rows. A
    sample that begins otherwise, or in which much follows, is read again, alone.
    """
    heads, tails = _load(spans, rows, data, beginning)
    headers, fits = _fitting(heads, beginning)
    pad = -beginning.tensor.num_bytes % BLOCK
    found: list[Sample | SampleError] = []
    others: list[int] = []
    for number, (name, good) in enumerate(zip(headers.names, fits.tolist(), strict=True)):
        decoders, subflavors = spans.origins[number]
        key, _, extension = name.partition(".")
        sample: Sample | SampleError | None = None
        if good and key and decoders.find_sane(extension) == beginning.tensor:
            sample = {
                "__key__": key,
                "__subflavors__": subflavors,
                "__sources__": spans.sources[number],
                extension: rows[number],
            }
            if number in tails and not take_parts(sample, tails[number], pad, decoders):
                sample = None
        if sample is None:
            others.append(number)
            sample = read_alone(spans.place(number), decoders, subflavors)
        found.append(sample)
    return found, _seeming(heads, others, beginning)


def _load(
    spans: Spans, rows: Sequence[Row], data: memoryview, beginning: Beginning
) -> tuple[Bytes, dict[int, bytes]]:
    """Read all samples; return their headers, uint8 [n, lead], and what follows their tensors.

    Samples that are too small or too large have headers of zeros, as none has.
    """
    lead, size = beginning.lead, beginning.tensor.num_bytes
    heads = np.zeros((len(rows), lead), np.uint8)
    head, tails = heads.reshape(-1).data, dict[int, bytes]()
    least = lead + size + -size % BLOCK
    for file, run in spans.runs():
        for number in range(run.start, run.stop):
            begin, at = spans.begins[number], rows[number].number * size
            num_bytes = spans.ends[number] - begin
            if not least <= num_bytes <= least + _MOST_BEHIND:
                continue
            buffers = [head[number * lead : (number + 1) * lead], data[at : at + size]]
            if num_bytes > least:  # other parts follow
                tail = bytearray(num_bytes - lead - size)
                file.read_parts([*buffers, memoryview(tail)], begin, num_bytes)
                tails[number] = bytes(tail)
            else:
                file.read_parts(buffers, begin, lead + size)
    return heads, tails


def _fitting(heads: Bytes, beginning: Beginning) -> tuple[Headers, Bools]:
    """Return the headers of the tensors' files, and which of them are as they should be."""
    headers = parse_headers(np.ascontiguousarray(heads[:, -BLOCK:]))
    regular = (headers.kinds == ord("0")) | (headers.kinds == 0)
    fits = headers.plain & regular & (headers.sizes == beginning.tensor.num_bytes)
    if beginning.lead == _WITH_PAX:
        fits &= _are_pax(heads)
        for row in fits.nonzero()[0].tolist():
            fits[row] = are_idle(heads[row, BLOCK:-BLOCK].tobytes())
    return headers, fits


def _are_pax(heads: Bytes) -> Bools:
    """Return which rows begin with the header of pax records that one block holds."""
    headers = parse_headers(np.ascontiguousarray(heads[:, :BLOCK]))
    few = (headers.sizes > 0) & (headers.sizes <= BLOCK)
    pax: Bools = headers.plain & few & (headers.kinds == PAX)
    return pax


def _seeming(heads: Bytes, others: list[int], beginning: Beginning) -> dict[int, Beginning | None]:
    """Return what samples seem to begin with that do not begin as it was hoped; None: no idea."""
    if not others or beginning.lead != BLOCK:
        return dict.fromkeys(others)
    with_pax = beginning._replace(lead=_WITH_PAX)
    are_pax = _are_pax(heads[others]).tolist()
    return {number: with_pax if pax else None for number, pax in zip(others, are_pax, strict=True)}
