"""Bytes of a sample's part -> value, by the part's extension, as users of webdataset expect it.

    txt text transcript           str, strictly UTF-8
    json jsn                      object
    cls cls2 index inx id         int
    npy                           writable array; npz: dict of arrays; objects are refused
    pth pt                        torch.load(weights_only=True), on the CPU
    jpg jpeg png webp bmp gif     uint8 tensor [3, H, W], RGB, through Pillow (extra `images`),
      tif tiff ppm pgm pbm pnm ...  or in another mode of `images`; masks and depth maps want an
                                    override of their own
    anything else                 bytes, also pickles: no code from data is run

The last component counts (`seg.png` is a png), in upper or lower case; `.gz` is unpacked first.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import chain
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from attrs import asdict, define, evolve, field, frozen
from numpy.lib import format as npy_format

from energy_data.data.decode.av import MEDIA_EXTENSIONS, AVMode, media_decoder
from energy_data.data.decode.images import EXTENSIONS, ImageMode, check_image_mode, image_decoder
from energy_data.data.decode.media import extension_of
from energy_data.data.decode.raw_tensor import RawTensor
from energy_data.data.tar.header import split_name
from energy_data.errors import SpecError

Buffer = bytes | memoryview
PartDecoder = Callable[[Buffer], Any]
"""Decodes the parts with one extension."""
Decoder = Callable[[bytes], Any]
"""What users override an extension with. Whatever it raises makes a bad sample."""
Overrides = Mapping[str, Decoder | Literal["bytes"]]
"""Extension of a part (`png`, or more exactly `seg.png`) -> its decoder; takes precedence."""

PartFilter = Callable[[str], bool]
"""Whether a sample needs the part with this extension."""

LARGEST_UNPACKED = 1 << 30  # bytes a .gz or an .npz may grow to
_scan_json: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # not in typeshed
_MOST_LEVELS = 200  # of JSON: a worker cannot pickle a batch with much deeper values
_MOST_EXTENSIONS = 10_000  # remembered: extensions are data too


@frozen
class Decoding:
    """How the parts of a dataset become values."""

    mode: Literal["auto", "bytes"] = "auto"  # "bytes": nothing is decoded
    overrides: Overrides = field(factory=dict)
    images: ImageMode = "torchrgb8"
    part_filter: PartFilter | None = None  # None: all parts
    av_decode: AVMode | None = None  # None: audio and video stay bytes
    video_decode_audio: bool = False
    guess_content: bool = False

    def decoder(self, extension: str) -> PartDecoder:
        """Return the decoder of parts with this full extension; cache it, as a lookup is slow.

        A memoryview of a bytearray becomes the decoder's own; it copies other memory. Raises
        MissingExtraError for an image if Pillow is not installed.
        """
        if self.part_filter is not None and not self.part_filter(extension):
            return skip_part
        last = extension.rpartition(".")[2].lower()
        for name in (extension, last):
            if name in self.overrides:
                return _overriding(self.overrides[name])
        if self.mode == "bytes":
            return bytes
        if last == "gz":  # the filter has seen the full extension
            by_name = _unpacking(evolve(self, part_filter=None).decoder(extension[:-3]))
        else:
            by_name = self._by_name(last)
        return self._guessing(by_name) if self.guess_content else by_name

    def _by_name(self, last: str) -> PartDecoder:
        if last in MEDIA_EXTENSIONS and self.av_decode is not None:
            return media_decoder(self.av_decode, with_audio=self.video_decode_audio)
        if last in EXTENSIONS:
            return image_decoder(self.images)
        return _DECODERS.get(last, bytes)

    def _guessing(self, by_name: PartDecoder) -> PartDecoder:
        def decode(data: Buffer) -> Any:
            found = extension_of(data)
            is_media = found in EXTENSIONS or found in MEDIA_EXTENSIONS
            return self._by_name(found)(data) if is_media else by_name(data)

        return decode


class Decoders:
    """The decoders of one dataset by extension, each looked up once."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self.known: dict[str, PartDecoder] = {}  # those of `find_sane`; the C part reads it

    def find(self, extension: str) -> PartDecoder:
        """Return the decoder of an extension. MissingExtraError if it needs an extra."""
        return self.find_sane(extension) or self._decoding.decoder(extension)

    def find_sane(self, extension: str) -> PartDecoder | None:
        """Return the decoder as `find`; None for an extension that needs the strict reader.

        Those are empty, contain a slash, or look like a field of ours, such as `__key__`.
        """
        found = self.known.get(extension)
        if found is None and extension and "/" not in extension and extension[:2] != "__":
            if len(self.known) > _MOST_EXTENSIONS:
                self.known.clear()
            found = self.known[extension] = self._decoding.decoder(extension)
        return found


