"""Contiguous ranges of the samples of a dataset."""

from __future__ import annotations

from energy_data.errors import SpecError


def subset_range(subset: tuple[int, int | None] | None, total: int, path: str) -> tuple[int, int]:
    """Return the first sample of a subset [start, end) of `total` samples, and how many it has.

    end None means to the end. SpecError if it is empty or reaches beyond.
    """
    start, end = subset or (0, None)
    end = total if end is None else end
    if not 0 <= start < end <= total:
        raise SpecError(
            f"{path}: subset [{start}, {end}) is empty or reaches beyond its {total} samples. "
            f"Give 0 <= start < end <= {total}."
        )
    return start, end - start
