"""Code that files name: only known names, and code that the user allowed, are ever run.

policy = ImportPolicy.of(["mypackage"])           # and what the environment allows
policy.find("mypackage.joins", "join")     # imported
policy.find("os", "system")                # SpecError
ImportPolicy().find("train", "Own", base=Sample)  # if the program has imported it, nothing else

policy = ImportPolicy.of(["/data/coco"])  # a name with a slash is a folder with Python files
policy.load(Path("/data/coco/.nv-meta/sample_loader.py"), "sample_loader")
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from attrs import frozen

from energy_data.core.lazy import cached_property
from energy_data.errors import SpecError

VARIABLE = "ENERGY_DATA_ALLOW_MODULES"
OURS = ("megatron.energon", "energy_data")
"""Modules whose names are looked up in our own table; no file can import from them."""


@frozen
class ImportPolicy:
    """The code that files may name."""

    modules: frozenset[str] = frozenset()

    @classmethod
    def of(cls, allow_modules: Iterable[str] = ()) -> ImportPolicy:
        """Return trust in some modules and all in them, and in those the environment names.

        Names with a slash are folders, and mean the Python files below them.
        ENERGY_DATA_ALLOW_MODULES: names with commas between them.
        """
        given = [allow_modules] if isinstance(allow_modules, str) else allow_modules
        named = (name.strip() for name in os.environ.get(VARIABLE, "").split(","))
        return cls(frozenset([*given, *filter(None, named)]))

    def allows(self, module: str) -> bool:
        """Return whether a module, or a package it is in, is allowed."""
        return any(module == name or module.startswith(f"{name}.") for name in self.modules)

    def find(
        self,
        module: str,
        name: str,
        known: Mapping[str, Any] | None = None,
        base: type | None = None,
    ) -> Any:
        """Return what is called `name` in a module.

        known: what may be named of Energon's modules and ours. base: classes derived from it may be
        named if the program has imported them; nothing is imported for that. SpecError if it is
        neither of them nor allowed, or not there.
        """
        ours = any(module == one or module.startswith(f"{one}.") for one in OURS)
        if ours and known and name in known:
            return known[name]
        if base is not None and (loaded := _loaded(module, name, base)) is not None:
            return loaded
        if not self.allows(module):
            package = module.partition(".")[0]
            before = f"import {module} before, " if base else ""
            raise SpecError(
                f"{module}.{name} is unknown code, and files run only code "
                f"that is allowed. If you trust it, {before}pass allow_modules=[{package!r}], or "
                f"set {VARIABLE}={package}."
            )
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise SpecError(
                f"{module}.{name} cannot be imported: {error}. Look at the name, and at the path "
                "that Python searches (sys.path)."
            ) from error

    def allows_file(self, file: Path) -> bool:
        """Return whether a file is below a folder that is allowed, links followed."""
        folders = (Path(name).resolve() for name in self.modules if "/" in name)
        return any(folder in file.resolve().parents for folder in folders)

    def load(self, file: Path, name: str) -> FileFunction:
        """Return a function in a Python file, which is run now.

        SpecError if the file is not allowed or not there, cannot be run, or has no such function.
        """
        if not self.allows_file(file):
            folder = str(file.resolve().parent).removesuffix("/.nv-meta")
            raise SpecError(
                f"{file} is code, and files run no code that is not allowed. If you have read it, "
                f"pass allow_modules=[{folder!r}], or set {VARIABLE}={folder}."
            )
        try:
            function = FileFunction(str(file), name, file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SpecError(f"{file}: it cannot be read: {error}. Look at its name.") from error
        if not callable(function.function):
            raise SpecError(f"{file}: it has no function {name!r}. Look at the name.")
        return function


def _loaded(module: str, name: str, base: type) -> type | None:
    """Return a class that the program has imported; None if it is not derived from `base`.

    Looks into the dict of the module, because attributes of modules may import others.
    """
    holder = sys.modules.get(module)
    if not issubclass(type(holder), ModuleType):
        return None
    found = object.__getattribute__(holder, "__dict__").get(name)
    return found if isinstance(found, type) and issubclass(found, base) else None


class FileFunction:
    """A function in a Python file; pickled with the text the file had, so it stays the same."""

    def __init__(self, path: str, name: str, text: str) -> None:
        self.path, self.name, self.text = path, name, text

    def __reduce__(self) -> tuple[type[FileFunction], tuple[str, str, str]]:
        return type(self), (self.path, self.name, self.text)

    @cached_property
    def function(self) -> Any:
        """What has the name after the file was run; None if nothing has."""
        namespace: dict[str, Any] = {"__name__": Path(self.path).stem, "__file__": self.path}
        try:
            exec(compile(self.text, self.path, "exec"), namespace)  # noqa: S102 - it was allowed
        except Exception as error:
            raise SpecError(f"{self.path}: running it failed: {error!r}. Fix the code.") from error
        return namespace.get(self.name)

    def __call__(self, *args: Any) -> Any:
        """Return what the function returns."""
        return self.function(*args)
