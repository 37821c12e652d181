"""Windows of 2,048 tokens of 2 bytes, in one file of Megatron; some loaders have other formats."""

from pathlib import Path

import numpy as np
import torch

from benchmarks import token_data
from benchmarks.case import OURS, Batch, Case

LENGTH = 2048


def write(number: int) -> bytes:
    """Return tokens that only this window has, with its number in the first four."""
    tokens = np.random.default_rng(number).integers(0, 50_000, LENGTH, dtype=np.uint16)
    tokens[:4] = [number % 1000, number // 1000 % 1000, number // 10**6, 7]
    return tokens.tobytes()


def decode(raw: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(raw, np.uint16).astype(np.int64))


def write_files(folder: Path) -> None:
    """Write the tokens in the format of each loader."""
    token_data.write(folder, (decode(write(n)) for n in range(CASE.num_samples)), LENGTH)


def check(batch: Batch) -> None:
    """Check type and shape, the tokens of each window, and that they are shuffled."""
    values = batch["values"]
    assert values.dtype == torch.int64, values.dtype
    assert values.shape == (CASE.batch_size, LENGTH), values.shape
    numbers = [one + 1000 * two + 10**6 * three for one, two, three in values[:, :3].tolist()]
    for row, number in zip(values, numbers, strict=True):
        assert torch.equal(row, decode(write(number)))
    assert numbers != sorted(numbers), "not shuffled"


CASE = Case(
    name="tokens",
    part="tokens",
    write=write,
    decode=decode,
    check=check,
    batch_size=32,
    num_samples=25_000,
    samples_per_shard=25_000,
    neighbours=1,
    write_files=write_files,
    loaders=(
        *OURS,
        "bare_tokens",
        "grain_",
        "litdata_tokens",
        "megatron_tokens",
        "streaming_",
        "torch_",
    ),
    must={"bare_tokens": 0.8},
)