def check_decoders(decoders: Mapping[str, Any]) -> Overrides:
    """Return overrides as they are. SpecError for what cannot be one."""
    if not isinstance(decoders, Mapping):
        raise SpecError(f"decoders: must be a dict by extension, got {decoders!r}.")
    for extension, override in decoders.items():
        if override is RawTensor or not (override == "bytes" or callable(override)):
            raise SpecError(
                f"decoders: {extension!r} must be a function of a part's bytes, 'bytes', or a "
                f"RawTensor, got {override!r}."
            )
        if not isinstance(extension, str) or extension.startswith("."):
            raise SpecError(f"decoders: extensions have no dot in front, got {extension!r}.")
    return decoders


class Unwanted:
    """Stands in a sample for a part that its part filter rejects."""


UNWANTED = Unwanted()


def skip_part(data: Buffer) -> Unwanted:
    """Decode nothing: parts that this decodes need not be read."""
    return UNWANTED


def decode_text(data: Buffer) -> str:
    """Return strictly decoded UTF-8."""
    return str(data, "utf-8")


def decode_json(data: Buffer) -> Any:
    """Return the object; a byte order mark is ignored.

    Raises ValueError if it is not JSON, or nested more than 200 levels deep.
    """
    text = str(data, "utf-8")
    try:  # what `json.loads` does, without its two regular expressions
        value, end = _scan_json(text, 0)
    except StopIteration:
        end = -1
    if end != len(text):
        value = json.loads(text.removeprefix("\ufeff"))
    brackets = text.count("[") + text.count("{")
    if brackets > _MOST_LEVELS and _is_too_deep(value):
        raise ValueError(f"it is nested more than {_MOST_LEVELS} levels deep")
    return value


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_LEVELS):
        inner = chain.from_iterable(one.values() if type(one) is dict else one for one in level)
        level = [one for one in inner if type(one) is list or type(one) is dict]
    return bool(level)


def decode_npy(data: Buffer) -> npt.NDArray[Any]:
    """Return a writable array: over a copy of `data`, or over the bytearray it is a view of."""
    own = data.obj if isinstance(data, memoryview) else None
    values = own if isinstance(own, bytearray) else bytearray(data)
    begin = _npy_payload(values)
    dtype, shape, fortran = _npy_header(bytes(values[:begin]))
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize > len(values) - begin:
        raise ValueError(
            f"the npy header declares {dtype} {shape}, {count * dtype.itemsize} bytes, "
            f"but {len(values) - begin} follow"
        )
    flat = np.frombuffer(values, dtype, count, begin)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def _npy_payload(data: bytearray) -> int:
    """Return where the values begin."""
    if data[:6] != npy_format.MAGIC_PREFIX or len(data) < 12:
        raise ValueError("no npy file: its first bytes are others")
    digits = 2 if data[6] == 1 else 4
    begin = 8 + digits + int.from_bytes(data[8 : 8 + digits], "little")
    if begin > len(data):
        raise ValueError(f"the npy header has {begin} bytes, the file {len(data)}")
    return begin


@lru_cache(maxsize=256)  # a dataset has few shapes, or too many to remember
def _npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Return dtype, shape and whether in Fortran order. Numpy needs 20 us for it."""
    stream = io.BytesIO(header)
    read = npy_format.read_array_header_1_0
    if npy_format.read_magic(stream) != (1, 0):
        read = npy_format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError(f"the npy file holds Python objects ({dtype}), which is refused")
    return dtype, shape, fortran


def decode_npz(data: Buffer) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays by name."""
    stream = io.BytesIO(data)
    with zipfile.ZipFile(stream) as archive:
        _limit(sum(part.file_size for part in archive.infolist()))
    with np.load(stream, allow_pickle=False) as arrays:
        return dict(arrays)


