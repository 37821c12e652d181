"""One sample out of a tar: quickly if its headers are plain, or whatever they are like.

`read_alone` is the place where what is wrong with a sample is found out and said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from energy_data.core.sample import Sample, SampleSource
from energy_data.errors import SampleError
from energy_data.sources.decode import Buffer, Decoding, skip_part
from energy_data.sources.tar_headers import BLOCK, Fault, Member, are_idle, plain_header, walk
from energy_data.sources.tar_names import split_name
from energy_data.storage.files import File, Window

_WHOLE = 65536  # bytes; larger samples are read header by header
_HEADERS = 1024  # bytes read for one header: mostly there is a small part behind it
_MOST_EXTENSIONS = 10_000  # remembered: extensions are data too

_AGAIN = "The tar was changed after it was indexed: run `energy-data prepare --force`."
_DECODE = "Mend the data, or decode this extension in your own way."


class Place(NamedTuple):
    """Where one sample is."""

    file: File
    begin: int  # offset of its first header
    end: int  # offset behind it
    sources: tuple[SampleSource]


class Decoders:
    """The decoders of one dataset, by extension, found once each."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self.known: dict[str, Callable[[Buffer], Any]] = {}  # of extensions that can be

    def find(self, extension: str) -> Callable[[Buffer], Any]:
        """Return the decoder of an extension; raise MissingExtraError if it needs an extra."""
        known = self.known.get(extension)
        if known is not None:
            return known
        if len(self.known) > _MOST_EXTENSIONS:
            self.known.clear()
        found = self._decoding.decoder(extension)
        if _is_sane(extension):
            self.known[extension] = found
        return found

    def find_sane(self, extension: str) -> Callable[[Buffer], Any] | None:
        """Return the decoder, as `find`; None if that is no extension of a plain name.

        Nor may it look like a field of ours, such as `__key__`.
        """
        return self.find(extension) if _is_sane(extension) else None


def _is_sane(extension: str) -> bool:
    return extension != "" and "/" not in extension and extension[:2] != "__"


def read_plain(
    file: File,
    first: int,
    size: int,
    sources: tuple[SampleSource],
    decoders: Decoders,
    subflavors: dict[str, Any],
) -> Sample | None:
    """Return the sample in `size` bytes from `first` on, or None if anything is special about it.

    Takes a third of the time of `read_alone`.
    """
    if size > _WHOLE:
        return None
    data = file.read(first, size)
    sample: Sample = {"__key__": None, "__subflavors__": subflavors, "__sources__": sources}
    whole = take_parts(sample, data, 0, decoders) and sample["__key__"] is not None
    return sample if whole else None


def take_parts(sample: Sample, data: bytes, at: int, decoders: Decoders) -> bool:
    """Decode the parts from `at` on into a sample; return False if anything is special about them.

    `__key__` of the sample is that of the parts before, or None.
    """
    known, find, size = decoders.known, decoders.find_sane, len(data)
    sample_key = sample["__key__"]
    while at < size:
        header = plain_header(data, at)
        if header is None:
            return False
        name, length, is_pax = header
        begin, end = at + BLOCK, at + BLOCK + length
        at = (end + BLOCK - 1) & -BLOCK
        if is_pax and at < size and are_idle(data[begin:end]):
            continue
        key, _, extension = name.partition(".")
        if sample_key is None:
            sample_key = sample["__key__"] = key
        decode = known.get(extension) or find(extension)
        if is_pax or at > size or key != sample_key or not (key and decode) or extension in sample:
            return False
        try:
            sample[extension] = decode(data[begin:end])
        except Exception:  # noqa: BLE001 - read again, which says what is wrong
            return False
    return True


def read_alone(
    place: Place, decoders: Decoders, subflavors: dict[str, Any]
) -> Sample | SampleError:
    """Return a sample, whatever its headers are like, or say what is wrong with it."""
    source = place.sources[0]
    sample: Sample = {"__key__": "", "__subflavors__": subflavors, "__sources__": place.sources}
    try:
        _fill(sample, place, decoders)
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


def _fill(sample: Sample, place: Place, decoders: Decoders) -> None:
    file, begin, end, _ = place
    read = Window(file, end - begin if end - begin <= _WHOLE else _HEADERS).read
    for member in walk(read, begin, end):
        named = split_name(member.name) if member.regular else None
        if named is None:
            continue
        key, extension = named
        sample["__key__"] = sample["__key__"] or key
        if sample["__key__"] != key:
            problem = f"a part of sample {key!r} is among its own. {_AGAIN}"
            raise Fault(problem, member.offset)
        if extension in sample:
            problem = f"it has two parts {extension!r}. Write each part of a sample once."
            raise Fault(problem, member.offset)
        wanted = decoders.find(extension) is not skip_part
        data = read(member.data, member.size) if wanted else b""
        sample[extension] = _decode(decoders, extension, data, member)
    if not sample["__key__"]:
        raise Fault(f"no file with a key and an extension is here. {_AGAIN}", begin)


def _decode(decoders: Decoders, extension: str, data: bytes, member: Member) -> Any:
    decode = decoders.find(extension)
    try:
        return decode(data)
    except UnicodeDecodeError as error:
        problem = f"part {extension!r} is not UTF-8: {error.reason} in its byte {error.start}."
        raise Fault(f"{problem} {_DECODE}", member.data + error.start) from error
    except Exception as error:
        problem = f"part {extension!r} cannot be decoded: {type(error).__name__}: {error}."
        raise Fault(f"{problem} {_DECODE}", member.data) from error
