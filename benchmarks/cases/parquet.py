"""Pages of 3 KB with their facts in one dataset of Parquet files: row groups of 1,000, zstd."""

import random
from pathlib import Path

from benchmarks.case import OURS, Batch, Case

WORDS = [f"w{number:x}" for number in range(4096)]
ROWS_PER_GROUP = 1_000


def write(number: int) -> bytes:
    """Return a page of 2 to 4 KB; it begins with its number."""
    draw = random.Random(number)
    text = f"{number:09d} " + " ".join(draw.choices(WORDS, k=1000))
    return text[: draw.randint(2048, 4096)].encode()


def write_files(folder: Path) -> None:
    """Write the pages as files of several row groups."""
    write_tables(folder, CASE, ROWS_PER_GROUP)


def write_tables(folder: Path, case: Case, rows_per_group: int) -> None:
    """Write the pages as files with columns as those of web corpora."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for first in range(0, case.num_samples, case.samples_per_shard):
        numbers = range(first, first + case.samples_per_shard)
        texts = [decode(write(number)) for number in numbers]
        columns = {
            case.part: texts,
            "id": [f"<urn:uuid:{number:032x}>" for number in numbers],
            "url": [f"https://example.org/{number % 977}/{number}" for number in numbers],
            "language_score": [0.5 + number % 1000 / 2000 for number in numbers],
            "token_count": [len(text) // 4 for text in texts],
        }
        path = folder / f"{first // case.samples_per_shard:03d}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=rows_per_group, compression="zstd")


def decode(raw: bytes) -> str:
    return raw.decode()


def check(batch: Batch) -> None:
    """Check types, size and contents, and that pages are shuffled, unless they are in order."""
    values = list(batch["values"])
    assert len(values) == CASE.batch_size, len(values)
    assert values == [write(int(value[:9])).decode() for value in values]
    assert batch.get("in_order") or values != sorted(values), "not shuffled"


CASE = Case(
    name="parquet",
    part="text",
    write=write,
    decode=decode,
    check=check,
    batch_size=32,
    num_samples=320_000,  # more than the groups that are kept in memory
    warm_up=80_000,  # after which memory does not grow
    samples_per_shard=10_000,
    write_files=write_files,
    loaders=(*OURS, "datasets_", "grain_", "pyarrow_", "torch_"),
    must={"pyarrow_": 0.7},
)
