"""Joins: samples of several datasets with the same key, as one.

source = open_join([JoinMember(images), JoinMember(texts, nonmatch="skip")], folder="m.yaml.cache")
source.read(np.arange(256))  # the parts of both, in one sample each
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from attrs import astuple, define

from energy_data.core.arrays import Int64s
from energy_data.core.lazy import cached_property
from energy_data.core.sample import Sample, place_of
from energy_data.data.join_table import JoinMember, JoinTable, Kept, open_table
from energy_data.data.source import OpenOptions, Source
from energy_data.errors import ExcludedError, SampleError, SkipSample, SpecError, StructureError

Joiner = Callable[..., Any]
"""Takes a sample per member, by position or by name, or None where there is no match; returns the
joined sample. The first member's sample is always there."""


def open_join(
    members: Sequence[JoinMember] | Mapping[str, JoinMember],
    *,
    joiner: Joiner | None = None,
    subset: tuple[int, int | None] | None = None,
    folder: str | None = None,
) -> JoinSource:
    """Return the samples of several datasets, joined by key, in the order of the first one.

    Args:
        members: The datasets. The first decides which samples there are: each of its keys is looked
            up in the others.
        joiner: Makes one sample of those of the members, which it gets by position, or by name for
            a mapping. A class with `from_joined` is asked for that. None: dicts. The parts of all
            members, those of later ones first; or, for a mapping, the samples under their names.
        subset: Samples [start, end) of the join; end None means to its end.
        folder: Where the table of matching samples is stored; None: in the user's cache folder. See
            `energy_data.data.join_table.open_table`.

    Raises SpecError and StructureError like `open_table`; SpecError for a subset out of range.
    """
    names = tuple(members) if isinstance(members, Mapping) else None
    listed = list(members.values() if isinstance(members, Mapping) else members)
    if len(listed) < 2 or listed[0].nonmatch != "error":
        raise SpecError(
            "a join takes two datasets or more, and the first, whose keys are looked up in the "
            f"others, has no `nonmatch` of its own, found {len(listed)} datasets and nonmatch "
            f"{listed[0].nonmatch if listed else None!r}. Add one, or put another first."
        )
    table = open_table(listed, folder)
    chosen = OpenOptions(subset=subset).range_of(table.rows, "the join")
    return JoinSource(tuple(listed), names, joiner, table, chosen)


@define(eq=False, slots=False)
class JoinSource(Source):
    """Samples of several datasets, joined; made by `open_join`."""

    members: tuple[JoinMember, ...]
    names: tuple[str, ...] | None
    joiner: Joiner | None
    table: Kept
    chosen: tuple[int, int]  # the first row of the table, and the number of rows

    def __attrs_post_init__(self) -> None:
        self._join = _joined_by(self.joiner, self.names)
        self.bytes_read: int = 0

    def __len__(self) -> int:
        return self.chosen[1]

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return type(self), astuple(self, recurse=False)

    @property
    def fingerprint(self) -> str:
        """Return 16 hex digits that change if a member changes, or how members are matched."""
        digest = blake2b(digest_size=8)
        facts = [(member.source.fingerprint, member.nonmatch) for member in self.members]
        for fact in (self.chosen, *facts):
            digest.update(repr(fact).encode() + b"\n")
        return digest.hexdigest()

    @property
    def is_remote(self) -> bool:
        """Whether files of a member are in a cache of an object store."""
        return any(member.source.is_remote for member in self.members)

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return the joined samples of `indices`; one with a bad sample in it is a SampleError."""
        wanted = np.asarray(indices, np.int64)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"one of {wanted.tolist()} of {len(self)} samples")
        numbers = wanted + self.chosen[0]
        rows = self._table[numbers]
        before = self._bytes_of_members()  # members may be read by others too
        columns = [_column(one.source, rows[:, n]) for n, one in enumerate(self.members)]
        self.bytes_read += self._bytes_of_members() - before
        parts = zip(*columns, strict=True)
        return [self._joined(*one) for one in zip(parts, numbers.tolist(), strict=True)]

    @cached_property
    def _table(self) -> JoinTable:
        table = JoinTable(self.table.path, len(self.members))
        if len(table) != self.table.rows:
            problem = f"it has {len(table)} rows where {self.table.rows} were expected"
            raise StructureError(f"{self.table.path}: {problem}. Start the run again.")
        return table

    def _bytes_of_members(self) -> int:
        return sum(member.source.bytes_read or 0 for member in self.members)

    def _joined(
        self, parts: tuple[Sample | SampleError | None, ...], number: int
    ) -> Sample | SampleError:
        for part in parts:
            if isinstance(part, SampleError):
                return part
        try:
            return _numbered(self._join(*parts), number)
        except SkipSample:
            return ExcludedError("left out by the joiner.", **place_of(parts[0]))
        except (MemoryError, RecursionError, ImportError, SpecError):
            raise
        except Exception as error:  # noqa: BLE001 - code of users: reported with the sample
            problem = f"the joiner failed with {type(error).__name__}: {error}."
            fault = SampleError(problem, **place_of(parts[0]))
            fault.__cause__ = error
            return fault


def _column(source: Source, rows: Int64s) -> list[Sample | SampleError | None]:
    """Return samples of one member, None for a row -1: it has no match."""
    there = np.flatnonzero(rows >= 0)
    samples: list[Sample | SampleError | None] = [None] * len(rows)
    found = source.read(rows[there]) if len(there) else []
    for place, sample in zip(there.tolist(), found, strict=True):
        samples[place] = sample
    return samples


def _joined_by(joiner: Joiner | None, names: tuple[str, ...] | None) -> Joiner:
    """Return what joins samples that come by position."""
    if joiner is None:
        return _merged if names is None else lambda *parts: _named(dict(zip(names, parts)))  # noqa: B905 - as many
    joined: Joiner = getattr(joiner, "from_joined", joiner)
    return joined if names is None else lambda *parts: joined(**dict(zip(names, parts)))  # noqa: B905 - as many


def _merged(*parts: Sample | None) -> Sample:
    """Return the parts of all samples in one; key and subflavors are those of the first."""
    there = _dicts(parts)
    joined = {name: value for part in there for name, value in part.items()}
    return type(there[0])(joined | _common(there))


def _named(parts: dict[str, Sample | None]) -> Sample:
    """Return the samples under their names; key and subflavors are those of the first."""
    there = _dicts(parts.values())
    return type(there[0])(_common(there) | parts)


def _dicts(parts: Iterable[Sample | None]) -> list[Sample]:
    there = [part for part in parts if part is not None]
    for part in there:
        if not isinstance(part, dict):
            raise SpecError(
                f"a join without a joiner is of samples without a type, found a "
                f"{type(part).__name__}. Name what makes one sample of them, as `joiner`."
            )
    return there


def _common(there: Sequence[Sample]) -> Sample:
    first = there[0]
    return {
        "__key__": first["__key__"],
        "__subflavors__": first["__subflavors__"],
        "__sources__": tuple(source for part in there for source in part["__sources__"]),
    }


def _numbered(sample: Sample, number: int) -> Sample:
    """Return a sample that knows its number in the join, where it has a place for that."""
    key = ("Webdataset", number)
    if isinstance(sample, dict):
        if "__restore_key__" in sample:
            sample["__restore_key__"] = key
    elif hasattr(sample, "__restore_key__"):
        sample.__restore_key__ = key
    return sample
