"""Bytes of a sample's part -> value, by the part's extension, as users of webdataset expect it.

    txt text transcript           str, strictly UTF-8
    json jsn                      object
    cls cls2 index inx id         int
    npy                           writable array; npz: dict of arrays; objects are refused
    pth pt                        torch.load(weights_only=True), on the CPU
    jpg jpeg png webp bmp gif     uint8 tensor [3, H, W], RGB, through Pillow (extra `images`),
      tif tiff ppm pgm pbm pnm ...  or in another mode of `images`; masks and depth maps want an
                                    override of their own
    anything else                 bytes, pickle among them: nothing here runs what data says

The last component decides (`seg.png` is a png), in any case; a `.gz` behind it is unpacked first.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib import format as npy_format

from energy_data.errors import SpecError
from energy_data.sources.images import EXTENSIONS, ImageMode, image_decoder
from energy_data.sources.raw_tensor import RawTensor

Buffer = bytes | memoryview
Decoder = Callable[[bytes], Any]
"""What users override an extension with. Whatever it raises makes a bad sample."""
Overrides = Mapping[str, Decoder | Literal["bytes"]]
"""Extension of a part (`png`, or more exactly `seg.png`) -> what it is decoded by; goes first."""

LARGEST_UNPACKED = 1 << 30  # bytes a .gz or an .npz may grow to
_scan_json: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_NPY_HEADERS = 256  # remembered; a dataset has few shapes, or too many to remember


@dataclass(frozen=True)
class Decoding:
    """How the parts of a dataset become values."""

    mode: Literal["auto", "bytes"] = "auto"  # "bytes": nothing is decoded
    overrides: Overrides = field(default_factory=dict)
    images: ImageMode = "torchrgb8"

    def decoder(self, extension: str) -> Callable[[Buffer], Any]:
        """Return what decodes parts with this full extension; look it up once per extension.

            A memoryview of a bytearray is handed over for good; other memory has to be copied.
        Raises MissingExtraError for an image if Pillow is not installed.
        """
        last = extension.rpartition(".")[2].lower()
        for name in (extension, last):
            if name in self.overrides:
                return _overriding(self.overrides[name])
        if self.mode == "bytes":
            return bytes
        if last == "gz":
            return _Unpacking(self.decoder(extension[:-3])) if "." in extension else _unpack
        if last in EXTENSIONS:
            return image_decoder(self.images)
        return _DECODERS.get(last, bytes)


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
    """Stands in a sample for a part that nobody wanted decoded."""


UNWANTED = Unwanted()


def skip_part(data: Buffer) -> Unwanted:
    """Decode nothing: parts that this decodes need not be read."""
    return UNWANTED


def decode_text(data: Buffer) -> str:
    """Return strictly decoded UTF-8."""
    return str(data, "utf-8")


def decode_json(data: Buffer) -> Any:
    """Return the object; a byte order mark is passed over."""
    text = str(data, "utf-8")
    try:
        value, end = _scan_json(
            text, 0
        )  # what `json.loads` does, without its two regular expressions
    except StopIteration:
        end = -1
    if end == len(text):
        return value
    return json.loads(text.removeprefix("\ufeff"))


def decode_npy(data: Buffer) -> npt.NDArray[Any]:
    """Return a writable array: over a copy of `data`, or over the bytearray it is a view of."""
    own = data.obj if isinstance(data, memoryview) else None
    values = own if isinstance(own, bytearray) else bytearray(data)
    begin = _npy_payload(values)
    dtype, shape, fortran = _npy_header(bytes(values[:begin]))
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize > len(values) - begin:
        raise ValueError(
            f"the npy header says {dtype} {shape}, {count * dtype.itemsize} bytes, "
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


_known_npy: dict[bytes, tuple[np.dtype[Any], tuple[int, ...], bool]] = {}


def _npy_header(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """Return dtype, shape and whether in Fortran order. Numpy needs 20 us for it, so it is kept."""
    known = _known_npy.get(header)
    if known is not None:
        return known
    stream = io.BytesIO(header)
    read = npy_format.read_array_header_1_0
    if npy_format.read_magic(stream) != (1, 0):
        read = npy_format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError(f"the npy file holds Python objects ({dtype}), which is refused")
    if len(_known_npy) >= _NPY_HEADERS:
        _known_npy.clear()
    _known_npy[header] = dtype, shape, fortran
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
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


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


@dataclass(frozen=True)
class _Unpacking:
    inner: Callable[[Buffer], Any]

    def __call__(self, data: Buffer) -> Any:
        return self.inner(_unpack(data))


def _overriding(override: Decoder | Literal["bytes"]) -> Callable[[Buffer], Any]:
    if override == "bytes":
        return bytes
    if type(override) is RawTensor:
        return override
    return lambda data: override(bytes(data))


_DECODERS: dict[str, Callable[[Buffer], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), decode_text),
    **dict.fromkeys(("json", "jsn"), decode_json),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    **dict.fromkeys(("pth", "pt"), decode_torch),
    "npy": decode_npy,
    "npz": decode_npz,
}
