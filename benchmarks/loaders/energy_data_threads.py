"""Ours, with worker threads in place of processes."""

from functools import partial

from benchmarks.loaders import energy_data_

batches = partial(energy_data_.batches, start_method="thread")
