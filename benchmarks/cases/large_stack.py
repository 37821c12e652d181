"""Batches of 64 MiB that the user's own `batch()` makes by `torch.stack`, of rows in memory.

A sample is the number of a row: what is measured is making a batch and bringing it to the trainer.
"""

from functools import cache

import torch

from benchmarks.case import TAR_LOADERS, Batch, Case

ROWS, BYTES = 64, 1 << 20


@cache
def table() -> torch.Tensor:
    """Return the rows, made once in each process that decodes."""
    return torch.arange(ROWS, dtype=torch.uint8).repeat_interleave(BYTES).reshape(ROWS, BYTES)


def write(number: int) -> bytes:
    return b"%09d" % number


def decode(raw: bytes) -> torch.Tensor:
    return table()[int(raw) % ROWS]


def batch(values: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack(values)


def check(made: Batch) -> None:
    """Check type, shape and each row, and that they are shuffled."""
    values, numbers = made["values"], list(map(int, made["keys"]))
    assert values.dtype == torch.uint8, values.dtype
    assert values.shape == (CASE.batch_size, BYTES), values.shape
    for number, row in zip(numbers, values, strict=True):
        assert bool((row[:: BYTES // 4] == number % ROWS).all())
    assert numbers != sorted(numbers), "not shuffled"


CASE = Case(
    name="large_stack",
    part="row",
    write=write,
    decode=decode,
    check=check,
    batch=batch,
    batch_size=64,
    num_samples=6_400,
    samples_per_shard=400,
    step_ms=100,
    decode_by_user=True,
    loaders=tuple(name for name in TAR_LOADERS if name != "energy_data_encoder"),
    must={"torch_": 4.0},
)
