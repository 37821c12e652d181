"""Pictures as JPEG of 512 x 448 pixels: decoded, resized to 3 x 384 x 384, 64 to a batch."""

import io

import numpy as np
import torch
from PIL import Image

from benchmarks.case import TAR_LOADERS, Batch, Case

SIZE = 384


def write(number: int) -> bytes:
    """Return a smooth picture, in whose corners are its number in shades."""
    small = np.random.default_rng(number).integers(0, 256, (14, 16, 3), np.uint8)
    pixels = np.asarray(Image.fromarray(small).resize((512, 448), Image.Resampling.BICUBIC)).copy()
    for bit in range(16):
        pixels[:48, 32 * bit : 32 * bit + 32] = 255 * (number >> bit & 1)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def decode(raw: bytes) -> torch.Tensor:
    """Return the picture as uint8 [3, 384, 384]."""
    image = Image.open(io.BytesIO(raw)).convert("RGB")
    resized = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    return torch.from_numpy(resized.transpose(2, 0, 1).copy())


def check(batch: Batch) -> None:
    """Check type and shape, the number in each picture against its key, and that it is shuffled."""
    values = batch["values"]
    assert values.dtype == torch.uint8, values.dtype
    assert values.shape == (CASE.batch_size, 3, SIZE, SIZE), values.shape
    bits = values[:, 1, 20, 12::24] > 127
    numbers = [sum(1 << i for i, bit in enumerate(row) if bit) for row in bits.tolist()]
    assert numbers == list(map(int, batch["keys"])), numbers
    assert numbers != sorted(numbers), "not shuffled"


CASE = Case(
    name="picture",
    part="jpg",
    write=write,
    decode=decode,
    check=check,
    batch_size=64,
    num_samples=2_048,
    samples_per_shard=128,
    step_ms=400,
    decode_by_user=True,
    loaders=tuple(name for name in TAR_LOADERS if name != "energy_data_encoder"),
)
