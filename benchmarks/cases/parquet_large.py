"""The pages of `parquet` in files of one row group each, as pandas writes them."""

from dataclasses import replace
from pathlib import Path

from benchmarks.cases import parquet


def write_files(folder: Path) -> None:
    """Write the pages in groups of as many rows as a file has."""
    parquet.write_tables(folder, CASE, CASE.samples_per_shard)


CASE = replace(
    parquet.CASE,
    name="parquet_large",
    samples_per_shard=40_000,
    write_files=write_files,
    must={},
)
