"""Crude samples: parts as they were read, for cookers to make something of."""

from __future__ import annotations

from typing import Any


class CrudeSample(dict[str, Any]):
    """Part extension -> value, with the `__` fields of `Sample`, and `__shard__`, its path."""
