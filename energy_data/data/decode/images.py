"""Images: bytes -> tensor, array or Pillow image, through Pillow (extra `images`)."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np
import torch

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


class _Form(NamedTuple):
    kind: str  # "numpy", "torch" or "pil"
    is_float: bool
    channels: str  # as Pillow calls it


def _forms() -> dict[str, _Form]:
    forms = {}
    for channels in ("l", "rgb", "rgba"):
        for prefix, kind in (("", "numpy"), ("torch", "torch")):
            forms[f"{prefix}{channels}8"] = _Form(kind, is_float=False, channels=channels.upper())
            forms[f"{prefix}{channels}"] = _Form(kind, is_float=True, channels=channels.upper())
        forms[f"pil{channels}"] = _Form("pil", is_float=False, channels=channels.upper())
    return forms | {"torch": forms["torchrgb"], "pil": forms["pilrgb"]}


_MODES = _forms()


def check_image_mode(mode: str) -> None:
    """Raise SpecError if there is no such mode."""
    if mode not in _MODES:
        raise SpecError(f"image_decode: there is no mode {mode!r}, only: {', '.join(_MODES)}.")


def open_image(stream: BinaryIO) -> Any:
    """Return an open image of Pillow. Raises MissingExtraError if that is not installed."""
    try:
        from PIL import Image  # noqa: PLC0415 - optional, and needed for images only
    except ImportError as error:
        raise MissingExtraError("looking at images", "images") from error
    return Image.open(stream, formats=_FORMATS)


def image_decoder(mode: str) -> Callable[[bytes | memoryview], Any]:
    """Return what decodes images in a mode.

    Raises MissingExtraError if Pillow is not installed.
    """
    try:
        from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - optional, and needed for images only
    except ImportError as error:
        raise MissingExtraError("decoding images", "images") from error
    kind, is_float, channels = _MODES[mode]

    def decode(data: bytes | memoryview) -> Any:
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                converted = image.convert(channels)
        except UnidentifiedImageError as error:  # whose message is about an object of ours
            raise ValueError(f"it is none of {', '.join(_FORMATS)}") from error
        if kind == "pil":
            return converted
        pixels = np.array(converted)
        if kind == "torch":
            tensor = torch.from_numpy(pixels)
            if tensor.ndim == 3:
                tensor = tensor.permute(2, 0, 1).contiguous()
            return tensor.float().div_(255) if is_float else tensor
        return pixels.astype(np.float32) / np.float32(255) if is_float else pixels

    return decode
