"""What flows through a tree: samples, and where each came from."""

from __future__ import annotations

from typing import Any, NamedTuple

Sample = dict[str, Any]
"""One sample without a declared type: part extension -> decoded value, plus the `__` fields below.

`__key__`: str, the sample's name in its shard. `__subflavors__`: dict given by the metadataset.
`__sources__`: tuple of `SampleSource`, one per dataset that contributed.
"""


class SampleSource(NamedTuple):
    """Where a sample was read: enough to find it again by hand."""

    dataset: str  # path of the dataset as opened
    shard: str  # path of the shard, relative to the dataset
    index: int  # type: ignore[assignment]  # within the shard, from 0; hides tuple.index


def describe_source(sample: Any) -> str:
    """Return in words where a sample came from, for messages."""
    if isinstance(sample, dict) and sample.get("__sources__"):
        source = sample["__sources__"][0]
        return (
            f"dataset {source.dataset}, shard {source.shard}, key {sample.get('__key__')}, "
            f"sample {source.index}"
        )
    return f"a {type(sample).__name__} that does not say where it came from"
