"""Images: bytes -> tensor, array or Pillow image, through Pillow (extra `images`)."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any, BinaryIO, Literal, get_args

import numpy as np

from energy_data.errors import MissingExtraError, SpecError

ImageMode = Literal[
    "l8",
    "rgb8",
    "rgba8",
    "l",
    "rgb",
    "rgba",
    "torchl8",
    "torchrgb8",
    "torchrgba8",
    "torchl",
    "torchrgb",
    "torch",
    "torchrgba",
    "pill",
    "pil",
    "pilrgb",
    "pilrgba",
]
"""What an image becomes, in Energon's (and webdataset's) words.

Without prefix a numpy array [H, W, channels], `torch` a tensor [channels, H, W], `pil` a Pillow
image. With a final `8` uint8 in [0, 255], else float32 in [0, 1]. `l` is grey without an axis for
channels, `rgb` three channels, `rgba` four. `torch` is `torchrgb`, `pil` is `pilrgb`.
"""

EXTENSIONS = frozenset(
    (
        *("jpg", "jpeg", "jpe", "jfif", "png", "apng", "webp", "bmp", "dib", "gif", "tif", "tiff"),
        *("ppm", "pgm", "pbm", "pnm", "jp2", "j2k", "tga", "ico", "pcx"),
    )
)
# Never all that Pillow knows: reading an EPS starts Ghostscript.
_FORMATS = (
    *("JPEG", "PNG", "WEBP", "BMP", "DIB", "GIF", "TIFF", "PPM", "JPEG2000", "TGA", "ICO", "PCX"),
)

# Of a pixel, by the mode of an image of Pillow.
_BITS = {
    "1": 1,
    "L": 8,
    "P": 8,
    "LA": 16,
    "PA": 16,
    "La": 16,
    "I;16": 16,
    "RGB": 24,
    "YCbCr": 24,
    "LAB": 24,
    "HSV": 24,
    "RGBA": 32,
    "RGBX": 32,
    "RGBa": 32,
    "CMYK": 32,
    "I": 32,
    "F": 32,
}


def check_image_mode(mode: str) -> None:
    """Raise SpecError if there is no such mode."""
    if mode not in get_args(ImageMode):
        known = ", ".join(get_args(ImageMode))
        raise SpecError(f"image_decode: there is no mode {mode!r}, only: {known}.")


def open_image(stream: BinaryIO) -> Any:
    """Return an open image of Pillow. MissingExtraError if that is not installed."""
    return _pillow().Image.open(stream, formats=_FORMATS)


def image_decoder(mode: str) -> Callable[[bytes | memoryview], Any]:
    """Return the decoder of images in a mode. MissingExtraError if Pillow is not installed."""
    pillow, convert = _pillow(), _converter(mode)

    def decode(data: bytes | memoryview) -> Any:
        try:
            with pillow.Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                return convert(image)
        except pillow.UnidentifiedImageError as error:  # whose message is about an object of ours
            raise ValueError(f"it is none of {', '.join(_FORMATS)}") from error

    return decode


def raw_image_decoder(mode: str) -> Callable[[bytes | memoryview], Any]:
    """Return the decoder of pixels that MosaicML Streaming and litdata store of an image of Pillow.

    These are its width, its height and the length of the name of its mode, uint32 each; that name;
    and the pixels. MissingExtraError if Pillow is not installed.
    """
    pillow, convert = _pillow(), _converter(mode)

    def decode(data: bytes | memoryview) -> Any:
        width, height, length = struct.unpack_from("<III", data)
        name = str(data[12 : 12 + length], "ascii")
        bits = _BITS.get(name)
        pixels = data[12 + length :]
        if bits is None or height * ((width * bits + 7) // 8) != len(pixels):  # before it allocates
            problem = f"its {len(pixels)} bytes are no {width} x {height} pixels of mode {name!r}"
            raise ValueError(problem)
        return convert(pillow.Image.frombytes(name, (width, height), bytes(pixels)))

    return decode


def _converter(mode: str) -> Callable[[Any], Any]:
    """Return what converts an image of Pillow."""
    kind = next((one for one in ("torch", "pil") if mode.startswith(one)), "numpy")
    channels = mode.removeprefix(kind).removesuffix("8").upper() or "RGB"
    is_float = kind != "pil" and not mode.endswith("8")

    def convert(image: Any) -> Any:
        converted = image.convert(channels)
        if kind == "pil":
            return converted
        pixels = np.array(converted)
        if kind == "torch":
            import torch

            if pixels.ndim == 3:  # by numpy: torch would start its threads for each small image
                pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
            tensor = torch.from_numpy(pixels)
            return tensor.float().div_(255) if is_float else tensor
        return pixels.astype(np.float32) / np.float32(255) if is_float else pixels

    return convert


def _pillow() -> Any:
    try:
        import PIL.Image  # noqa: PLC0415 - optional, and needed for images only
    except ImportError as error:
        raise MissingExtraError("decoding images", "images") from error
    return PIL
