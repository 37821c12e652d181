"""Energon's module of this name: paths are those of the standard library."""

from pathlib import Path as EPath

__all__ = ["EPath"]
