"""The process of the fetcher: one per cache folder, for all processes of a node.

    python -m energy_data.remote.fetcher_server CACHE

It is started by the first client that needs it, and ends soon after its last client. Clients send
one JSON object per line over a Unix socket: `look` at a place, `want` ranges, `wait` for some,
`put` a file.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from energy_data.remote.cached_ranges import known_objects
from energy_data.remote.fetcher import REQUESTS, Fetcher
from energy_data.remote.mirror_paths import LOCK, SOCKET, cache_size
from energy_data.remote.object_store import RemoteError, StoreRefusalError

log = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
_RECONNECTED = 10.0  # seconds after which clients have noticed that a fetcher was killed
_LOCKED = 50  # times that the lock is tried, as clients try it too
_LINE = 1 << 28  # bytes of a message at most


class FetcherServer:
    """Serves clients until none is left."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher, self._numbers = fetcher, count()
        self._idle: asyncio.TimerHandle | None = None
        self.ended = asyncio.Event()
        self.wait_for_clients(10 * IDLE_SECONDS)

    def wait_for_clients(self, seconds: float = IDLE_SECONDS) -> None:
        """End after so many seconds, unless a client comes."""
        self._idle = asyncio.get_running_loop().call_later(seconds, self.ended.set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client."""
        if self._idle is not None:
            self._idle.cancel()
        client, tasks = next(self._numbers), set[asyncio.Task[None]]()
        self.fetcher.clients[client] = set()
        try:
            while line := await reader.readline():
                task = asyncio.create_task(self._answer(client, json.loads(line), writer))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        except (ConnectionError, ValueError, asyncio.LimitOverrunError):
            log.exception("a client is left")
        finally:
            for task in tasks:
                task.cancel()
            writer.close()
            self.fetcher.leave(client)
            if not self.fetcher.clients:
                self.wait_for_clients()

    async def _answer(
        self, client: int, asked: dict[str, Any], writer: asyncio.StreamWriter
    ) -> None:
        answer: Any
        try:
            answer = {"found": await self._found(client, asked)}
        except (RemoteError, OSError, ValueError) as error:
            refused = type(error) is StoreRefusalError
            answer = {"error": str(error) or repr(error), "refused": refused}
        except Exception as error:
            log.exception("an error of the fetcher")
            answer = {"error": f"an error of the fetcher: {error!r}", "refused": False}
        if (number := asked.get("id")) is not None:
            with suppress(ConnectionError):
                writer.write(json.dumps({"id": number, **answer}).encode() + b"\n")
                await writer.drain()

    async def _found(self, client: int, asked: Mapping[str, Any]) -> Any:
        fetcher, kind = self.fetcher, asked["kind"]
        ranges = [(path, begin, end) for path, begin, end in asked.get("ranges", ())]
        if "variables" in asked:
            fetcher.use(asked["variables"])
        if kind == "look":
            return await fetcher.look(client, asked["url"], asked["options"], alone=asked["alone"])
        if kind == "look_at":
            return await self._looked_at(client, asked["places"])
        if kind == "want":
            return fetcher.want(client, asked["owner"], ranges, asked["when"])
        if kind == "wait":
            return await fetcher.wait(client, asked["owner"], ranges)
        if kind == "stats":
            return fetcher.stats()
        return await fetcher.put(client, asked["path"], asked["file"])

    async def _looked_at(
        self, client: int, places: Sequence[tuple[str, Mapping[str, Any]]]
    ) -> list[dict[str, Any]]:
        few = asyncio.Semaphore(REQUESTS)

        async def one(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
            async with few:
                try:
                    return await self.fetcher.look(client, url, options)
                except (RemoteError, OSError, ValueError) as error:
                    return {"error": str(error) or repr(error)}

        return await asyncio.gather(*(one(*place) for place in places))


async def _run(root: str) -> None:
    fetcher = Fetcher(cache_size(root))
    for found in known_objects(root):
        fetcher.space.load(found)
    server = FetcherServer(fetcher)
    # The path of a socket is short; that of a cache may be long.
    folder = os.open(root, os.O_RDONLY)
    path = f"/proc/self/fd/{folder}/{SOCKET}"
    if Path(path).exists():  # the last one was killed
        fetcher.drop_nothing(_RECONNECTED)
        Path(path).unlink()
    listening = await asyncio.start_unix_server(server.serve, path, limit=_LINE)
    Path(path).chmod(0o600)
    async with listening:
        await server.ended.wait()
    Path(path).unlink(missing_ok=True)


def main() -> None:
    """Serve a cache folder; end at once if another process does."""
    root = sys.argv[1]
    logging.basicConfig(level=logging.WARNING)  # its output is the log
    lock = os.open(f"{root}/{LOCK}", os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(_LOCKED):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            asyncio.run(_run(root))
            return


if __name__ == "__main__":
    main()
