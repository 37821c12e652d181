"""A model of a store and of its fetcher: the same plan, in a time that passes at once.

What is fetched when is decided by the code of the fetcher; only the store, the files of the cache
and the clock are replaced. No byte is read.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from energy_data.core.profiler import Fetched
from energy_data.remote.cache_space import Range, merged
from energy_data.remote.cached_ranges import CachedObject, ObjectFacts, Piece
from energy_data.remote.client import FetchClient
from energy_data.remote.fetcher import Fetcher
from energy_data.remote.mirror_paths import FOLDER
from energy_data.remote.object_store import Bucket

ROOT = "model"
"""The cache folder of a model, which does not exist."""

_CLIENT = 0
_FACTS = ObjectFacts(url="https://store/object", size=0, modified=0.0)


@frozen(kw_only=True)
class Link:
    """The way from a store to a node."""

    latency: float  # seconds until the first byte of an answer
    bandwidth: float  # bytes per second, of all requests of the node together


class _Clock(selectors.SelectSelector):
    """Waits for nothing: the time that one would wait has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "all tasks wait for each other"
        self.now += max(timeout, 0.0)
        return []


class ModelLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes when all tasks wait for it."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the seconds that have passed."""
        return self._clock.now


class _ModelObject(CachedObject):
    """An object without a file."""

    def add(self, begin: int, data: bytes | memoryview) -> None:
        self._list((begin, begin + len(data)))

    def drop(self, piece: Piece) -> None:
        self._unlist(piece)


class _ModelBucket(Bucket):
    """Answers after a latency, one after another at the bandwidth of a link."""

    def __init__(self, link: Link) -> None:
        super().__init__("https://store", {})
        self._link, self._free = link, 0.0

    async def get(self, facts: ObjectFacts, key: str, begin: int, end: int) -> memoryview:
        now = asyncio.get_running_loop().time()
        first = max(now + self._link.latency, self._free)
        self._free = first + (end - begin) / self._link.bandwidth
        await asyncio.sleep(self._free - now)
        return memoryview(bytes(end - begin))  # its pages are never touched


class ModelFetcher(Fetcher):
    """The fetcher of a node that one client uses."""

    def __init__(self, limit: int, link: Link) -> None:
        super().__init__(limit)
        self.clients[_CLIENT] = set()
        self._model = _ModelBucket(link)

    def stop(self) -> None:
        """Start no more requests."""
        self._queue.clear()
        self._urgent.clear()

    def _use(self, client: int, path: str) -> None:
        if path not in self.space.objects:
            self.space.load(_ModelObject(path, _FACTS))
        super()._use(client, path)

    def _bucket(self, base: str, options: Mapping[str, Any]) -> Bucket:
        return self._model


class ModelClient(FetchClient):
    """A client in the process of its fetcher, which does not wait: `arrived` does it later."""

    def __init__(self, fetcher: ModelFetcher) -> None:
        super().__init__(ROOT)
        self._fetcher = fetcher
        self._waits: list[tuple[str, list[Range]]] = []

    async def arrived(self, waits: list[tuple[str, list[Range]]]) -> list[tuple[Range, Fetched]]:
        """Return when ranges are there, with what each took. Raises RemoteError."""
        found = list[tuple[Range, Fetched]]()
        for owner, ranges in waits:
            costs = await self._fetcher.wait(_CLIENT, owner, ranges)
            found += zip(ranges, costs, strict=True)
        return found

    def waits(self) -> list[tuple[str, list[Range]]]:
        """Return what was waited for since the last call, by owner."""
        found, self._waits = self._waits, []
        return found

    @property
    def wanted_bytes(self) -> int:
        """The bytes of all ranges that lanes hold or will need, as far as they look ahead."""
        ranges = {one for ranges, _ in self._wanted.values() for one in ranges}
        return sum(end - begin for _, begin, end in merged(ranges))

    def _check_inode(self, path: str) -> None:
        """Check nothing: there is no file."""

    def _tell(self, message: dict[str, Any]) -> None:
        self._fetcher.want(_CLIENT, message["owner"], message["ranges"], message["when"])

    def _ask(self, message: dict[str, Any]) -> Any:
        self._waits.append((message["owner"], message["ranges"]))
        return [Fetched()] * len(message["ranges"])


def model_path(path: str) -> str:
    """Return the path of a file as if it was in a store."""
    return f"{ROOT}{FOLDER}{path}"
