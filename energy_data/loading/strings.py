"""Lists of texts or of bytes, which cross to the trainer one behind the other, beside the pickle.

In the pickle they would be copied twice: to it, as it grows, and to the arena. Where nothing is
compiled that is what happens, as Python has no quicker way.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from energy_data.data.tar.native import COPY

_FEWEST = 8192  # bytes of a list; less costs no more in the pickle


class Strings(NamedTuple):
    """A list on its way."""

    values: list[Any]  # str or bytes
    sizes: bytes  # of each, uint32
    nbytes: int  # of all

    def write(self, into: memoryview) -> None:
        """Write them to memory of their size. ValueError if the list was changed meanwhile."""
        assert COPY is not None
        COPY.write_strings(into, self.values, self.sizes)


def strings_in(values: list[Any]) -> Strings | None:
    """Return a list that crosses beside the pickle; None if it is not large, or not strings alone.

    Nor if one of them is in it twice: a pickle has it once. Of empty ones there is only one.
    """
    if COPY is None:
        return None
    measured = COPY.sizes_of(values)
    if measured is None or measured[1] < _FEWEST:
        return None
    longer = list(filter(None, values))
    if len(set(map(id, longer))) < len(longer):
        return None
    return Strings(values, *measured)


def strings_of(data: memoryview, sizes: bytes, *, is_text: bool) -> list[Any]:
    """Return the list again."""
    assert COPY is not None
    values: list[Any] = COPY.strings_of(data, sizes, is_text)
    return values
