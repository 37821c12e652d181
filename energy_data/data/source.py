"""The contract of everything that reads samples by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from energy_data.core.sample import Sample
from energy_data.data.decode.parts import Decoding
from energy_data.errors import SampleError, SpecError, StructureError

T_source = TypeVar("T_source", bound="Source")


@frozen(kw_only=True)
class OpenOptions:
    """How to open a dataset. A format ignores the options that do not apply to it."""

    split_part: str = "train"
    subset: tuple[int, int | None] | None = None  # samples [start, end); end None: to the end
    subflavors: dict[str, Any] = field(factory=dict)  # `__subflavors__` of every sample
    decoding: Decoding = field(factory=Decoding)
    split_config: str | None = None  # name of the file in `.nv-meta` that is used as split.yaml

    def range_of(self, total: int, path: str) -> tuple[int, int]:
        """Return the first sample of the subset, and the number of its samples.

        total: samples of the part. SpecError if the subset is empty or out of range.
        """
        start, end = self.subset or (0, None)
        end = total if end is None else end
        if not 0 <= start < end <= total:
            raise SpecError(
                f"{path}: subset [{start}, {end}) is empty or out of range of its {total} samples. "
                f"Give 0 <= start < end <= {total}."
            )
        return start, end - start


class Source(ABC):
    """Samples [0, len) of one dataset split, read by index in blocks.

    A source is cheap to make: files are opened on first `read`. It holds no place; it may be read
    in any order, by one thread at a time. It pickles small (paths and options, no handles, no
    caches), and `fingerprint` changes whenever the samples behind the indices may have changed.
    """

    # For statistics: what this object has read so far; None if counting it would cost something.
    bytes_read: int | None = None
    tokens_read: int | None = None

    @property
    def can_read_rows(self) -> bool:
        """Whether `read_rows` is worth it, and no code of the user's sees what it reads."""
        return False

    @property
    def tokens_per_sample(self) -> Fraction | None:
        """Mean tokens of a sample, if its index knows; else None. Reads no shard."""
        return None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples; known without opening a shard."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Return 16 hex digits over all that decides which sample an index means."""

    @abstractmethod
    def read(self, indices: npt.NDArray[np.int64]) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order; for a bad one, a `SampleError`.

        indices: int64 [n], each in [0, len), any order, repeats allowed. Raises `StructureError`
        for a bad shard or index. One call reads a whole block: neighbours are read together.
        """

    @classmethod
    def read_together(
        cls,
        sources: Sequence[Self],
        numbers: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int64],
    ) -> list[Sample | SampleError]:
        """Return sample `indices[n]` of `sources[numbers[n]]` for each n, as `read` would.

        This reads one source after another. Override it if one block of several costs less.
        """
        samples: list[Sample | SampleError] = [{}] * len(indices)
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            found = sources[number].read(indices[places])
            for place, sample in zip(places.tolist(), found, strict=True):
                samples[place] = sample
        return samples

    def read_rows(self, indices: npt.NDArray[np.int64]) -> list[Sample | SampleError]:
        """Return the same as `read`, but tensors may be rows of one: see `core/batch_memory.py`."""
        return self.read(indices)

    @classmethod
    def read_rows_together(
        cls,
        sources: Sequence[Self],
        numbers: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int64],
    ) -> list[Sample | SampleError]:
        """Return the same as `read_together`, but tensors may be rows of one."""
        return cls.read_together(sources, numbers, indices)

    def hint(self, indices: npt.NDArray[np.int64]) -> None:  # noqa: B027 - a source need not care
        """Say that `indices` are read soon: a source may start reading ahead, and never blocks."""


def reopen(
    kind: Callable[[str, OpenOptions], T_source], path: str, options: OpenOptions, fingerprint: str
) -> T_source:
    """Return a pickled source again. StructureError if its dataset has changed."""
    source = kind(path, options)
    if source.fingerprint != fingerprint:
        raise StructureError(
            "it was changed while it was in use. Start the run again.", dataset=path
        )
    return source
