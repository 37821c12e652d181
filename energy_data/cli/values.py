"""The values of samples as text, and pictures for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.color import Color
from rich.pretty import pretty_repr
from rich.style import Style
from rich.text import Text

from energy_data.data.decode.av import AVDecoder
from energy_data.data.decode.media import extension_of

_MOST_TEXT = 400  # characters of a text
_MOST_BYTES = 24
_MOST_NUMBERS = 16
_MOST_ITEMS = 8  # of a list or mapping
_MOST_ROWS = 48  # pixels of a picture from top to bottom; a character has two


def describe(value: Any) -> str:
    """Return a value as text: its type and size, and as much of it as fits in a few lines.

    Control characters are escaped, so data cannot change the terminal.
    """
    if isinstance(value, str):
        more = "..." if len(value) > _MOST_TEXT else ""
        return f"str, {len(value):,} characters: {value[:_MOST_TEXT]!r}{more}"
    if isinstance(value, bytes):
        kind = f" ({found})" if (found := extension_of(value)) else ""
        more = "..." if len(value) > _MOST_BYTES else ""
        return f"bytes, {len(value):,}{kind}: {value[:_MOST_BYTES]!r}{more}"
    if isinstance(value, torch.Tensor | np.ndarray):
        return _numbers(value)
    if isinstance(value, AVDecoder) or _is_pillow(value):
        return _media(value)
    return pretty_repr(value, max_length=_MOST_ITEMS, max_string=_MOST_TEXT, max_depth=6)


def _media(value: Any) -> str:
    if _is_pillow(value):
        return f"image {value.mode}, {value.width} x {value.height}"
    try:
        return f"media: {value.get_metadata()!r}"
    except ValueError as error:
        return f"media that cannot be decoded: {error}"


def _numbers(value: torch.Tensor | npt.NDArray[Any]) -> str:
    kind = "tensor" if isinstance(value, torch.Tensor) else "array"
    dtype = str(value.dtype).removeprefix("torch.")
    first = value.reshape(-1)[:_MOST_NUMBERS].tolist()
    count = int(np.prod(value.shape, dtype=np.int64))
    more = ", ..." if count > len(first) else ""
    shown = ", ".join(f"{one:.4g}" if isinstance(one, float) else str(one) for one in first)
    return f"{kind} {dtype} {list(value.shape)}: {shown}{more}"


def picture(value: Any, width: int) -> Iterator[Text]:
    """Yield the lines of a picture for a terminal; none for what is no image.

    An image is a tensor [1, 3 or 4, H, W], an array [H, W] or [H, W, 3 or 4], or one of Pillow:
    uint8, or float in [0, 1]. width: columns of the terminal.
    """
    pixels = _pixels(value)
    if pixels is None:
        return
    height, across = pixels.shape[:2]
    step = max(height / _MOST_ROWS, across / width, 1)
    rows, columns = (
        np.arange(count) * size // count
        for size in (height, across)
        for count in [max(round(size / step), 1)]
    )
    small = pixels[rows][:, columns].tolist()
    for upper, lower in zip(small[::2], [*small[1::2], *small[-1:]], strict=False):
        line = Text()
        for above, below in zip(upper, lower, strict=True):
            style = Style(color=Color.from_rgb(*above), bgcolor=Color.from_rgb(*below))
            line.append("\N{UPPER HALF BLOCK}", style)
        yield line


def _pixels(value: Any) -> npt.NDArray[np.uint8] | None:
    """Return the pixels of an image, uint8 [H, W, 3]; None if it is none."""
    if _is_pillow(value):
        value = np.array(value.convert("RGB"))
    elif isinstance(value, torch.Tensor):
        if value.ndim != 3 or value.shape[0] not in (1, 3, 4):
            return None
        value = value.movedim(0, -1).numpy(force=True)
    if not isinstance(value, np.ndarray) or value.dtype not in (np.uint8, np.float32):
        return None
    if value.ndim == 2:
        value = value[:, :, None]
    if value.ndim != 3 or value.shape[2] not in (1, 3, 4) or min(value.shape) < 1:
        return None
    if value.dtype != np.uint8:
        value = (np.nan_to_num(value).clip(0, 1) * 255).round().astype(np.uint8)
    pixels: npt.NDArray[np.uint8] = value if value.shape[2] > 1 else value.repeat(3, 2)
    return pixels[:, :, :3]


def _is_pillow(value: Any) -> bool:
    """Return whether it is an image of Pillow, which need not be installed."""
    return type(value).__module__.partition(".")[0] == "PIL"
