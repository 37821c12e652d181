"""Parts that are the numbers of a tensor and nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING

from attrs import field, frozen

from energy_data.errors import SpecError

if TYPE_CHECKING:
    import torch

# Their numbers are not all there is to them, or not all bytes are numbers.
_NOT_RAW = ("bool", "qint8", "quint8", "qint32", "quint4x2", "quint2x4")


def _dtype(given: torch.dtype | str) -> torch.dtype:
    import torch

    found = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype) or str(found).removeprefix("torch.") in _NOT_RAW:
        raise SpecError(
            f"dtype: must be a torch.dtype or its name, and neither bool nor quantized, got "
            f"{given!r}. Use uint8 for bytes of any meaning."
        )
    return found


def _shape(given: Iterable[int]) -> tuple[int, ...]:
    try:
        shape = tuple(map(index, given))
    except TypeError:
        shape = (0,)
    if min(shape, default=1) < 1:
        raise SpecError(f"shape: must be a tuple of whole numbers > 0, got {given!r}.")
    return shape


@frozen
class RawTensor:
    """Decodes a part that is the numbers of a tensor: little-endian, in C order, with no header.

        get_train_dataset(path, decoders={"bin": RawTensor("uint8", (3, 96, 96))}, ...)

    If no code of yours sees single samples, such parts are read straight into their batch, which is
    their only copy; see docs/datasets.md.
    """

    dtype: torch.dtype = field(converter=_dtype)
    shape: tuple[int, ...] = field(converter=_shape)

    num_bytes: int = field(init=False, eq=False, repr=False)  # that a part has

    @num_bytes.default
    def _count(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __call__(self, data: bytes | memoryview) -> torch.Tensor:
        """Return a tensor over a copy of `data`, or over the bytearray it is a view of.

        ValueError if it has another number of bytes.
        """
        own = data.obj if isinstance(data, memoryview) else None
        values = own if isinstance(own, bytearray) else bytearray(data)
        if len(values) != self.num_bytes:
            raise ValueError(
                f"it has {len(values)} bytes, but {self.dtype} {list(self.shape)} has "
                f"{self.num_bytes}"
            )
        import torch

        return torch.frombuffer(values, dtype=self.dtype).reshape(self.shape)
