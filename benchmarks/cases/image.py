"""Raw images of 27 KB (uint8, 3 x 96 x 96) in one dataset of tar shards: nothing to decode."""

import numpy as np
import torch

from benchmarks.case import Batch, Case

SHAPE = (3, 96, 96)


def write(number: int) -> bytes:
    """Return noise that only this sample has, with its number in the first 8 bytes."""
    noise = np.random.default_rng(number).integers(0, 256, np.prod(SHAPE), dtype=np.uint8)
    noise[:8] = np.frombuffer(number.to_bytes(8, "little"), dtype=np.uint8)
    return noise.tobytes()


def decode(raw: bytes) -> torch.Tensor:
    """Return a view of the bytes, so that the batch is the only copy."""
    return torch.from_numpy(np.frombuffer(raw, dtype=np.uint8).reshape(SHAPE))


def check(batch: Batch) -> None:
    """Check type and shape, the bytes of each image, and that they are shuffled."""
    values = batch["values"]
    assert isinstance(values, torch.Tensor), type(values)
    assert values.dtype == torch.uint8, values.dtype
    assert values.shape == (CASE.batch_size, *SHAPE), values.shape
    rows = values.reshape(len(values), -1).numpy()
    numbers = [int.from_bytes(row[:8].tobytes(), "little") for row in rows]
    assert all(row.tobytes() == write(n) for row, n in zip(rows, numbers, strict=True))
    assert numbers != sorted(numbers), "not shuffled"


CASE = Case(
    name="image",
    part="bin",
    write=write,
    decode=decode,
    check=check,
    batch_size=32,
    num_samples=20_000,
    samples_per_shard=1_000,
    raw_tensor=("uint8", SHAPE),
)
