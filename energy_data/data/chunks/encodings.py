"""The encodings of columns of MDS: bytes -> value, by their published layout.

See `streaming/base/format/mds/encodings.py` of MosaicML Streaming, which says in the index what the
encoding of each column is, such as `str`, `int`, `jpeg`, `ndarray:int32:2048`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from energy_data.data.decode.images import raw_image_decoder
from energy_data.data.decode.parts import Decoders, Decoding, decode_json, decode_text

if TYPE_CHECKING:
    import torch

Decode = Callable[[memoryview], Any]

_NUMBERS = {
    "int": "q",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_VALUES: dict[str, Decode] = {
    "bytes": bytes,
    "str": decode_text,
    "json": decode_json,
    "str_int": lambda data: int(decode_text(data)),
    "str_float": lambda data: float(decode_text(data)),
    "str_decimal": lambda data: Decimal(decode_text(data)),
}
_PICTURES = ("jpeg", "png", "pil")
_LISTS = {
    **{f"list[{name}]": (name, 4) for name in _PICTURES},  # and bytes before their number
    **dict.fromkeys(("jpeg_array", "jpegarray"), ("jpeg", 0)),
}


def decoder_of(column: str, encoding: str, decoding: Decoding) -> tuple[Decode, int | None]:
    """Return what decodes a column, and the bytes of each of its values; None: any number.

    An override of the column gets its bytes. Raises ValueError, which says why, for an encoding
    that is unknown or runs code, MissingExtraError for pictures without Pillow.
    """
    decode, size = _decoder_of(column, encoding, decoding)
    return Decoders(decoding).find(column) if column in decoding.overrides else decode, size


def _decoder_of(column: str, encoding: str, decoding: Decoding) -> tuple[Decode, int | None]:
    name, _, settings = encoding.partition(":")
    if name == "pkl":
        raise ValueError("it is a pickle, which would run code from data")
    if name == "ndarray":
        return _array_decoder(settings)
    if not settings:
        if name in _NUMBERS:
            numbers = struct.Struct(f"<{_NUMBERS[name]}")
            return lambda data: numbers.unpack(data)[0], numbers.size
        if name in _VALUES:
            return _VALUES[name], None
        if name in _PICTURES:
            return picture_decoder(column, name, decoding), None
        if name in _LISTS:
            picture, at = _LISTS[name]
            return partial(decode_list, picture_decoder(column, picture, decoding), at), None
    raise ValueError("there is no such encoding")


def picture_decoder(column: str, name: str, decoding: Decoding) -> Decode:
    """Return what decodes the pictures of a column; name: their extension, or `pil`: raw pixels."""
    if name != "pil":
        return Decoders(decoding).find(f"{column}.{name}")
    return bytes if decoding.mode == "bytes" else raw_image_decoder(decoding.images)


def decode_list(decode: Decode, at: int, data: memoryview) -> list[Any]:
    """Return values that come after their number and their sizes, uint32, which begin at `at`."""
    (count,) = struct.unpack_from("<I", data, at)
    first = at + 4 + 4 * count
    if first > len(data):
        raise ValueError(f"it has {len(data)} bytes, but the sizes of its {count} values {first}")
    ends = (first + np.cumsum(np.frombuffer(data, "<u4", count, at + 4), dtype=np.int64)).tolist()
    if ([first, *ends])[-1] != len(data):
        raise ValueError(f"it has {len(data)} bytes, but its {count} values end at {ends[-1:]}")
    return [decode(data[begin:end]) for begin, end in zip([first, *ends], ends, strict=False)]


def _array_decoder(settings: str) -> tuple[Decode, int | None]:
    """Return what decodes arrays; settings: what all of them have, `dtype` or `dtype:2,3`."""
    dtype, _, axes = settings.partition(":")
    if dtype and dtype not in _DTYPES.values():
        raise ValueError(f"it has no known dtype {dtype!r}")
    shape = tuple(int(axis) for axis in axes.split(",")) if axes else None
    if shape is None:
        return partial(_array, dtype or None, None), None
    if min(shape) < 1:
        raise ValueError(f"it has an impossible shape {axes!r}")
    return partial(_array, dtype, shape), math.prod(shape) * np.dtype(dtype).itemsize


def _array(dtype: str | None, shape: tuple[int, ...] | None, data: memoryview) -> torch.Tensor:
    """Return the tensor of an array, which begins with what not all arrays have in common."""
    at = 0
    if dtype is None:
        dtype, at = _DTYPES.get(data[0], "?"), 1
        if dtype == "?":
            raise ValueError(f"its dtype has the number {data[0]}, which stands for none")
    if shape is None:
        num_axes, size = data[at] >> 2, 1 << data[at] % 4  # bytes of the length of each axis
        axes = np.frombuffer(data, f"<u{size}", num_axes, at + 1)
        shape, at = tuple(axes.tolist()), at + 1 + num_axes * size
    kind = np.dtype(dtype).newbyteorder("<")
    if math.prod(shape) * kind.itemsize != len(data) - at:
        problem = f"{dtype} of shape {list(shape)} has {math.prod(shape) * kind.itemsize} bytes"
        raise ValueError(f"{problem}, found {len(data) - at}")
    return tensor_of(np.frombuffer(data, kind, offset=at).reshape(shape))


def tensor_of(values: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor over a copy of an array.

    Unsigned integers other than uint8 become int64, as torch has few operations on them. ValueError
    for one that int64 cannot hold.
    """
    import torch

    if values.dtype.kind != "u" or values.itemsize == 1:
        return torch.from_numpy(values.copy())
    if values.itemsize == 8 and values.size and values.max() >= 1 << 63:
        raise ValueError(f"it has the number {values.max()}, which int64 cannot hold")
    return torch.from_numpy(values.astype(np.int64))
