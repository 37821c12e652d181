"""Samples that begin with a raw tensor, read straight into the rows of their batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from energy_data.errors import SampleError
from energy_data.memory import Rows
from energy_data.sample import Sample
from energy_data.sources.raw_tensor import RawTensor
from energy_data.sources.tar_alone import read_alone, take_parts
from energy_data.sources.tar_headers import BLOCK, PAX, Bools, Headers, are_idle, parse_headers
from energy_data.sources.tar_samples import Bytes, Spans

_MOST_BEHIND = 65536  # bytes of other parts that are read with the tensor
_WITH_PAX = 3 * BLOCK  # a header, the records that it heads, and the header of the file


class Beginning(NamedTuple):
    """What the samples of a dataset begin with: this many bytes of headers, then this tensor."""

    tensor: RawTensor
    lead: int = BLOCK

    @classmethod
    def of(cls, overrides: Mapping[str, Any]) -> Beginning | None:
        """Return what is hoped for at first; None if samples have no tensor, or several kinds."""
        tensors = [one for one in overrides.values() if isinstance(one, RawTensor)]
        return cls(tensors[0]) if len(tensors) == 1 else None


def read_raw(
    spans: Spans, places: Sequence[int], rows: Rows, beginning: Beginning
) -> tuple[list[Sample | SampleError], Beginning | None]:
    """Return the samples in the order of `spans`, and what the next ones seem to begin with.

    places: for each sample the number of the row that its tensor is read into. A sample that begins
    otherwise, or in which much follows, is read again, alone.
    """
    heads, tails = _load(spans, places, rows.data, beginning)
    headers, fits = _fitting(heads, beginning)
    pad = -beginning.tensor.num_bytes % BLOCK
    found: list[Sample | SampleError] = []
    num_odd = 0
    for row, (name, good) in enumerate(zip(headers.names, fits.tolist(), strict=True)):
        decoders, subflavors = spans.origins[row]
        key, _, extension = name.partition(".")
        sample: Sample | SampleError | None = None
        good = good and bool(key) and not extension.startswith("__")  # fields of ours, never joined
        if good and decoders.find_sane(extension) == beginning.tensor:
            sample = {
                "__key__": key,
                "__subflavors__": subflavors,
                "__sources__": spans.sources[row],
                extension: rows.rows[places[row]],
            }
            if row in tails and not take_parts(sample, bytes(tails[row]), pad, decoders):
                sample = None
        if sample is None:
            num_odd += 1
            sample = read_alone(spans.place(row), decoders, subflavors)
        found.append(sample)
    return found, beginning if num_odd <= len(found) // 2 else _other(heads, beginning)


def _load(
    spans: Spans, places: Sequence[int], rows: memoryview, beginning: Beginning
) -> tuple[Bytes, dict[int, bytearray]]:
    """Read all samples; return their headers, uint8 [n, lead], and what follows their tensors.

    Samples that are too small or too large have headers of zeros, as none has.
    """
    lead, size = beginning.lead, beginning.tensor.num_bytes
    heads = np.zeros((len(spans.begins), lead), np.uint8)
    head, tails = heads.reshape(-1).data, dict[int, bytearray]()
    least = lead + size + -size % BLOCK
    for file, run in spans.runs():
        for row in range(run.start, run.stop):
            begin, at = spans.begins[row], places[row] * size
            num_bytes = spans.ends[row] - begin
            if not least <= num_bytes <= least + _MOST_BEHIND:
                continue
            buffers = [head[row * lead : (row + 1) * lead], rows[at : at + size]]
            if num_bytes > least:  # other parts follow
                tails[row] = bytearray(num_bytes - lead - size)
                file.read_parts([*buffers, memoryview(tails[row])], begin, num_bytes)
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


def _other(heads: Bytes, beginning: Beginning) -> Beginning | None:
    """Return what samples seem to begin with that do not begin like that; None: something else."""
    if beginning.lead == BLOCK and _are_pax(heads).all():
        return beginning._replace(lead=_WITH_PAX)
    return None
