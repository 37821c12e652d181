"""Documents of 1 KB in one dataset of tar shards."""

import random

from benchmarks.case import Batch, Case

WORDS = [f"w{number:x}" for number in range(4096)]


def write(number: int) -> bytes:
    """Return a document of 512 to 1,536 bytes; it begins with its key."""
    draw = random.Random(number)
    text = f"{number:09d} " + " ".join(draw.choices(WORDS, k=500))
    return text[: draw.randint(512, 1536)].encode()


def decode(raw: bytes) -> str:
    return raw.decode()


def check(batch: Batch) -> None:
    """Check types and size, that keys and documents belong together, and that they are shuffled."""
    keys, values = list(batch["keys"]), list(batch["values"])
    assert len(keys) == CASE.batch_size, len(keys)
    assert values == [write(int(key)).decode() for key in keys]
    assert keys != sorted(keys), "not shuffled"


CASE = Case(
    name="text",
    part="txt",
    write=write,
    decode=decode,
    check=check,
    batch_size=256,
    num_samples=100_000,
    samples_per_shard=5_000,
    must={"energon": 28.0, "energy_data_typed": 1.4},
)
