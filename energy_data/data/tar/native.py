"""The compiled parts, where there are any: `_tar.c` reads tars, `_copy.c` copies to the arena.

They save time, and change nothing else. There are none where the package was installed without a
compiler, or if ENERGY_DATA_COMPILED is 0; `energy-data --version` says so.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from types import ModuleType

log = logging.getLogger(__name__)


def _load(name: str, version: int) -> ModuleType | None:
    """Return a compiled module; None if there is none of this version."""
    if os.environ.get("ENERGY_DATA_COMPILED") == "0":
        return None
    try:
        found = import_module(f"energy_data.{name}")
    except ImportError:
        return None
    if getattr(found, "VERSION", None) != version:
        log.warning(
            "%s was compiled from other sources, and is not used. Install the package again.",
            found.__file__,
        )
        return None
    return found


# Versions of what is between Python and C; the same as in the C.
TAR = _load("data.tar._tar", 5)
COPY = _load("loading._copy", 5)
