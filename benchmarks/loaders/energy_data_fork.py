"""Ours, with workers forked from the trainer, as the peers do unless told otherwise."""

from functools import partial

from benchmarks.loaders import energy_data_

batches = partial(energy_data_.batches, start_method="fork")
