"""Every error this package raises on purpose.

    EnergyDataError
    ├── SpecError            the metadataset, or an argument, is impossible (also a ValueError)
    │   └── ReadOnlyError        an object store does not let us write
    ├── StateError           a saved state does not fit
    │   ├── StateMissingError    there is no state where one was expected
    │   ├── StateMismatchError   the state belongs to another tree, seed or number of lanes
    │   └── StateIncompleteError the state covers a part of the lanes only
    ├── DataError            bytes on disk are not what they should be
    │   ├── SampleError          one sample is bad: skipped, counted and reported by default
    │   │   └── ExcludedError        its sample_loader or joiner skips it: counted
    │   ├── StructureError       a shard or an index is bad: raised by default
    │   └── FatalSampleError     functions of the user failed too often, or for no fault of a sample
    └── MissingExtraError    an optional dependency is not installed (also an ImportError)

    SkipSample               raised by user code to leave a sample out; not an error

Messages have one form: *where: what is wrong, what was found. What to do.*
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any, Self

MIRROR = "/energy_data.mirror/"
"""The folder of a cache that has the mirrors of objects, `MIRROR/SCHEME/BUCKET[@OPTIONS]/KEY`."""

_MIRRORED = re.compile(rf"[^\s'\"]*{re.escape(MIRROR)}(\w+)/([^/\s'\"@]+)(?:@\w+)?")


def shown(text: str) -> str:
    """Return a text with the URLs of objects in place of their paths in a cache."""
    return _MIRRORED.sub(r"\1://\2", text) if MIRROR in text else text


class EnergyDataError(Exception):
    """Base of every error of this package."""

    def __str__(self) -> str:
        return shown(super().__str__())


class SpecError(EnergyDataError, ValueError):
    """The metadataset, or an argument, says something impossible.

    `faults` holds one line per fault, each with its place; the message joins them.
    """

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults = [faults] if isinstance(faults, str) else list(faults)
        super().__init__("\n".join(self.faults))

    def __reduce__(self) -> tuple[type[SpecError], tuple[list[str]]]:
        return type(self), (self.faults,)


class ReadOnlyError(SpecError):
    """An object store does not let us write to it."""


class StateError(EnergyDataError):
    """A saved state does not fit."""


class StateMissingError(StateError):
    """There is no state where one was expected."""


class StateMismatchError(StateError):
    """The state belongs to another tree, seed or number of lanes."""


class StateIncompleteError(StateError):
    """The state covers a part of the lanes only."""


class DataError(EnergyDataError):
    """Bytes on disk are not what they should be; says in which dataset, shard, key and offset."""

    def __init__(
        self,
        problem: str,
        *,
        dataset: str | None = None,
        shard: str | None = None,
        key: str | None = None,
        index: int | str | None = None,
        offset: int | None = None,
    ) -> None:
        self.problem, self.dataset, self.shard = problem, dataset, shard
        self.key, self.index, self.offset = key, index, offset
        super().__init__(problem)

    def __str__(self) -> str:
        places = {
            "dataset": self.dataset,
            "shard": self.shard,
            "key": self.key,
            "sample": self.index,
            "byte": self.offset,
        }
        where = ", ".join(f"{name} {place}" for name, place in places.items() if place is not None)
        return shown(f"{where}: {self.problem}" if where else self.problem)

    def __reduce__(self) -> tuple[object, tuple[type[DataError], dict[str, object]]]:
        return _rebuild, (type(self), dict(self.__dict__))


class SampleError(DataError):
    """One sample is bad; skipped, counted and reported by default."""


class ExcludedError(SampleError):
    """A sample that its `sample_loader` or joiner skips; it is counted, but it is not bad."""


class StructureError(DataError):
    """A shard or an index is bad; raised by default, since every sample in it is in doubt."""


class FatalSampleError(DataError):
    """A function of the user failed too often in a row, or for no fault of a sample.

    A function may raise it to stop the run: no error handler can skip its item.
    """

    @classmethod
    def from_sample(cls, sample: Any, message: str = "it failed.") -> Self:
        """Return an error that names a sample: a dict, or an object with `__key__`."""
        is_dict = isinstance(sample, dict)
        return cls(
            message, key=sample.get("__key__") if is_dict else getattr(sample, "__key__", None)
        )


class MissingExtraError(EnergyDataError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, purpose: str, extra: str) -> None:
        self.purpose, self.extra = purpose, extra
        super().__init__(
            f"{purpose} needs the extra {extra!r}, which is not installed. "
            f"Run: pip install 'energy_data[{extra}]'"
        )

    def __reduce__(self) -> tuple[type[MissingExtraError], tuple[str, str]]:
        return type(self), (self.purpose, self.extra)


class SkipSample(Exception):  # noqa: N818 - a signal of user code, named as in Energon
    """Raise it in `encode_sample` or a map function to leave this sample out."""


def _rebuild(kind: type[DataError], fields: dict[str, object]) -> DataError:
    error = kind(str(fields.pop("problem")))
    error.__dict__.update(fields, problem=error.problem)
    return error


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, if its class allows it."""
    with contextlib.suppress(Exception):
        error.add_note(note)
