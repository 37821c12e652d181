"""The groups of a rank."""

from __future__ import annotations

from dataclasses import dataclass

from torch import distributed


@dataclass
class ProcessGroupCollection:
    dp: distributed.ProcessGroup
    tp: distributed.ProcessGroup
    cp: distributed.ProcessGroup | None = None
