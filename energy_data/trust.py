"""Code that files name: nothing runs but what is known here, or what the user allowed by name.

trust = Trust.of(["mypackage"])           # and what the environment allows
trust.find("mypackage.joins", "join")     # imported
trust.find("os", "system")                # SpecError
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from attrs import frozen

from energy_data.errors import SpecError

VARIABLE = "ENERGY_DATA_ALLOW_MODULES"
OURS = ("megatron.energon", "energy_data")
"""Modules whose names are looked up in a table of ours, and never imported by a file's word."""


@frozen
class Trust:
    """What code files may name."""

    modules: frozenset[str] = frozenset()

    @classmethod
    def of(cls, allow_modules: Iterable[str] = ()) -> Trust:
        """Return trust in some modules and all in them, and in those the environment names.

        ENERGY_DATA_ALLOW_MODULES: names with commas between them.
        """
        given = [allow_modules] if isinstance(allow_modules, str) else allow_modules
        named = (name.strip() for name in os.environ.get(VARIABLE, "").split(","))
        return cls(frozenset([*given, *filter(None, named)]))

    def allows(self, module: str) -> bool:
        """Return whether a module, or a package it is in, is allowed."""
        return any(module == name or module.startswith(f"{name}.") for name in self.modules)

    def find(self, module: str, name: str, known: Mapping[str, Any] | None = None) -> Any:
        """Return what is called `name` in a module.

        known: what may be named of Energon's modules and ours. SpecError if it is neither known nor
        allowed, or not there.
        """
        ours = any(module == one or module.startswith(f"{one}.") for one in OURS)
        if ours and known and name in known:
            return known[name]
        if not self.allows(module):
            package = module.partition(".")[0]
            raise SpecError(
                f"{module}.{name} is code that is not known here, and files run no code that is "
                f"not allowed. If you trust it, pass allow_modules=[{package!r}], or set "
                f"{VARIABLE}={package}."
            )
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SpecError(
                f"{module}.{name} cannot be imported: {error}. Look at the name, and at the path "
                "that Python searches (sys.path)."
            ) from error
