"""WIDS: a JSON file that lists tars, as the indexed datasets of webdataset have it.

{"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [{"url": "x.tar", ...}, ...]}
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from energy_data.errors import SpecError

SUFFIX = ".json"

_KIND = "wids-shard-index-v1"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def listed_files(path: str) -> list[str]:
    """Return the files that an index lists, in its order, as absolute paths.

    Relative ones are next to the index. Raises SpecError if it is no such index, if it lists
    nothing, or files that are not local.
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise SpecError(f"{path}: it cannot be read: {error.strerror}. Check the path.") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: it is no JSON: {error}. Name a dataset.") from error
    if not isinstance(content, dict) or content.get("__kind__") != _KIND:
        raise SpecError(
            f"{path}: it is no index of WIDS: it has no `__kind__` {_KIND!r}. Name a dataset: the "
            "folder of an index.json, a .jsonl file, or others."
        )
    if content.get("wids_version") != 1:
        found = content.get("wids_version")
        raise SpecError(f"{path}: it is of version {found!r} of WIDS. Only 1 is supported.")
    if content.get("datasets"):
        problem = "it lists other datasets in `datasets`, which is not supported"
        raise SpecError(f"{path}: {problem}. Name each of them in a `concat` or `blend`.")
    shards = content.get("shardlist")
    urls = [one.get("url") for one in shards if isinstance(one, dict)] if shards else []
    if not urls or not isinstance(shards, list) or len(urls) < len(shards):
        raise SpecError(f"{path}: its `shardlist` is no list of shards, each with a `url`.")
    return [_local(url, path) for url in urls]


def _local(url: object, path: str) -> str:
    """Return the path of a file. SpecError if it is not a local one."""
    if not isinstance(url, str) or not url:
        raise SpecError(f"{path}: its `shardlist` has the url {url!r}, which is no text.")
    if url.startswith("file:"):
        url = url.removeprefix("file:")
        url = url.removeprefix("//") if url.startswith("///") else url
    elif _SCHEME.match(url):
        raise SpecError(
            f"{path}: it lists {url}, which is not a local file. Remote files cannot be read: copy "
            "the tars, and write their paths into the index."
        )
    return str(Path(os.path.abspath(path)).parent / os.path.normpath(url))  # noqa: PTH100
