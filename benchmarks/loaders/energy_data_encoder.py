"""Ours, where a task encoder decodes what the library decodes by itself, as users' code would."""

from functools import partial

from benchmarks.loaders import energy_data_

batches = partial(energy_data_.batches, decodes=True)
