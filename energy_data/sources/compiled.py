"""The compiled part of reading tars (`_tar.c`), where there is one.

It takes half of the time away, and changes nothing else: whatever is not plain is left to Python.
There is none where the package was installed without a compiler, or if ENERGY_DATA_COMPILED is 0;
`energy-data --version` says so.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from types import ModuleType

_VERSION = 4  # of what is between Python and C; the same as in `_tar.c`

log = logging.getLogger(__name__)


def _load() -> ModuleType | None:
    if os.environ.get("ENERGY_DATA_COMPILED") == "0":
        return None
    try:
        found = import_module("energy_data.sources._tar")
    except ImportError:
        return None
    if getattr(found, "VERSION", None) != _VERSION:
        log.warning(
            "%s was compiled from other sources, and is not used. Install the package again.",
            found.__file__,
        )
        return None
    return found


TAR = _load()
