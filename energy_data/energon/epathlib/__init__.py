"""Energon's module of this name."""

from energy_data.energon.epathlib.epath import EPath

__all__ = ["EPath"]
