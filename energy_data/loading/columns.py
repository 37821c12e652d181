"""Parts of a batch on their way to the trainer in a quicker form, from which they come back."""

from __future__ import annotations

from functools import partial
from itertools import chain
from pickle import PickleBuffer
from typing import Any

from energy_data.core.sample import SampleSource
from energy_data.data.tar.native import TAR

_SOURCE = partial(tuple.__new__, SampleSource)  # half the time of SampleSource(*fields)
_LARGE = 32768  # bytes from which on a `bytes` goes beside the pickle: it saves one of three copies


def with_columns(batch: Any) -> Any:
    """Return the batch, or one that pickles faster and arrives as the same."""
    if type(batch) is not dict:
        return batch
    quicker = {
        name: found
        for name, value in batch.items()
        if type(value) is list and value and (found := _quicker(value)) is not None
    }
    return {**batch, **quicker} if quicker else batch


def _quicker(values: list[Any]) -> _Columns | _Blobs | None:
    kinds = set(map(type, values))
    if are_blobs(kinds, values):
        return _Blobs(values)
    columns = source_columns(values) if kinds == {tuple} else None
    return None if columns is None else _Columns(columns)


def are_blobs(kinds: set[type], values: list[Any]) -> bool:
    """Return whether values, of some kinds, are `bytes` that go beside the pickle."""
    if kinds != {bytes} or min(map(len, values)) < _LARGE:
        return False
    return len(set(map(id, values))) == len(values)  # what is one object is so in the pickle only


def source_columns(values: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...] | None:
    """Return the fields of sources, a tuple for each; None unless each value is a tuple of one."""
    return _columns_of(values) if TAR is None else TAR.columns_of(values, SampleSource)


def _columns_of(values: list[tuple[Any, ...]]) -> tuple[tuple[Any, ...], ...] | None:
    if set(map(len, values)) != {1}:
        return None
    flat = list(chain.from_iterable(values))
    return tuple(zip(*flat, strict=True)) if set(map(type, flat)) == {SampleSource} else None


class _Blobs:
    """Becomes a list of `bytes` where it is unpickled."""

    def __init__(self, values: list[bytes]) -> None:
        self.values = values

    def __reduce__(self) -> Any:
        return blobs_of, tuple(map(PickleBuffer, self.values))


def blobs_of(*buffers: Any) -> list[bytes]:
    """Return the bytes in these buffers, as copies."""
    return list(map(bytes, buffers))


class _Columns:
    """Becomes a list of tuples of one source each where it is unpickled."""

    def __init__(self, columns: tuple[tuple[Any, ...], ...]) -> None:
        self.columns = columns

    def __reduce__(self) -> Any:
        return sources_of, self.columns


def sources_of(*columns: tuple[Any, ...]) -> list[tuple[SampleSource]]:
    """Return the sources whose fields are in these columns, each in a tuple of its own."""
    if TAR is not None:
        sources: list[tuple[SampleSource]] = TAR.sources_of(SampleSource, *columns)
        return sources
    return list(zip(map(_SOURCE, zip(*columns, strict=True)), strict=True))
