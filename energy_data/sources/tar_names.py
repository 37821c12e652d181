"""Names in tars -> keys of samples and extensions of parts: the rule of webdataset and Energon.

    "images/0001.seg.png"  ->  key "images/0001", extension "seg.png"

The key reaches to the first dot after the last slash. Files without extension and those in or
named `__...__` are no parts of samples.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"((?:.*/)?[^.]+)[.]([^/]*)")
_META = re.compile(r"__[^/]*__(?:$|/)")


def split_name(name: str) -> tuple[str, str] | None:
    """Return (key, extension), or None if the file is no part of a sample."""
    key, dot, extension = name.partition(".")
    if not dot or not key or "/" in extension or name.startswith("__"):
        found = None if _META.match(name) else _NAME.fullmatch(name)
        return (found[1], found[2]) if found else None
    return key, extension
