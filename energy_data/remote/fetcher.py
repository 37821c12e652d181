"""What the fetcher of a cache folder does for its clients: it reads objects in their order."""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from energy_data.core.profiler import Fetched
from energy_data.remote.cache_space import CacheSpace, OwnerKey, Range
from energy_data.remote.cached_ranges import (
    CachedObject,
    ObjectFacts,
    overlaps,
    without,
)
from energy_data.remote.fetch_costs import FetchCosts
from energy_data.remote.mirror_paths import (
    READ_BY_PATH,
    key_of,
    mirror_of,
    place_of,
)
from energy_data.remote.msc_bucket import MscBucket
from energy_data.remote.object_store import Bucket, RemoteError, use_credentials

REQUESTS = 64  # in flight
_LEAST_AHEAD = 1 << 23  # bytes that may always be on their way before they are waited for
_LATELY_S = 1.0
_PIECE = 1 << 24  # bytes of a request at most
_SMALL = 1 << 23  # bytes of a file that is fetched whole when its folder is looked at


class Fetcher:
    """Fetches what clients want, in the order in which they need it."""

    def __init__(self, limit: int) -> None:
        self.space = CacheSpace(limit)
        self.counts: Counter[str] = Counter()
        self._costs = FetchCosts()
        self.clients: dict[int, set[str]] = {}  # client -> the objects that it uses
        self._buckets: dict[str, Bucket] = {}
        self._generations: dict[OwnerKey, int] = {}  # how often owners have said what they want
        self._queue: list[tuple[int, int, OwnerKey, int, Range]] = []
        self._urgent: deque[Range] = deque()
        self._flying: dict[str, list[tuple[int, int]]] = {}
        self._ahead = 0  # bytes on their way that were requested before they were waited for
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._arrived: deque[tuple[float, int]] = deque()  # when, and how many bytes: lately
        self._arrived_bytes = 0  # the sum of these
        self._numbers, self._tasks = count(), set[asyncio.Task[None]]()

    # What clients ask for.

    async def look(
        self, client: int, url: str, options: Mapping[str, Any], *, alone: bool = False
    ) -> dict[str, Any]:
        """Make the mirror of an object, or of a folder. Return what it is: None: there is none."""
        place = place_of(url)
        bucket, key = self._bucket(place.base, options), place.key
        found, is_folder = dict[str, ObjectFacts](), False
        if "." in key.rpartition("/")[2] or alone:
            found = await bucket.object(key, alone=alone)
        if key not in found and not alone:
            found = {name: facts async for name, facts in bucket.folder(key)}
            is_folder = bool(found)
            if not found and (facts := await bucket.head(key)):
                found[key] = facts
        paths = {
            mirror_of(place._replace(key=name), options): facts for name, facts in found.items()
        }
        for path, facts in sorted(paths.items()):
            self._make(client, path, facts)
        own = mirror_of(place, options)
        if is_folder:
            self._remove_others(own, paths)
        small = [
            (path, 0, facts.size)
            for path, facts in paths.items()
            if not alone and 0 < facts.size <= _SMALL and path.endswith(READ_BY_PATH)
        ]
        await self.wait(client, "small files", small)
        return {"path": own, "kind": ("folder" if is_folder else "file") if found else None}

    def want(self, client: int, owner: str, ranges: Sequence[Range], when: Sequence[int]) -> None:
        """Replace what an owner will need, with the micro-batch in which it needs each."""
        key = OwnerKey(client, owner)
        for path, _, _ in ranges:
            self._use(client, path)
        self.space.want(key, ranges)
        generation = self._generations.get(key, 0) + 1
        self._generations[key] = generation
        for one, deadline in zip(ranges, when, strict=True):
            entry = deadline, next(self._numbers), key, generation, one
            heapq.heappush(self._queue, entry)
        self._pump()

    async def wait(self, client: int, owner: str, ranges: Sequence[Range]) -> list[Fetched]:
        """Return when ranges are there, with what each took; they are held for the owner.

        A range is waited for after those before it. Raises RemoteError.
        """
        key = OwnerKey(client, owner)
        for path, _, _ in ranges:
            self._use(client, path)
        self._generations.setdefault(key, 0)
        self.space.hold(key, ranges)
        loop, costs = asyncio.get_running_loop(), list[Fetched]()
        self._urgent += ranges
        self._pump()
        for path, begin, end in ranges:
            began = loop.time()
            while missing := self.space.objects[path].missing(begin, end):
                flying = self._flying.get(path, [])
                self._urgent += [(path, *gap) for gap in missing if not overlaps(flying, gap)]
                arrived: asyncio.Future[None] = loop.create_future()
                self._waiting.setdefault(path, []).append(arrived)
                self._pump()
                await arrived
            found = self.space.objects[path]
            costs.append(self._costs.take(found, begin, end, loop.time() - began))
        return costs

    async def put(self, client: int, path: str, file: str | None) -> None:
        """Write a file to the object of a path in the mirror; None: remove what is there."""
        key = key_of(path)
        facts = self.space.facts_in(path[: -len(key)])
        bucket = self._bucket(place_of(facts.url).base, facts.options)
        if file is None:
            await bucket.remove(key)
            self._remove_others(path, ())
        else:
            await bucket.put(key, file)
            self.clients[client].discard(path)  # it reads the old one no more

    def use(self, variables: Mapping[str, str]) -> None:
        """Take over the variables of a client that credentials are found by."""
        if use_credentials(variables):
            for bucket in self._buckets.values():
                bucket.forget_credentials()

    def stats(self) -> dict[str, int]:
        """Return the bytes, requests and retries so far, and the bytes that are in the cache."""
        pending = sum(bucket.retries.total() for bucket in self._buckets.values())
        retries = self.counts["retries"] + pending
        return {**self.counts, "retries": retries, "used": self.space.used}

    def leave(self, client: int) -> None:
        """Release all that a client held."""
        for key in [key for key in self._generations if key.client == client]:
            self.space.want(key, [])
            del self._generations[key]
        del self.clients[client]

    # What is done for them.

    def _make(self, client: int, path: str, facts: ObjectFacts) -> None:
        known = self.space.objects.get(path) or CachedObject.load(path)
        if known is None or not known.facts.is_same(facts) or not Path(path).exists():
            if known is not None and self._in_use(path):
                problem = "the object was changed, and a run that reads the old one goes on"
                raise RemoteError(f"{facts.url}: {problem}. Restart the run, or end the other one")
            known = CachedObject.create(path, facts)
        if self.space.objects.get(path) is not known:
            self.space.load(known)
        self.clients[client].add(path)

    def _remove_others(self, folder: str, paths: Iterable[str]) -> None:
        """Remove files of objects that are no longer in a folder."""
        known = set(paths)
        for path in [one for one in self.space.objects if one.startswith(f"{folder}/")]:
            if path not in known and not self._in_use(path):
                self.space.forget(path)
                Path(path).unlink(missing_ok=True)

    def _use(self, client: int, path: str) -> None:
        if path not in self.space.objects:
            found = CachedObject.load(path)
            if found is None:
                raise RemoteError(f"{path}: it is not in the cache. Restart the run")
            self.space.load(found)
        self.clients[client].add(path)

    def drop_nothing(self, seconds: float) -> None:
        """Drop nothing for some time: clients of a fetcher that died read what they held there."""
        self.space.may_drop = False
        asyncio.get_running_loop().call_later(seconds, self._drop_again)

    def _drop_again(self) -> None:
        self.space.may_drop = True
        self._pump()

    def _in_use(self, path: str) -> bool:
        return any(path in used for used in self.clients.values())

    def _bucket(self, base: str, options: Mapping[str, Any]) -> Bucket:
        name = json.dumps([base, dict(options)], sort_keys=True)
        if name not in self._buckets:
            kind = MscBucket if base.startswith("msc://") else Bucket
            self._buckets[name] = kind(base, options)
        return self._buckets[name]

    def _pump(self) -> None:
        """Start requests while there are slots."""
        while len(self._tasks) < REQUESTS and (found := self._next()) is not None:
            path, begin, end = found
            self._flying.setdefault(path, []).append((begin, end))
            ahead = 0 if self._urgent else end - begin
            self._ahead += ahead
            task = asyncio.get_running_loop().create_task(self._fetch(path, begin, end, ahead))
            self._tasks.add(task)
            task.add_done_callback(self._landed)

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._pump()

    def _next(self) -> Range | None:
        """Return what is fetched next, with room made for it; None: nothing is, now."""
        while self._urgent:
            if (gap := self._gap(self._urgent[0])) is None:
                self._urgent.popleft()
            elif self.space.make_room(gap[2] - gap[1], self._in_use, urgent=True):
                return gap
            elif self._tasks or not self.space.may_drop:
                return None  # what arrives may be dropped again
            else:
                self._wake(self._urgent.popleft()[0], RemoteError(self.space.too_small))
        while self._queue:
            _, _, key, generation, wanted = self._queue[0]
            is_old = self._generations.get(key) != generation
            if is_old or (gap := self._gap(wanted)) is None:
                heapq.heappop(self._queue)
            elif self._ahead and self._ahead + gap[2] - gap[1] > self._most_ahead():
                return None
            elif self.space.make_room(gap[2] - gap[1], self._in_use, urgent=False):
                return gap
            else:
                return None
        return None

    def _most_ahead(self) -> int:
        """Return how many bytes may be on their way before they are waited for.

        They share the bandwidth with what is waited for then. So no more are on their way
        than arrive in a second, which is more than a store needs to be busy.
        """
        since = asyncio.get_running_loop().time() - _LATELY_S
        while self._arrived and self._arrived[0][0] < since:
            self._arrived_bytes -= self._arrived.popleft()[1]
        return _LEAST_AHEAD if self._waiting else max(_LEAST_AHEAD, self._arrived_bytes)

    def _gap(self, wanted: Range) -> Range | None:
        """Return the first part of a range that is neither there nor on its way; None: none is."""
        path, begin, end = wanted
        flying = self._flying.get(path, [])
        for first, last in self.space.objects[path].missing(begin, end):
            for left, right in without(first, last, flying):
                return path, left, min(right, left + _PIECE)
        return None

    async def _fetch(self, path: str, begin: int, end: int, ahead: int) -> None:
        found, error = self.space.objects[path], None
        place = place_of(found.facts.url)
        self.counts["requests"] += 1
        try:
            bucket = self._bucket(place.base, found.facts.options)
            data = await bucket.get(found.facts, place.key, begin, end)
            if self.space.objects.get(path) is not found:
                raise RemoteError(f"{found.facts.url}: the object was changed")
            found.add(begin, data)
            self._arrived.append((asyncio.get_running_loop().time(), end - begin))
            self._arrived_bytes += end - begin
            self.counts["bytes"] += end - begin
            self.counts["retries"] += (retries := bucket.retries.pop(found.facts.url, 0))
            self._costs.add(path, (begin, end), retries)
        except (RemoteError, OSError) as problem:
            error = problem
        finally:
            self._ahead -= ahead
            self._flying[path].remove((begin, end))
            if error is None:
                self.space.added(path, (begin, end))
            else:
                self.space.used -= end - begin
            self._wake(path, error)

    def _wake(self, path: str, error: Exception | None) -> None:
        for arrived in self._waiting.pop(path, []):
            if not arrived.done():
                if error is None:
                    arrived.set_result(None)
                else:
                    arrived.set_exception(error)
