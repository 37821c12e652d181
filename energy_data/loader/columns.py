"""The `__sources__` of a batch on its way to the trainer: as columns, half the time of objects."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

from energy_data.sample import SampleSource

_SOURCE = partial(tuple.__new__, SampleSource)  # half the time of SampleSource(*fields)


def with_columns(batch: Any) -> Any:
    """Return the batch, or one that pickles faster and arrives as the same."""
    sources = batch.get("__sources__") if type(batch) is dict else None
    if type(sources) is not list or set(map(type, sources)) != {tuple}:
        return batch
    flat = list(chain.from_iterable(sources))
    if set(map(len, sources)) != {1} or set(map(type, flat)) != {SampleSource}:
        return batch
    return {**batch, "__sources__": _Columns(flat)}


class _Columns:
    """Becomes a list of tuples of one source each where it is unpickled."""

    def __init__(self, sources: list[SampleSource]) -> None:
        self.sources = sources

    def __reduce__(self) -> Any:
        return sources_of, tuple(zip(*self.sources, strict=True))


def sources_of(*columns: tuple[Any, ...]) -> list[tuple[SampleSource]]:
    """Return the sources whose fields are in these columns, each in a tuple of its own."""
    return list(zip(map(_SOURCE, zip(*columns, strict=True)), strict=True))
