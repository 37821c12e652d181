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
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import obstore
from obstore.exceptions import (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import HTTPStore, LocalStore, from_url

from energy_data.remote.cached_ranges import ObjectFacts
from energy_data.remote.mirror_paths import CREDENTIALS, check_key, without_secrets

if TYPE_CHECKING:  # they are not there when it runs
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

T = TypeVar("T")

log = logging.getLogger(__name__)

GIVE_UP = "ENERGY_DATA_RETRY_SECONDS"
_GIVE_UP = 300.0  # seconds; collectives of torch time out after 600
_OF_A_LOOK = 0.1  # part of that for listings, whose errors someone is waiting for
_LONGEST_PAUSE = 15.0
_REFUSALS = 4
_CLIENT: ClientConfig = {"timeout": "120s", "connect_timeout": "10s"}
_NO_RETRIES: RetryConfig = {"max_retries": 0}  # they are counted here
_CONFIG = {  # options of a metadataset -> those of obstore
    "endpoint": "endpoint",
    "region": "region",
    "account": "account_name",
    "anonymous": "skip_signature",
}
_COMPANIONS = (".idx", ".tokens.idx", ".index", ".loss", ".metadata")  # of files of a shard
_META = ".nv-meta/"
_OF_META = (".info.json", ".info.yaml", "split.yaml", "dataset.yaml", "index.sqlite", "index.uuid")
# What S3 answers to an expired token is 400; to HEAD, without a body that says so.
_EXPIRED = re.compile(
    r"<Code>(?:ExpiredToken|TokenRefreshRequired)</Code>|400 Bad Request: *(?:\n|$)"
)
_XML = re.compile(r"<(?:\?xml|Error)\b.*", re.DOTALL)
_SAID = re.compile(r"<(?:Code|Message)>([^<]*)<")
_LARGEST_LIST = 1 << 26  # bytes of a file that names the files of a folder
_LARGE = 1 << 23  # bytes of a file that is written in several requests
_MOST_REQUESTS = 10_000  # that S3 allows for one object


class RemoteError(Exception):
    """An object cannot be read; its text says why, and after how many attempts."""


class MissingObjectError(RemoteError):
    """There is no such object."""


class StoreRefusalError(RemoteError):
    """The store does not allow it."""


class Bucket:
    """One bucket, one server of HTTP, or the files of this machine.

    options: How it is reached: `endpoint`, `region`, `profile`, `account`, `anonymous`, as in a
        metadataset. Credentials are found by obstore or boto3.
    """

    def __init__(self, base: str, options: Mapping[str, Any]) -> None:
        self.base, self.options = base, dict(options)
        self.retries: Counter[str] = Counter()  # by URL
        self._renewals = 0  # of credentials
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
            elif self.base == "file://":  # of a network file system
                self._store = LocalStore("/")
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
        self._renewals += 1

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

    async def head(self, key: str, *, refusals: int = _REFUSALS) -> ObjectFacts | None:
        """Return what is known of an object; None if there is none. refusals: as in `_retried`."""
        url = f"{self.base}/{key}"
        try:
            return self._facts(
                await self._retried(lambda: self._head(key), url, refusals=refusals), key
            )
        except MissingObjectError:
            return None

    async def _head(self, key: str) -> Any:
        return await obstore.head_async(self.store, key)

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

    async def object(self, key: str, *, alone: bool = False) -> dict[str, ObjectFacts]:
        """Return an object, its index and other files that belong to it, by key.

        alone: without the others. Nothing is returned if there is no such object.
        """
        stem = key.rpartition(".")[0]
        others = [] if alone else [*(key + one for one in _COMPANIONS), f"{stem}.idx"]
        found = await self._heads([key], others)
        return found if key in found else {}

    async def put(self, key: str, file: str) -> None:
        """Write a file to an object, whole or not at all. Raises StoreRefusalError."""
        if self.base.startswith(("http", "msc")):
            raise StoreRefusalError(f"{self.base}/{key}: HTTP and msc:// are not written to")
        # An open file stays what it is, also if a look gives its name to the new object.
        with Path(file).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            part = max(_LARGE, -(-size // _MOST_REQUESTS))

            async def attempt() -> None:
                stream.seek(0)
                data = stream.read() if size <= _LARGE else stream
                await obstore.put_async(self.store, key, data, chunk_size=part)

            await self._retried(attempt, f"{self.base}/{key}", part=1, what="written", refusals=2)

    async def remove(self, key: str) -> None:
        """Remove an object, or all objects in a folder. Raises StoreRefusalError."""
        keys = [name async for name, _ in self.folder(key)] or [key]

        async def attempt() -> None:
            with suppress(FileNotFoundError):  # of an attempt whose answer was lost
                await obstore.delete_async(self.store, keys)

        await self._retried(attempt, f"{self.base}/{key}", what="removed", refusals=2)

    async def _named_in(self, key: str) -> AsyncIterator[tuple[str, ObjectFacts]]:
        """Yield the objects of a folder that its own files name, as HTTP lists none."""
        meta = [f"{key}/{_META}{name}" for name in _OF_META]
        index, shards = f"{key}/index.json", list[str]()
        known = await self._heads([], [meta[0], index])
        if meta[0] in known:
            with suppress(ValueError, AttributeError, TypeError):
                info = json.loads(await self._whole(meta[0], known[meta[0]]))
                shards = [f"{key}/{shard}" for shard in info["shard_counts"]]
        elif index in known:
            with suppress(ValueError):
                names = _file_names(json.loads(await self._whole(index, known[index])))
                shards = [f"{key}/{name}" for name in names]
        for name in shards:
            check_key(name, f"{self.base}/{name}")
        others = meta[1:]
        if meta[0] in known:
            others += [f"{shard}{suffix}" for shard in shards for suffix in _COMPANIONS[:2]]
        elif index in known:
            others = []
        for name, facts in {**known, **await self._heads(shards, others)}.items():
            yield name, facts

    async def _whole(self, key: str, facts: ObjectFacts) -> bytes:
        """Return a small object."""
        is_read = 0 < facts.size <= _LARGEST_LIST
        return bytes(await self.get(facts, key, 0, facts.size)) if is_read else b""

    async def _heads(self, keys: list[str], optional: list[str]) -> dict[str, ObjectFacts]:
        """Return what is known of those objects that exist, by key.

        optional: Where one may not list a bucket, S3 answers 403 for a key that does not exist. So
        one that is refused does not exist, if another can be read by the same credentials.
        """
        slots = asyncio.Semaphore(64)

        async def head(key: str) -> ObjectFacts | StoreRefusalError | None:
            is_optional = key in may_lack
            async with slots:
                try:
                    return await self.head(key, refusals=1 if is_optional else _REFUSALS)
                except StoreRefusalError as error:
                    if not is_optional:
                        raise
                    return error

        may_lack, every = set(optional), [*keys, *optional]
        while True:
            renewals = self._renewals
            found = dict(zip(every, await asyncio.gather(*map(head, every)), strict=True))
            good = {key: one for key, one in found.items() if isinstance(one, ObjectFacts)}
            refused = [key for key, one in found.items() if isinstance(one, StoreRefusalError)]
            if not refused or (good and self._renewals == renewals):
                return good
            if not good:  # raises, unless other credentials are found
                await self.head(refused[0])

    def _facts(self, meta: Any, key: str) -> ObjectFacts:
        return ObjectFacts(
            url=f"{self.base}/{key}",
            size=int(meta["size"]),
            modified=meta["last_modified"].timestamp(),
            tag=meta["e_tag"],
            options=self.options,
        )

    async def _retried(
        self,
        attempt: Callable[[], Awaitable[T]],
        url: str,
        *,
        part: float = _OF_A_LOOK,
        what: str = "read",
        refusals: int = _REFUSALS,
    ) -> T:
        """Return what `attempt` returns; try again after errors that may pass.

        part: of the time after which a read is given up. what: is done. refusals: the attempts
        after which a refusal is an error, a StoreRefusalError.
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
            except InvalidPathError as error:
                problem = f"a key in it is no path of a file: {_cleaned(str(error))}"
                raise RemoteError(f"{url}: {problem}. Rename the object") from error
            except NotSupportedError as error:
                problem = "its server does not answer requests for ranges of bytes"
                raise RemoteError(f"{url}: {problem}. Serve it by one that does") from error
            except (asyncio.CancelledError, RemoteError):
                raise
            except Exception as error:
                spent = time.monotonic() - began
                refused = _is_refusal(error)
                if spent > most or (refused and attempts >= refusals):
                    answer = _cleaned(str(error))
                    tried = f"{attempts} attempts in {spent:.0f} s, the last answer: {answer}"
                    kind = StoreRefusalError if refused else RemoteError
                    raise kind(f"{url}: it cannot be {what}: {tried}") from error
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


def use_credentials(variables: Mapping[str, str]) -> bool:
    """Take over the variables that credentials are found by; return whether they are others."""
    before = {name: os.environ[name] for name in os.environ if name.startswith(CREDENTIALS)}
    if before == variables:
        return False
    for name in before.keys() - variables:  # such as the session token of other keys
        del os.environ[name]
    os.environ.update(variables)
    return True


def _is_refusal(error: Exception) -> bool:
    """Return whether credentials were refused. S3 answers 400, not 403, where a token expired."""
    kinds = PermissionDeniedError | UnauthenticatedError
    return isinstance(error, kinds) or _EXPIRED.search(str(error)) is not None


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
