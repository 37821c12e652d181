"""What flows through a tree: samples, and where each came from."""

from __future__ import annotations

from typing import Any, NamedTuple

Sample = dict[str, Any]
"""One sample without a declared type: part extension -> decoded value, plus the `__` fields below.

`__key__`: str, the sample's name in its shard. `__subflavors__`: dict given by the metadataset.
`__sources__`: tuple of `SampleSource`, one per dataset that contributed.
"""


class SampleSource(NamedTuple):
    """Where a sample, or a file that was added to it, was read: enough to find it by hand."""

    dataset: str  # path of the dataset as opened
    shard: str  # path of the shard, relative to the dataset
    index: int | str  # type: ignore[assignment]  # of a sample: within the shard, from 0; of a file: its key


def add_source(sample: Any, source: SampleSource) -> None:
    """Note in a sample, a dict or an object with `__sources__`, where more of it came from.

    Anything else is left as it is: it has no place for a note.
    """
    if isinstance(sample, dict):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), source)
    elif hasattr(sample, "__sources__"):
        sample.__sources__ = (*(sample.__sources__ or ()), source)


def get_source_info(sample: Any) -> list[SampleSource] | None:
    """Return where a sample, or all samples of a list, came from; None if nothing says so."""
    if isinstance(sample, list):
        return [source for one in sample for source in get_source_info(one) or ()] or None
    return list(_field(sample, "__sources__") or ()) or None


def describe_source(sample: Any) -> str:
    """Return in words where a sample came from, for messages."""
    if sources := _field(sample, "__sources__"):
        source = sources[0]
        return (
            f"dataset {source.dataset}, shard {source.shard}, key {_field(sample, '__key__')}, "
            f"sample {source.index}"
        )
    return f"a {type(sample).__name__} that does not say where it came from"


def _field(sample: Any, name: str) -> Any:
    return sample.get(name) if isinstance(sample, dict) else getattr(sample, name, None)
