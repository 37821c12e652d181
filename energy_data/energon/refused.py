"""Names of Energon that are refused, each with the reason and what to do instead."""

from __future__ import annotations

from typing import NoReturn

from energy_data.loading.checkpoint.run_state import of_energon

_STATES = (
    *("SavableDataLoaderState", "SavableDatasetCheckpoint", "SavableDatasetState"),
    *("RankState", "WorkerState"),
)
_FACTORIES = (
    "datasets are recognised by their files, and formats are added by packages that declare the "
    "entry point `energy_data.sources` (docs/add-a-source.md)"
)
_KEYS = (
    "restore keys are tuples (leaf id, epoch, index), and datasets are trees of specs. Write a "
    "node in place of a wrapper (docs/add-a-node.md)"
)

REFUSED = {
    "LogicalWorkerAssignment": (
        "the streams of a run are its lanes, and no worker makes what another one returns. Pass "
        "WorkerConfig(lanes=...)"
    ),
    "StreamingPackingDataset": (
        "samples are read in blocks, and a pack is chosen from a buffer. Pass a number as "
        "packing_buffer_size, and return a PackedSamplesOutput from select_samples_to_pack, or "
        "give the task encoder a `packing` with over_long='split'"
    ),
    "PackingGroupConfig": (
        "a lane has one buffer. Group its samples in select_samples_to_pack, by a field or by "
        "their `__subflavors__`"
    ),
    "JsonParser": (
        "files are read by their own grammar, and run no code. Read your own files with a library "
        "for it"
    ),
    "register_dataset_factory_provider": _FACTORIES,
    "EnergonDatasetType": _FACTORIES,
    "WrappedRestoreKey": _KEYS,
    "wrap_sample_restore_key": _KEYS,
    **{name: of_energon(name) for name in _STATES},
}
"""Name -> reason. Importing one raises ImportError with it."""


def refuse(module: str, name: str) -> NoReturn:
    """Raise ImportError for a refused name, AttributeError for one that does not exist."""
    if name in REFUSED:
        raise ImportError(f"{name}: {REFUSED[name].rstrip('.')}.", name=module)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")
