"""What lies where in a cache folder, and which settings it has.

`s3://bucket/a/b.tar` is `CACHE/energy_data.mirror/s3/bucket/a/b.tar`, a sparse file of the size of
the object. What is known of it, and which bytes of it are there, is in
`CACHE/energy_data.ranges/s3/bucket/a/b.tar`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from energy_data.errors import MIRROR, SpecError

SCHEMES = ("s3", "gs", "az", "http", "https", "msc", "file")
FOLDER = MIRROR
RANGES = "/energy_data.ranges/"
SOCKET, LOCK, LOG = "fetcher.socket", "fetcher.lock", "fetcher.log"
NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
"""Of a store that is reached as the environment says."""

S3_ENDPOINT = "AWS_ENDPOINT_URL_S3"
ENDPOINTS = (S3_ENDPOINT, "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Variables that name the server of S3, the first one first."""

CREDENTIALS = ("AWS_", "AZURE_", "GOOGLE_", "ENERGY_DATA_RETRY")
"""Begins of the variables that clients send to the fetcher."""

CACHE, CACHE_SIZE = "ENERGY_DATA_CACHE", "ENERGY_DATA_CACHE_SIZE"

# Of files that are read by their path, by code that knows no caches.
READ_BY_PATH = (".json", ".yaml", ".yml", ".py", ".uuid", ".txt", ".jinja", ".sqlite")
# Of files that are fetched whole when they are opened.
WHOLE = (*READ_BY_PATH, ".idx", ".index", ".metadata")

# A file has no bucket: file:///mnt/nfs/coco.
_URL = re.compile(r"(?:(s3|gs|az|https?|msc)://([^/]+)|(file)://)(?:/(.*))?", re.DOTALL)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_FREE = 0.8  # part of the free space that the cache may take by default


class StorePlace(NamedTuple):
    """A place in a store."""

    scheme: str
    bucket: str  # of http(s): host and port; of files: empty
    key: str  # without a slash at its ends; may be a pattern

    @property
    def base(self) -> str:
        """The URL of the bucket."""
        return f"{self.scheme}://{self.bucket}"


def is_url(path: str) -> bool:
    """Return whether a path names a place in a store."""
    return _URL.match(path) is not None


def place_of(url: str) -> StorePlace:
    """Return the place that a URL names. SpecError for one with credentials, or without a name."""
    found = _URL.fullmatch(url)
    if found is None:
        raise SpecError(f"{without_secrets(url)}: is no URL of {', '.join(SCHEMES)}.")
    scheme, bucket, key = found[1] or found[3], found[2] or "", found[4]
    if "@" in bucket or (scheme.startswith("http") and set("?#") & set(key or "")):
        raise SpecError(
            f"{without_secrets(url)}: a URL of data has no credentials, signature or query. Set "
            "them in the environment (docs/remote.md)."
        )
    key = "/".join(part for part in (key or "").split("/") if part)
    if not key:
        raise SpecError(f"{url}: it names a whole bucket. Name a folder or an object in it.")
    check_key(key, url)
    return StorePlace(scheme, bucket, key)


def check_key(key: str, url: str) -> None:
    """Raise SpecError for a key that is no name of a file."""
    parts = key.split("/")
    if "\0" in key or {"", ".", ".."} & set(parts) or any(len(part) > 255 for part in parts):
        raise SpecError(f"{url}: the key {key!r} is no path of a file. Rename the object.")


def cache_folder() -> str:
    """Return the folder of the cache, absolute."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return os.path.realpath(os.environ.get(CACHE) or f"{home}/energy_data/remote")


def cache_size(folder: str) -> int:
    """Return how many bytes of objects the cache may hold. SpecError for a size that is none."""
    given = os.environ.get(CACHE_SIZE)
    if not given:
        facts = os.statvfs(folder)
        return int(facts.f_bavail * facts.f_frsize * _FREE)
    return size_of(given, f"{CACHE_SIZE}=")


def size_of(text: str, what: str) -> int:
    """Return the bytes that a text such as 500GB means. SpecError, which begins with `what`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise SpecError(f"{what}{text!r} is no size. Write bytes, or such as 500GB.")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def mirror_of(place: StorePlace, options: Mapping[str, object]) -> str:
    """Return the path of what lies at a place.

    options: of the store; other options may mean other objects, so they have a mirror of their own.
    """
    bucket = place.bucket or "root"
    if options:
        text = json.dumps(dict(options), sort_keys=True)
        bucket += "@" + hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return f"{cache_folder()}{FOLDER}{place.scheme}/{bucket}/{place.key}"


def key_of(path: str) -> str:
    """Return the key of what a mirrored path is of."""
    return path.partition(FOLDER)[2].split("/", 2)[2]


def is_mirrored(path: str) -> bool:
    """Return whether a path is that of an object in a cache."""
    return FOLDER in path


def has_samples(path: str) -> bool:
    """Return whether a path is that of an object in a cache that is read in ranges."""
    return FOLDER in path and not path.endswith(WHOLE)


def ranges_of(path: str) -> str:
    """Return the path of what is known of a mirrored object."""
    return path.replace(FOLDER, RANGES, 1)


def root_of(path: str) -> str:
    """Return the cache folder that a mirrored path is in."""
    return path.partition(FOLDER)[0]


def without_secrets(url: str) -> str:
    """Return a URL without its user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        return unquote(parts._replace(netloc=host, query="", fragment="").geturl())
    except ValueError:
        return url.partition("?")[0]
