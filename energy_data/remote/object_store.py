"""Objects in stores, by obstore: what they are, what is in a folder, and ranges of their bytes."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import (
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import HTTPStore, from_url

from energy_data.remote.cached_ranges import ObjectFacts
from energy_data.remote.mirror_paths import check_key, without_secrets

if TYPE_CHECKING:  # they are not there when it runs
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

T = TypeVar("T")

log = logging.getLogger(__name__)

GIVE_UP = "ENERGY_DATA_RETRY_SECONDS"
_GIVE_UP = 300.0  # seconds; collectives of torch time out after 600
_OF_A_LOOK = 0.1  # part of that for listings, whose errors someone is waiting for
_LONGEST_PAUSE = 15.0
_CLIENT: ClientConfig = {"timeout": "120s", "connect_timeout": "10s"}
_NO_RETRIES: RetryConfig = {"max_retries": 0}  # they are counted here
_CONFIG = {  # options of a metadataset -> those of obstore
    "endpoint": "endpoint",
    "region": "region",
    "account": "account_name",
    "anonymous": "skip_signature",
}
_COMPANIONS = (".idx", ".index", ".loss", ".metadata")  # suffixes of files that belong to one
_META = ".nv-meta/"
_OF_META = (".info.json", ".info.yaml", "split.yaml", "dataset.yaml", "index.sqlite", "index.uuid")
_EXPIRED = ("<Code>ExpiredToken</Code>", "<Code>TokenRefreshRequired</Code>")
_XML = re.compile(r"<(?:\?xml|Error)\b.*", re.DOTALL)
_SAID = re.compile(r"<(?:Code|Message)>([^<]*)<")
_LARGEST_LIST = 1 << 26  # bytes of a file that names the files of a folder


class RemoteError(Exception):
    """An object cannot be read; its text says why, and after how many attempts."""


class MissingObjectError(RemoteError):
    """There is no such object."""


class Bucket:
    """One bucket, or one server of HTTP.

    options: How it is reached: `endpoint`, `region`, `profile`, `account`, `anonymous`, as in a
        metadataset. Credentials are found by obstore or boto3.
    """

    def __init__(self, base: str, options: Mapping[str, Any]) -> None:
        self.base, self.options = base, dict(options)
        self.retries: Counter[str] = Counter()  # by URL
        self._store: ObjectStore | None = None

    @property
    def store(self) -> ObjectStore:
        """The store, made on first use, and made again when its credentials were refused."""
        if self._store is None:
            if self.base.startswith("http"):
                client: ClientConfig = {**_CLIENT, "allow_http": True}
                self._store = HTTPStore.from_url(
                    self.base, client_options=client, retry_config=_NO_RETRIES
                )
            else:
                self._store = self._of_cloud()
        return self._store

    def _of_cloud(self) -> ObjectStore:
        client: ClientConfig = {**_CLIENT}
        if str(self.options.get("endpoint", "")).startswith("http://"):
            client["allow_http"] = True
        provider = None
        if self.base.startswith("s3://") and not self.options.get("anonymous"):
            provider = _boto_provider(self.base, self.options.get("profile"))
        config = {_CONFIG[name]: self.options[name] for name in self.options if name in _CONFIG}
        return from_url(
            self.base,
            client_options=client,
            retry_config=_NO_RETRIES,
            credential_provider=provider,
            **config,
        )

    def forget_credentials(self) -> None:
        """Find credentials again with the next request."""
        self._store = None

    async def get(self, facts: ObjectFacts, key: str, begin: int, end: int) -> memoryview:
        """Return bytes [begin, end) of an object, which must be the one that `facts` describe."""
        # A weak tag matches nothing; some servers ignore conditions, or have no tags.
        is_strong = facts.tag is not None and not facts.tag.startswith("W/")
        condition: Any = {"if_match": facts.tag} if is_strong else {}

        async def attempt() -> memoryview:
            options: Any = {"range": (begin, end), **condition}
            found = await obstore.get_async(self.store, key, options=options)
            if not self._facts(found.meta, key).is_same(facts):
                raise PreconditionError("it is another object")
            data = memoryview(await found.bytes_async())
            if len(data) != end - begin:
                raise OSError(f"the answer has {len(data)} bytes, not {end - begin}")
            return data

        return await self._retried(attempt, f"{self.base}/{key}", part=1)

    async def head(self, key: str) -> ObjectFacts | None:
        """Return what is known of an object; None if there is none."""
        try:
            found = await self._retried(lambda: self._head(key), f"{self.base}/{key}")
            return self._facts(found, key)
        except MissingObjectError:
            return None

    async def _head(self, key: str) -> Any:
        return await obstore.head_async(self.store, key)

    async def whole(self, key: str) -> bytes | None:
        """Return a small object; None if there is none."""
        facts = await self.head(key)
        if facts is None or facts.size > _LARGEST_LIST:
            return None
        return bytes(await self.get(facts, key, 0, facts.size)) if facts.size else b""

    async def folder(self, key: str) -> AsyncIterator[tuple[str, ObjectFacts]]:
        """Yield all objects in a folder, with their keys."""
        if isinstance(self.store, HTTPStore):
            async for found in self._named_in(key):
                yield found
            return

        async def attempt() -> list[Any]:
            found: list[Any] = []
            async for chunk in obstore.list(self.store, prefix=key):
                found += chunk
            return found

        for meta in await self._retried(attempt, f"{self.base}/{key}/"):
            name = str(meta["path"])
            if not name.endswith("/"):
                check_key(name, f"{self.base}/{name}")
                yield name, self._facts(meta, name)

    async def companions(self, key: str) -> dict[str, ObjectFacts]:
        """Return the index of an object and other files that belong to it, by key."""
        stem = key.rpartition(".")[0]
        return await self._heads([*(key + suffix for suffix in _COMPANIONS), f"{stem}.idx"])

    async def _named_in(self, key: str) -> AsyncIterator[tuple[str, ObjectFacts]]:
        """Yield the objects of a folder that its own files name, as HTTP lists none."""
        names = [f"{key}/{_META}{name}" for name in _OF_META]
        if info := await self.whole(names[0]):
            with suppress(ValueError, AttributeError, TypeError):
                for shard in json.loads(info)["shard_counts"]:
                    names += [f"{key}/{shard}", f"{key}/{shard}.idx"]
        elif index := await self.whole(f"{key}/index.json"):
            names = [f"{key}/index.json"]
            with suppress(ValueError):
                names += [f"{key}/{name}" for name in _file_names(json.loads(index))]
        for name in names:
            check_key(name, f"{self.base}/{name}")
        for name, facts in (await self._heads(names)).items():
            yield name, facts

    async def _heads(self, keys: list[str]) -> dict[str, ObjectFacts]:
        """Return what is known of those objects that exist, by key."""
        slots = asyncio.Semaphore(64)

        async def one(key: str) -> ObjectFacts | None:
            async with slots:
                return await self.head(key)

        found = zip(keys, await asyncio.gather(*map(one, keys)), strict=True)
        return {key: facts for key, facts in found if facts is not None}

    def _facts(self, meta: Any, key: str) -> ObjectFacts:
        return ObjectFacts(
            url=f"{self.base}/{key}",
            size=int(meta["size"]),
            modified=meta["last_modified"].timestamp(),
            tag=meta["e_tag"],
            options=self.options,
        )

    async def _retried(
        self, attempt: Callable[[], Awaitable[T]], url: str, *, part: float = _OF_A_LOOK
    ) -> T:
        """Return what `attempt` returns; try again after errors that may pass.

        part: of the time after which a read is given up.
        """
        began, attempts = time.monotonic(), 0
        most = _seconds_of_retries() * part
        while True:
            attempts += 1
            try:
                return await attempt()
            except FileNotFoundError as error:
                raise MissingObjectError(f"{url}: there is no such object") from error
            except PreconditionError as error:
                problem = "the object was changed since the run began"
                raise RemoteError(f"{url}: {problem}. Restart the run") from error
            except NotSupportedError as error:
                problem = "its server does not answer requests for ranges of bytes"
                raise RemoteError(f"{url}: {problem}. Serve it by one that does") from error
            except (asyncio.CancelledError, RemoteError):
                raise
            except Exception as error:
                spent = time.monotonic() - began
                refused = _is_refusal(error)
                if spent > most or (refused and attempts > 3):
                    answer = _cleaned(str(error))
                    tried = f"{attempts} attempts in {spent:.0f} s, the last answer: {answer}"
                    raise RemoteError(f"{url}: it cannot be read: {tried}") from error
                if refused:  # credentials may have expired
                    self.forget_credentials()
                log.warning("%s: attempt %d failed: %s", url, attempts, _cleaned(str(error)))
            self.retries[url] += 1
            pause = min(_LONGEST_PAUSE, 0.1 * 2**attempts)
            await asyncio.sleep(min(pause, most) * random.uniform(0.5, 1))  # noqa: S311


def _seconds_of_retries() -> float:
    given = os.environ.get(GIVE_UP) or str(_GIVE_UP)
    try:
        return float(given)
    except ValueError:
        raise RemoteError(f"{GIVE_UP}={given!r} is no number of seconds") from None


def _is_refusal(error: Exception) -> bool:
    """Return whether credentials were refused. S3 answers 400, not 403, where a token expired."""
    kinds = PermissionDeniedError | UnauthenticatedError
    return isinstance(error, kinds) or any(code in str(error) for code in _EXPIRED)


def _file_names(found: Any) -> list[str]:
    """Return the files that an index of MDS, litdata or WIDS names."""
    if isinstance(found, list):
        return [name for each in found for name in _file_names(each)]
    if not isinstance(found, dict):
        return []
    own = [found[key] for key in ("basename", "filename") if isinstance(found.get(key), str)]
    return own + [name for each in found.values() for name in _file_names(each)]


def _boto_provider(base: str, profile: str | None) -> Any:
    """Return the credentials of boto3, where it is installed and has some; else obstore's own.

    profile: whose credentials they are; there are no others then.
    """
    try:
        import boto3  # type: ignore[import-untyped]  # noqa: PLC0415 - optional, without types
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - as above

        return Boto3CredentialProvider(boto3.Session(profile_name=profile))
    except ImportError as error:
        if profile is not None:
            problem = f"the profile {profile!r} needs boto3. Run: pip install boto3"
            raise RemoteError(f"{base}: {problem}") from error
    except Exception as error:
        if profile is not None:
            advice = "Check ~/.aws/config and ~/.aws/credentials"
            problem = f"the profile {profile!r} has no credentials ({error})"
            raise RemoteError(f"{base}: {problem}. {advice}") from error
    return None


def _cleaned(answer: str) -> str:
    """Return the answer of a store in one line, without credentials.

    Queries may have a signature, and S3 returns the tokens and key ids that it refuses, in XML.
    """
    answer = answer.partition("Debug source")[0]
    if xml := _XML.search(answer):
        answer = " ".join([answer[: xml.start()], *_SAID.findall(xml[0])])
    words = answer.split()
    text = " ".join(without_secrets(word) if "://" in word else word for word in words)
    return text if len(text) < 400 else f"{text[:400]}..."
