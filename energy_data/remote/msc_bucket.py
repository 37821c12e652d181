"""Stores of NVIDIA's multi-storage-client: the profiles of its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from obstore.exceptions import PreconditionError

from energy_data.remote.cached_ranges import ObjectFacts
from energy_data.remote.mirror_paths import check_key
from energy_data.remote.object_store import Bucket, RemoteError

T = TypeVar("T")

_THREADS = 64  # its calls block


class MscBucket(Bucket):
    """One profile.

    options: `config`: the file that has the profile; without it, the client looks for one.
    """

    def __init__(self, base: str, options: Mapping[str, Any]) -> None:
        super().__init__(base, options)
        self._threads = ThreadPoolExecutor(_THREADS)
        self._client: Any = None
        self._range: Any = None  # a class of the client

    @property
    def client(self) -> Any:
        """The client of the profile. Raises RemoteError if it is not installed or has none."""
        if self._client is None:
            try:
                # It is optional, and not there for mypy.
                import multistorageclient  # type: ignore[import-not-found]  # noqa: PLC0415
                from multistorageclient.types import (  # type: ignore[import-not-found]  # noqa: PLC0415
                    Range,
                )
            except ImportError as error:
                advice = "Run: pip install multi-storage-client"
                problem = "it is read by the package multi-storage-client, which is not installed"
                raise RemoteError(f"{self.base}: {problem}. {advice}") from error
            paths = [self.options["config"]] if "config" in self.options else None
            profile = self.base.partition("://")[2]
            try:
                config = multistorageclient.StorageClientConfig.from_file(paths, profile)
                self._client, self._range = multistorageclient.StorageClient(config), Range
            except ValueError as error:
                raise RemoteError(f"{self.base}: {error}") from error
        return self._client

    def forget_credentials(self) -> None:
        """Make the client again with the next request."""
        super().forget_credentials()
        self._client = None

    async def get(self, facts: ObjectFacts, key: str, begin: int, end: int) -> memoryview:
        """Return bytes [begin, end) of an object, which must be the one that `facts` describe."""

        async def attempt() -> memoryview:
            client = self.client
            data = await self._called(client.read, key, self._range(begin, end - begin))
            # The bytes come without a tag. If it is still the same, they are of this object.
            if not self._facts(await self._called(client.info, key), key).is_same(facts):
                raise PreconditionError("it is another object")
            if len(data) != end - begin:
                raise OSError(f"the answer has {len(data)} bytes, not {end - begin}")
            return memoryview(data)

        return await self._retried(attempt, f"{self.base}/{key}", part=1)

    async def folder(self, key: str) -> AsyncIterator[tuple[str, ObjectFacts]]:
        """Yield all objects in a folder, with their keys."""

        async def attempt() -> list[Any]:
            client = self.client
            return await self._called(lambda: list(client.list(path=f"{key}/")))

        for meta in await self._retried(attempt, f"{self.base}/{key}/"):
            check_key(meta.key, f"{self.base}/{meta.key}")
            yield meta.key, self._facts(meta, meta.key)

    async def _head(self, key: str) -> Any:
        found = await self._called(self.client.info, key)
        if found.type == "directory":
            raise FileNotFoundError
        return found

    async def _called(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _facts(self, meta: Any, key: str) -> ObjectFacts:
        return ObjectFacts(
            url=f"{self.base}/{key}",
            size=meta.content_length,
            modified=meta.last_modified.timestamp(),
            tag=meta.etag,
            options=self.options,
        )
