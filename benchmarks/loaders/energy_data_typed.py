"""Energon's program, unchanged, on ours: typed samples and a cooker."""

from importlib import import_module

from energy_data.energon import install

install()  # from here on `megatron.energon` is ours
batches = import_module("benchmarks.loaders.energon").batches
