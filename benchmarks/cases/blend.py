"""A blend of 100 datasets of text, one tar shard each."""

from dataclasses import replace

from benchmarks.cases import text

CASE = replace(
    text.CASE,
    name="blend",
    samples_per_shard=1_000,
    weights=tuple(1 + i % 10 for i in range(100)),
)
