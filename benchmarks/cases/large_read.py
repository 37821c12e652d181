"""Batches of 64 MiB that the user's own `batch()` stacks, of raw rows that are read from tars."""

from dataclasses import replace

import numpy as np
import torch

from benchmarks.cases import large_stack
from benchmarks.cases.large_stack import BYTES, ROWS


def write(number: int) -> bytes:
    return bytes([number % ROWS]) * BYTES


def decode(raw: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(raw, np.uint8))


CASE = replace(
    large_stack.CASE, name="large_read", write=write, decode=decode,
    num_samples=1_024, samples_per_shard=64,
)  # fmt: skip
