"""Reading samples out of tars: where those of a block are, and what is in them.

The C part locates samples, and reads plain ones: a block at a time, neighbours together. It returns
None for a sample that is not plain. `read_strictly` reads those, one header at a time;
it is the only code that finds out what is wrong with a sample, and reads everything where no C part
is installed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from energy_data.core.batch_memory import RowBlock, TensorRow, make_row
from energy_data.core.sample import Sample, SampleSource
from energy_data.data.decode.parts import (
    Buffer,
    Decoders,
    PartDecoder,
    decode_npy,
    decode_text,
    skip_part,
)
from energy_data.data.decode.raw_tensor import RawTensor
from energy_data.data.files.local import LocalFile, MirroredFile, Window
from energy_data.data.shards import OpenShard
from energy_data.data.tar import native
from energy_data.data.tar.header import BLOCK, Fault, TarMember, split_name, walk
from energy_data.errors import SampleError, StructureError
from energy_data.remote.cache_space import Range, merged

LARGEST_PLAIN = 65536  # bytes of a sample; larger ones are read part by part, and not by the C part
_HEADERS = 1024  # bytes read for one header: a small part often follows it

_REPREPARE = "The tar was changed after it was indexed: run `energy-data prepare --tar-index-only`."
_DECODE = "Fix the data, or pass a decoder of your own for this extension."


class Origin(NamedTuple):
    """What the samples of one dataset have in common."""

    decoders: Decoders
    subflavors: dict[str, Any]


class Spans:
    """The bytes of the samples of a block, file by file, in order of offset."""

    def __init__(self) -> None:
        self.files: list[LocalFile] = []
        self.fds: list[int] = []  # [files] descriptors
        self.file_rows: list[int] = []  # [files] first row of each
        self.begins: list[int] = []  # [rows] offset of the sample's first header
        self.ends: list[int] = []  # [rows] offset after the sample
        self.sources: list[tuple[SampleSource]] = []  # [rows]
        self.origins: list[Origin] = []  # [rows]
        # What the C functions get, in their order.
        self.columns = (
            *(self.fds, self.file_rows, self.begins, self.ends),
            *(self.sources, self.origins),
        )

    def ranges(self) -> list[Range]:
        """Return the bytes that are read of files in a cache, which are to be there."""
        bounds = zip(
            self.files, self.file_rows, [*self.file_rows[1:], len(self.begins)], strict=True
        )
        return merged(
            (file.path, begin, end)
            for file, first, last in bounds
            if type(file) is MirroredFile
            for begin, end in zip(self.begins[first:last], self.ends[first:last], strict=True)
        )

    def file_of(self, row: int) -> LocalFile:
        """Return the file of one row."""
        return self.files[bisect_right(self.file_rows, row) - 1]


class Layout(NamedTuple):
    """How the samples of a dataset are laid out. The C part reads it as a plain tuple."""

    dataset: str  # path
    skipped: int  # samples of the part before the first one of the subset
    length: int  # samples of the subset
    after: list[int]  # [shards] number of the sample after the last one of each
    counts: list[int]  # [shards] samples
    shards: list[str]  # [shards] names
    open: OpenShard
    origin: Origin


def locate(requests: Sequence[tuple[Layout, list[int]]]) -> tuple[Spans, list[int]]:
    """Return the spans of samples, request by request, and the number of bytes of each request.

    Each request: a layout and sorted sample numbers. Raises IndexError for a number that is out of
    range, StructureError for an invalid index.
    """
    spans = Spans()
    if native.TAR is not None:
        into = spans.files, *spans.columns
        located: list[int] | None = native.TAR.locate(requests, *into, SampleSource)
        if located is not None:
            return spans, located
        spans = Spans()  # the Python code raises the error
    return spans, [_add(layout, wanted, spans) for layout, wanted in requests]


def _add(layout: Layout, wanted: list[int], spans: Spans) -> int:
    """Add samples of one dataset to `spans`, shard by shard; return the number of their bytes."""
    dataset, skipped, length, after, counts, shards, open_shard, origin = layout
    if wanted and not 0 <= wanted[0] <= wanted[-1] < length:
        wrong = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise IndexError(f"index {wrong} of {length} samples")
    behind, floor = 0, 0  # sample after the block of the index; where the next one may begin
    num_bytes = 0
    for index in wanted:
        at = index + skipped
        if at >= behind:
            shard = bisect_right(after, at)
            before = after[shard] - counts[shard]
            file, block, row, fd = open_shard(shard, at - before)
            first, floor, offsets = row + before, 0, block.data
            behind, last = first + len(offsets) - 1, offsets[-1]
            spans.files.append(file)
            spans.fds.append(fd)
            spans.file_rows.append(len(spans.begins))
        begin, end = offsets[at - first], offsets[at - first + 1]
        if not begin < end <= last or (begin | end) % BLOCK or begin < floor != end:
            raise StructureError(
                f"its index has a sample from byte {begin} to {end} of {last}, which is invalid. "
                "Run `energy-data prepare --tar-index-only`.",
                shard=file.path,
                offset=begin,
            )
        floor = end  # unless the same sample is requested again
        num_bytes += end - begin
        spans.begins.append(begin)
        spans.ends.append(end)
        spans.sources.append((SampleSource(dataset, shards[shard], at - before),))
    spans.origins.extend(repeat(origin, len(wanted)))
    return num_bytes


def read_samples(spans: Spans) -> list[Sample | SampleError]:
    """Return the samples in the order of `spans`."""
    found: list[Any] = []
    if native.TAR is None:
        found = [None] * len(spans.begins)
    elif not native.TAR.read_plain(found, *spans.columns, decode_text):
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
        if not native.TAR.read_rows(found, *spans.columns, places, *into):
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
    sources, subflavors = spans.sources[row], spans.origins[row].subflavors
    sample: Sample = {"__key__": "", "__subflavors__": subflavors, "__sources__": sources}
    try:
        _fill(sample, spans, row, slot)
    except Fault as fault:
        source = sources[0]
        return SampleError(
            fault.problem,
            dataset=source.dataset,
            shard=source.shard,
            key=fault.key or sample["__key__"] or None,
            index=source.index,
            offset=fault.offset,
        )
    return sample


def _fill(sample: Sample, spans: Spans, row: int, slot: TensorSlot | None) -> None:
    file, begin, end = spans.file_of(row), spans.begins[row], spans.ends[row]
    decoders = spans.origins[row].decoders
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
