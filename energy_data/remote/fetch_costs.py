"""What requests took, until they are reported to the clients that need their bytes."""

from __future__ import annotations

from energy_data.core.profiler import Fetched
from energy_data.remote.cache_space import Range
from energy_data.remote.cached_ranges import CachedObject, Piece


class FetchCosts:
    """Counts each request once: for the first client that waits for bytes of its piece."""

    def __init__(self) -> None:
        self._unreported: dict[Range, tuple[int, int]] = {}  # a piece -> its requests and retries

    def add(self, path: str, piece: Piece, retries: int) -> None:
        """Note that a piece was fetched."""
        requests, before = self._unreported.get((path, *piece), (0, 0))
        self._unreported[path, *piece] = requests + 1, before + retries

    def take(self, found: CachedObject, begin: int, end: int, seconds: float) -> Fetched:
        """Return what bytes [begin, end) took, which are there, to report it to a client.

        seconds: that it waited.
        """
        fetched = cached = requests = retries = 0
        for first, last in found.overlapping(begin, end):
            unreported = self._unreported.pop((found.path, first, last), None)
            if unreported is None:
                cached += min(end, last) - max(begin, first)
            else:
                fetched += unreported[0] * (last - first)
                requests += unreported[0]
                retries += unreported[1]
        return Fetched(fetched, cached, requests, retries, seconds)
