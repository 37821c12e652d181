"""A blend of 100 datasets of text, one tar shard each."""

from dataclasses import replace

from benchmarks.cases import text

CASE = replace(
    text.CASE,
    name="blend",
    samples_per_shard=1_000,
    weights=tuple(1 + i % 10 for i in range(100)),
    must={2: 0.8},
    others={2: {"energon": 14.2, "webdataset_": 4.8, "litdata_": 2.9, "bare": 0.52}},
)
