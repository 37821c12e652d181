"""The rows of `large_stack`, of 0.5 to 1 MiB, padded by `torch.zeros`: batches of 64 MiB."""

from dataclasses import replace

import torch

from benchmarks.case import Batch
from benchmarks.cases import large_stack
from benchmarks.cases.large_stack import BYTES, ROWS, table


def decode(raw: bytes) -> torch.Tensor:
    number = int(raw) % ROWS
    return table()[number, : BYTES // 2 + number * (BYTES // 2 // ROWS)]


def batch(values: list[torch.Tensor]) -> torch.Tensor:
    """Return rows of one length."""
    padded = torch.zeros(len(values), BYTES, dtype=torch.uint8)
    for row, value in zip(padded, values, strict=True):
        row[: len(value)] = value
    return padded


def check(made: Batch) -> None:
    """Check type, shape, the begin and the end of each row."""
    values = made["values"]
    assert values.shape == (ROWS, BYTES), values.shape
    for key, row in zip(made["keys"], values, strict=True):
        begin, length = int(key) % ROWS, len(decode(key.encode()))
        assert (row[0], row[length - 1], row[length]) == (begin, begin, 0)


CASE = replace(large_stack.CASE, name="large_zeros", decode=decode, batch=batch, check=check)
