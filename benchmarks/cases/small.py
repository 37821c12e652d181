"""The documents of `text`, 4 to a batch: what a batch costs, whatever is in it."""

from dataclasses import replace

from benchmarks.cases import text


def check(batch: text.Batch) -> None:
    """Check that keys and documents belong together."""
    assert [value[:9] for value in batch["values"]] == list(batch["keys"])
    assert len(batch["keys"]) == CASE.batch_size


CASE = replace(text.CASE, name="small", batch_size=4, check=check, num_samples=20_000, step_ms=5)
