"""Parts that are nothing but the numbers of a tensor: latents, features, tokens, raw images."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import torch
from attrs import field, frozen

from energy_data.errors import SpecError

if TYPE_CHECKING:
    from energy_data.sources.decode import Buffer


def _dtype(given: torch.dtype | str) -> torch.dtype:
    found = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype) or found is torch.bool:
        raise SpecError(
            f"dtype: must be a torch.dtype or its name, and not bool, got {given!r}. Truths are "
            f"bytes: say uint8."
        )
    return found


def _shape(given: tuple[int, ...]) -> tuple[int, ...]:
    shape = tuple(given)
    if not all(type(length) is int and length > 0 for length in shape):
        raise SpecError(f"shape: must be of whole numbers > 0, got {given!r}.")
    return shape


@frozen
class RawTensor:
    """Decodes a part that is the numbers of a tensor: little-endian, in C order, with no header.

        get_train_dataset(path, decoders={"bin": RawTensor("uint8", (3, 96, 96))}, ...)

    Where the default task encoder makes the batches, and such a part is the first of its sample,
    it is read straight into its batch (in a worker: into shared memory), which is its only copy.
    """

    dtype: torch.dtype = field(converter=_dtype)
    shape: tuple[int, ...] = field(converter=_shape)

    @property
    def num_bytes(self) -> int:
        """What a part has."""
        return prod(self.shape) * self.dtype.itemsize

    def __call__(self, data: Buffer) -> torch.Tensor:
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
        return torch.frombuffer(values, dtype=self.dtype).reshape(self.shape)
