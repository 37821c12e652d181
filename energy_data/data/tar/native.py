"""The compiled part that reads tars.

It saves time and changes no result. It is missing if the package was installed without a compiler,
and is not used if ENERGY_DATA_COMPILED is 0; `energy-data --version` reports it.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from types import ModuleType

log = logging.getLogger(__name__)


_VERSION = 5  # of the interface between Python and C; the same number is in the C


def _load() -> ModuleType | None:
    """Return the compiled module; None if there is none of this version."""
    if os.environ.get("ENERGY_DATA_COMPILED") == "0":
        return None
    try:
        found = import_module("energy_data.data.tar._tar")
    except ImportError:
        return None
    if getattr(found, "VERSION", None) != _VERSION:
        log.warning(
            "%s was compiled from other sources and is not used. Install the package again.",
            found.__file__,
        )
        return None
    return found


TAR = _load()
