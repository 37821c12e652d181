"""Reading samples out of tars.

The C part reads plain samples: a block at a time, neighbours together. It returns None for a sample
with anything special about it. `read_strictly` reads those, one header at a time; it is the only
code that finds out what is wrong with a sample, and reads everything where no C part is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from energy_data.core.batch_memory import RowBlock, TensorRow, make_row
from energy_data.core.sample import Sample
from energy_data.data.decode.parts import (
    Buffer,
    Decoders,
    PartDecoder,
    decode_npy,
    decode_text,
    skip_part,
)
from energy_data.data.decode.raw_tensor import RawTensor
from energy_data.data.files.local import LocalFile, Window
from energy_data.data.tar import native
from energy_data.data.tar.header import Fault, TarMember, walk
from energy_data.data.tar.names import split_name
from energy_data.data.tar.spans import Origin, SampleSpan, Spans
from energy_data.errors import SampleError

LARGEST_PLAIN = 65536  # bytes of a sample; larger ones are read part by part, and not by the C part
_HEADERS = 1024  # bytes read for one header: a small part often follows it

_REPREPARE = "The tar was changed after it was indexed: run `energy-data prepare --force`."
_DECODE = "Fix the data, or pass a decoder of your own for this extension."


def read_samples(spans: Spans) -> list[Sample | SampleError]:
    """Return the samples in the order of `spans`."""
    found: list[Any] = []
    if native.TAR is None:
        found = [None] * len(spans.begins)
    elif not native.TAR.read_plain(found, *spans.columns(), decode_text):
        return found
    return [read_strictly(spans, row) if one is None else one for row, one in enumerate(found)]


def read_into_rows(
    spans: Spans, places: list[int], rows: RowBlock, tensor: RawTensor
) -> list[Sample | SampleError]:
    """Return the samples in the order of `spans`; their tensors are read into rows of one tensor.

    places: for each sample, the row for its tensor. Tensors of another kind, and all but the first
    of a sample, get memory of their own.
    """

    def is_tensor(origin: Origin, extension: str) -> bool:
        found = origin.decoders.find_sane(extension)
        return found is tensor or found == tensor

    found: list[Any] = []
    if native.TAR is None:
        found = [None] * len(places)
    else:
        into = rows.data, tensor.num_bytes, is_tensor, TensorRow, rows.tensor
        if not native.TAR.read_rows(found, *spans.columns(), places, *into):
            return found
    return [
        read_strictly(spans, row, TensorSlot(tensor, rows, places[row])) if one is None else one
        for row, one in enumerate(found)
    ]


class TensorSlot:
    """The row for the tensor of one sample."""

    def __init__(self, tensor: RawTensor, rows: RowBlock, place: int) -> None:
        self._tensor, self._rows, self._place = tensor, rows, place

    def fill(self, file: LocalFile, member: TarMember, decode: PartDecoder) -> TensorRow | None:
        """Read a part into the row if it is the first such tensor of its sample."""
        size = self._tensor.num_bytes
        if self._place < 0 or decode != self._tensor or member.size != size:
            return None
        at, self._place = self._place, -1
        file.read_into(self._rows.data[at * size : (at + 1) * size], member.data)
        return make_row((self._rows.tensor, at))


def read_strictly(spans: Spans, row: int, slot: TensorSlot | None = None) -> Sample | SampleError:
    """Return one sample, whatever its headers are like, or the error that describes it."""
    span, (decoders, subflavors) = spans.row(row), spans.origins[row]
    source = span.sources[0]
    sample: Sample = {"__key__": "", "__subflavors__": subflavors, "__sources__": span.sources}
    try:
        _fill(sample, span, decoders, slot)
    except Fault as fault:
        return SampleError(
            fault.problem,
            dataset=source.dataset,
            shard=source.shard,
            key=fault.key or sample["__key__"] or None,
            index=source.index,
            offset=fault.offset,
        )
    return sample


def _fill(sample: Sample, span: SampleSpan, decoders: Decoders, slot: TensorSlot | None) -> None:
    file, begin, end, _ = span
    read = Window(file, end - begin if end - begin <= LARGEST_PLAIN else _HEADERS).read
    for member in walk(read, begin, end):
        named = split_name(member.name) if member.regular else None
        if named is None:
            continue
        key, extension = named
        sample["__key__"] = sample["__key__"] or key
        if sample["__key__"] != key:
            problem = f"it contains a part of sample {key!r}. {_REPREPARE}"
            raise Fault(problem, member.offset)
        if extension in sample:
            problem = f"it has two parts {extension!r}. Write each part of a sample once."
            raise Fault(problem, member.offset)
        decode = decoders.find(extension)
        value = slot.fill(file, member, decode) if slot is not None else None
        if value is None:
            value = _decoded(decode, extension, _payload(file, member, decode, read), member)
        sample[extension] = value
    if not sample["__key__"]:
        raise Fault(f"no file with a key and an extension is here. {_REPREPARE}", begin)


def _payload(
    file: LocalFile,
    member: TarMember,
    decode: PartDecoder,
    read: Callable[[int, int], bytes],
) -> Buffer:
    if decode is skip_part:
        return b""
    if member.size > LARGEST_PLAIN and (decode is decode_npy or isinstance(decode, RawTensor)):
        data = memoryview(bytearray(member.size))  # becomes the memory of the tensor
        file.read_into(data, member.data)
        return data
    return read(member.data, member.size)


def _decoded(decode: PartDecoder, extension: str, data: Buffer, member: TarMember) -> Any:
    try:
        return decode(data)
    except UnicodeDecodeError as error:
        problem = f"part {extension!r} is not UTF-8: {error.reason} in its byte {error.start}."
        raise Fault(f"{problem} {_DECODE}", member.data + error.start) from error
    except Exception as error:
        problem = f"part {extension!r} cannot be decoded: {type(error).__name__}: {error}."
        raise Fault(f"{problem} {_DECODE}", member.data) from error
