"""Mirrors of objects and folders in a store: sparse files in the cache, which are filled on demand.

path = mirror("s3://bucket/pages")  # a folder of sparse files
publish(f"{path}/000.tar.idx")  # writes what is there to the store
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from energy_data.errors import SpecError
from energy_data.remote.client import FetchClient, client_of
from energy_data.remote.mirror_paths import (
    ENDPOINTS,
    NO_OPTIONS,
    StorePlace,
    cache_folder,
    cache_size,
    is_mirrored,
    place_of,
    ranges_of,
    root_of,
)


def mirror(url: str, options: Mapping[str, Any] = NO_OPTIONS) -> str:
    """Return the local path of what a URL names: an object, a folder, or a pattern of objects.

    options: of its store, in place of those of the environment. Lists what is there. Raises
    SpecError if there is nothing, or the store cannot be read.
    """
    asked, magic, given = _asked(url, options)
    client = _client()
    seen = client.seen.get(_name(asked, given)) or client.look(asked, given)
    if "error" in seen:
        raise SpecError(f"{seen['error']}. See docs/remote.md.")
    if seen["kind"] is None:
        raise SpecError(f"{asked}: there is no such object or folder. Check the URL.")
    return f"{seen['path']}/{magic}" if magic else str(seen["path"])


@contextmanager
def looked_at(places: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[None]:
    """Look at many URLs, with their options, at once: for `mirror` in the block.

    `mirror` raises the error of a place that cannot be read.
    """
    asked = dict[str, tuple[str, Mapping[str, Any]]]()
    for url, options in places:
        with suppress(SpecError):
            plain, _, given = _asked(url, options)
            asked[_name(plain, given)] = plain, given
    if len(asked) < 2:
        yield
        return
    client = _client()
    client.seen = dict(zip(asked, client.look_at(list(asked.values())), strict=True))
    try:
        yield
    finally:
        client.seen = {}


def _name(url: str, options: Mapping[str, Any]) -> str:
    return json.dumps([url, options], sort_keys=True)


def _asked(url: str, options: Mapping[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Return the URL that is looked at, the pattern below it, and all options of its store."""
    place = place_of(url)
    plain, magic = _without_pattern(place.key)
    return f"{place.base}/{plain}", magic, _options(place, options)


def mirror_of_object(url: str, options: Mapping[str, Any] = NO_OPTIONS) -> str:
    """Return the local path of one object. Raises FileNotFoundError if there is none."""
    seen = _client().look(url, _options(place_of(url), options), alone=True)
    if seen["kind"] is None:
        raise FileNotFoundError(f"{url}: there is no such object")
    return str(seen["path"])


def publish(path: str, file: str | None = None) -> None:
    """Write a file of a mirror to its store, whole or not at all. Files of a disk need nothing.

    file: what is written; None: what is at `path`. Raises ReadOnlyError if the store refuses it,
    SpecError if it fails.
    """
    if not is_mirrored(path):
        return
    try:
        client_of(root_of(path)).put(path, file or path)
    except SpecError:
        if file is None and os.path.exists(ranges_of(path)):  # noqa: PTH110 - as in client.py
            os.unlink(path)  # noqa: PTH108 - it is not the object that is in the store
        raise


def remove_published(path: str) -> None:
    """Remove what a path of a mirror is of from its store. Raises as `publish`."""
    if is_mirrored(path):
        client_of(root_of(path)).put(path, None)


def _client() -> FetchClient:
    """Return the client of this thread for the cache folder of the environment, which is made."""
    root = cache_folder()
    Path(root).mkdir(parents=True, exist_ok=True, mode=0o700)
    cache_size(root)  # an error here names the variable
    return client_of(root)


def _options(place: StorePlace, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all that a cache must know: buckets of one name at two endpoints are two."""
    for name in ENDPOINTS if place.scheme == "s3" else ():
        if endpoint := os.environ.get(name):
            if "@" in endpoint:
                raise SpecError(f"{name}: a URL of a server has no credentials. Remove them.")
            return {"endpoint": endpoint, **given}
    if place.scheme == "msc" and (config := os.environ.get("MSC_CONFIG")):
        return {"config": os.path.realpath(config)}
    return dict(given)


def _without_pattern(key: str) -> tuple[str, str]:
    """Return the folder that a pattern is in, and the rest of the key; a plain key has no rest."""
    parts = key.split("/")
    first = next((n for n, part in enumerate(parts) if set(part) & set("*?[{")), len(parts))
    return "/".join(parts[:first]), "/".join(parts[first:])
