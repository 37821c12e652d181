"""The contract of everything that reads samples by index."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from energy_data.core.cut import WHOLE, Cut
from energy_data.core.sample import Sample
from energy_data.data.decode.parts import Decoding
from energy_data.data.runs import RunOrder
from energy_data.errors import SampleError, SpecError, StructureError
from energy_data.remote.cache_space import Range

T_source = TypeVar("T_source", bound="Source")

Unit = Literal["tokens", "bytes"]

_SUMMED = 1 << 20  # samples whose costs are in memory at once


@frozen(kw_only=True)
class OpenOptions:
    """How to open a dataset. A format ignores the options that do not apply to it."""

    split_part: str = "train"
    subset: tuple[int, int | None] | None = None  # samples [start, end); end None: to the end
    subflavors: dict[str, Any] = field(factory=dict)  # `__subflavors__` of every sample
    decoding: Decoding = field(factory=Decoding)
    split_config: str | None = None  # name of the file in `.nv-meta` that is used as split.yaml
    filter: str | None = None  # name of the filter index whose samples are read
    keys: Mapping[str, Any] = field(factory=dict)  # that only some formats have, such as `seq_len`

    def check_unprepared(self, path: str) -> None:
        """Raise SpecError for a part, or a file of parts, that only prepared data has."""
        if self.split_config is not None:
            raise SpecError(
                f"{path}: split_config {self.split_config!r} names a file in `.nv-meta`, and it is "
                "not prepared. Remove `split_config`, or run `energy-data prepare` on a folder of "
                "shards."
            )
        if self.filter is not None and not Path(path).is_file():
            raise SpecError(
                f"{path}: a filter index, here {self.filter!r}, is of one file or of a prepared "
                f"dataset, and it is neither. Run `energy-data prepare` on a folder of shards."
            )
        if self.split_part != "train":
            raise SpecError(
                f"{path}: it is not prepared, so its one split part is 'train', not "
                f"{self.split_part!r}. Write `split_part: train` to use all of it, with `subset` "
                "for a range; or run `energy-data prepare` on a folder of shards to split it."
            )

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

    Creating a source is cheap: files are opened on the first `read`. A source has no position; it
    may be read in any order, by one thread at a time. Its pickle is small (paths and options, no
    handles, no caches). `fingerprint` changes if indices mean other samples; it may read
    only some of the data to find out.
    """

    # Statistics: what this object has read so far; None if it is not counted.
    bytes_read: int | None = None
    tokens_read: int | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether it has only the samples that a filter index keeps."""
        return False

    @property
    def can_read_rows(self) -> bool:
        """Whether `read_together` can return tensors as rows of one tensor."""
        return False

    @property
    def run_length(self) -> int | None:
        """How many neighbouring samples are cheap only together, as those of a compressed group.

        None: any sample is read at the same cost, or little more. The order reads runs whole.
        """
        return None

    @property
    def piece_length(self) -> int | None:
        """How many samples of a run are decoded at a time, from its first to its last.

        None: all of them. The order mixes the samples of few pieces at a time.
        """
        return None

    @property
    def run_order(self) -> RunOrder | None:
        """The order in which whole runs come first; None: as samples are, all runs are whole.

        Used only if samples are shuffled.
        """
        return None

    @property
    def cut(self) -> Cut:
        """How samples are cut from chunks, if other stages may read samples of another length.

        Then `read` also takes indices of parts of samples. By default each sample is a chunk.
        """
        return WHOLE

    @property
    def warning(self) -> str | None:
        """What is wrong and stops no run; None: nothing is. Reads no data."""
        return None

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples; known without opening a shard."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Return 16 hex digits, a digest of everything that decides which sample an index means."""

    def check_files(self) -> None:  # noqa: B027 - most need none
        """Raise StructureError if a file does not fit its index. Opens all files; reads no sample.

        By default nothing is compared.
        """

    def costs(self, indices: npt.NDArray[np.int64], unit: Unit) -> npt.NDArray[np.int64] | None:
        """Return the tokens or bytes of each sample, int64 [n]; None if no index has them.

        indices: as in `read`. Reads indices, no samples. Raises `StructureError` for a bad index.
        """
        return None

    def total_cost(self, unit: Unit) -> int | None:
        """Return the sum of the costs of all samples; None if no index has them.

        Override it if the sum costs less than all its parts.
        """
        total = 0
        for begin in range(0, len(self), _SUMMED):
            costs = self.costs(np.arange(begin, min(begin + _SUMMED, len(self))), unit)
            if costs is None:
                return None
            total += int(costs.sum())
        return total

    @property
    def is_remote(self) -> bool:
        """Whether its files are in a cache of an object store, so that reading may wait."""
        return False

    def fingerprint_ranges(self) -> Sequence[Range]:
        """Return what `fingerprint` reads; by default nothing. Need not be complete.

        It is called only if `is_remote`, so that what many sources read is fetched at once.
        """
        return ()

    def ranges(self, first: int, count: int) -> Sequence[Range] | None:
        """Return the bytes that samples [first, first + count) are read from: path, begin, end.

        None, as by default: it is not known. Then a remote dataset is not read ahead. It is called
        only if `is_remote`, and reads indices, no samples.
        """
        return None

    def index_ranges(self, indices: Sequence[int]) -> Sequence[Range]:
        """Return what `ranges` reads for some samples; otherwise as `fingerprint_ranges`."""
        return ()

    def rows_of(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the numbers of samples in their split part, counting samples that are left out.

        By default none are left out.
        """
        return indices

    def find(self, name: str) -> int | None:
        """Return the index of the sample that is called `SHARD/KEY`, or KEY; None: there is none.

        SpecError if samples are not found by key, as by default.
        """
        raise SpecError(f"{name!r}: samples of its format are not found by key. Give a number.")

    @abstractmethod
    def read(self, indices: npt.NDArray[np.int64]) -> list[Sample | SampleError]:
        """Return the samples of `indices`, in that order; a bad sample is a `SampleError`.

        indices: int64 [n], each in [0, len), in any order, repeats allowed. Raises `StructureError`
        for a bad shard or index. One call reads a block: neighbours are read together. Each sample
        is a dict of its own, which the caller may change.
        """

    @classmethod
    def read_together(
        cls,
        sources: Sequence[Self],
        numbers: npt.NDArray[np.int64],
        indices: npt.NDArray[np.int64],
        *,
        rows: bool = False,
    ) -> list[Sample | SampleError]:
        """Return sample `indices[n]` of `sources[numbers[n]]` for each n, as `read` would.

        This reads one source after another. Override it if reading several at once costs less.

        rows: tensors may be rows of one tensor (see `core/batch_memory.py`); set only if all
            sources have `can_read_rows`.
        """
        samples: list[Sample | SampleError] = [{}] * len(indices)
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            found = sources[number].read(indices[places])
            for place, sample in zip(places.tolist(), found, strict=True):
                samples[place] = sample
        return samples


def reopen(
    kind: Callable[[str, OpenOptions], T_source], path: str, options: OpenOptions, fingerprint: str
) -> T_source:
    """Open a source that was pickled. StructureError if its dataset has changed since."""
    source = kind(path, options)
    if source.fingerprint != fingerprint:
        raise StructureError(
            "the dataset was changed while it was in use. Restart the run.", dataset=path
        )
    return source
