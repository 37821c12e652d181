"""Samples, and the sources that they were read from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NamedTuple

from energy_data.errors import SampleError

Sample = dict[str, Any]
"""One sample without a declared type: part extension -> decoded value, plus the `__` fields below.

`__key__`: str, the sample's name in its shard. `__subflavors__`: dict given by the metadataset.
`__sources__`: tuple of `SampleSource`, one per dataset that contributed. `__leaf__`: int, the
place of its leaf in `loader.leaves`.
"""

LEAF = "__leaf__"


class SampleSource(NamedTuple):
    """Where a sample, or a file that was added to it, was read."""

    dataset: str  # path of the dataset as opened
    shard: str  # path of the shard, relative to the dataset
    # Of a sample: its number in the shard, from 0. Of a file: its key.
    index: int | str  # type: ignore[assignment]  # it hides tuple.index


make_source = partial(tuple.__new__, SampleSource)  # of a tuple of its fields; faster


def add_source(sample: Any, source: SampleSource) -> None:
    """Add a source to a sample: a dict, or an object with `__sources__`.

    Other samples are not changed.
    """
    if isinstance(sample, dict):
        sample["__sources__"] = (*(sample.get("__sources__") or ()), source)
    elif hasattr(sample, "__sources__"):
        sample.__sources__ = (*(sample.__sources__ or ()), source)


def get_source_info(sample: Any) -> list[SampleSource] | None:
    """Return the sources of a sample, or of all samples of a list; None if they are not known."""
    if isinstance(sample, list):
        return [source for one in sample for source in get_source_info(one) or ()] or None
    return list(sample_field(sample, "__sources__") or ()) or None


def describe_source(item: Any) -> str:
    """Return a description of the source of a sample, or of the first of a list, for messages."""
    sample = first_of(item)
    if sources := sample_field(sample, "__sources__"):
        source, key = sources[0], sample_field(sample, "__key__")
        return f"dataset {source.dataset}, shard {source.shard}, key {key}, sample {source.index}"
    return f"a {type(sample).__name__} without a source"


def place_of(sample: Any) -> dict[str, Any]:
    """Return where a sample is from, as the arguments of a `DataError`."""
    place = {"key": sample_field(sample, "__key__")}
    source = (sample_field(sample, "__sources__") or [None])[0]
    if source is not None:
        place |= {"dataset": source.dataset, "shard": source.shard, "index": source.index}
    return place


def first_of(item: Any) -> Any:
    """Return the first sample of a list, or of a list of lists, or the sample itself."""
    while isinstance(item, list) and item:
        item = item[0]
    return item


def sample_field(sample: Any, name: str) -> Any:
    """Return a field of a sample, a dict or an object; None if it has none."""
    return sample.get(name) if isinstance(sample, dict) else getattr(sample, name, None)


def set_field(name: str, samples: Iterable[Any], values: Iterable[Any]) -> None:
    """Set a field of each sample, a dict or an object, that is not an error."""
    for sample, value in zip(samples, values, strict=True):
        if isinstance(sample, dict):
            sample[name] = value
        elif not isinstance(sample, SampleError):
            setattr(sample, name, value)


def values_of(sample: Any) -> dict[str, Any]:
    """Return the values of a sample, without the `__` fields that all samples have."""
    if isinstance(sample, Mapping):
        named = dict(sample)
    elif is_dataclass(sample):
        named = {one.name: getattr(sample, one.name) for one in fields(sample)}
    else:
        named = {"value": sample}
    return {name: value for name, value in named.items() if not name.startswith("__")}