def decode_torch(data: Buffer) -> Any:
    """Return what `torch.save` wrote, as far as it is plain data and tensors."""
    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


def _unpacking(decode: PartDecoder) -> PartDecoder:
    return lambda data: decode(_unpack(data))


def _unpack(data: Buffer) -> bytes:
    """Return the contents of a gzip file, of all its members."""
    parts: list[bytes] = []
    rest, left = bytes(data), LARGEST_UNPACKED
    while rest or not parts:
        unpacker = zlib.decompressobj(wbits=31)
        parts.append(unpacker.decompress(rest, left))
        left -= len(parts[-1])
        if not unpacker.eof:
            _limit(LARGEST_UNPACKED + bool(unpacker.unconsumed_tail))
            raise ValueError("the gzip data end too early")
        rest = unpacker.unused_data.lstrip(b"\0")
        if rest and left == 0:
            _limit(LARGEST_UNPACKED + 1)
    return b"".join(parts)


def _limit(size: int) -> None:
    if size > LARGEST_UNPACKED:
        raise ValueError(f"it unpacks to more than {LARGEST_UNPACKED} bytes")


def _overriding(override: Decoder | Literal["bytes"]) -> PartDecoder:
    if override == "bytes":
        return bytes
    if type(override) is RawTensor:
        return override
    return lambda data: override(bytes(data))


_DECODERS: dict[str, PartDecoder] = {
    **dict.fromkeys(("txt", "text", "transcript"), decode_text),
    **dict.fromkeys(("json", "jsn"), decode_json),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("pth", "pt"), decode_torch),
    "npy": decode_npy,
    "npz": decode_npz,
}


@define(kw_only=True, slots=False, eq=False)
class SampleDecoder:
    """Decodes parts by their extension.

    Text, JSON, numbers, numpy and torch files are decoded as this module lists.
    Unlike Energon's, it unpickles nothing: parts that are pickles stay bytes.

    Args:
        image_decode: What images become, by default float32 tensors [3, H, W] in [0, 1].
        av_decode: What audio and video become: "AVDecoder", which decodes on request; "torch",
            completely decoded `AVData`; "pyav", an open container of PyAV.
        video_decode_audio: Decode the sound of videos too, where av_decode is "torch".
        guess_content: Recognise images, audio and video by their first bytes, not by extension.

    Raises SpecError for an unknown mode.
    """

    image_decode: ImageMode = "torchrgb"
    av_decode: AVMode = "AVDecoder"
    video_decode_audio: bool = False
    guess_content: bool = False

    def __attrs_post_init__(self) -> None:
        check_image_mode(self.image_decode)
        if self.av_decode not in get_args(AVMode):
            known = ", ".join(get_args(AVMode))
            raise SpecError(f"av_decode: there is no mode {self.av_decode!r}, only: {known}.")
        self._decoding = self.decoding()

    def decoding(self, part_filter: PartFilter | None = None) -> Decoding:
        """Return the options for a source; parts that the filter rejects become `UNWANTED`."""
        return Decoding(
            images=self.image_decode,
            part_filter=part_filter,
            av_decode=self.av_decode,
            video_decode_audio=self.video_decode_audio,
            guess_content=self.guess_content,
        )

    def decode(self, fname: str, raw: bytes) -> Any:
        """Decode the bytes of a file by the extension of its name."""
        named = split_name(fname)
        return self._decoding.decoder(named[1] if named else "")(raw)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return a sample with the parts that are bytes decoded; `__` fields stay as they are."""
        return {
            name: self._decoding.decoder(name)(value)
            if isinstance(value, bytes) and not name.startswith("__")
            else value
            for name, value in sample.items()
        }

    def config(self) -> dict[str, Any]:
        """Return the arguments it was made with."""
        return asdict(self)
