"""Energon's module of this name."""

from energy_data.energon import *
