"""Energon's names: import from `energy_data.energon` in place of `megatron.energon`.

    from energy_data.energon import WorkerConfig, get_savable_loader, get_train_dataset

    config = WorkerConfig(rank=0, world_size=1, num_workers=2)
    loader = get_savable_loader(get_train_dataset("meta.yaml", batch_size=32, worker_config=config))

These are the objects of `energy_data`, and the names of Energon that it does not export. The
submodules have the paths that programs import from. docs/migrating-from-energon.md lists
the differences.
"""

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import energy_data
from energy_data import *
from energy_data.data.files.cache import DirectLazy, FileCacheLazy, MockLazy
from energy_data.data.files.stores import (
    ByteRangeStore,
    DecodeFileStore,
    FileStoreDecoder,
    PrimaryFileStore,
    SystemFileStore,
)
from energy_data.data.filter_writer import (
    build_filter_index,
    build_filter_index_from_shard_indexes,
)
from energy_data.energon import metadatasets, webdatasets
from energy_data.energon.alias import MODULES, install
from energy_data.energon.metadatasets import *
from energy_data.energon.refused import refuse
from energy_data.energon.webdatasets import *
from energy_data.nodes.select_pack import PackedSamplesOutput, PartialSample
from energy_data.tasks.functions import skip_safe
from energy_data.tasks.metric import sample_size_metric
from energy_data.tasks.mixture import BaseCoreDatasetFactory

__version__ = version("energy_data")

BaseCoreDataset = energy_data.SavableDataset  # its name in older versions
DataLoader = energy_data.SavableDataLoader  # its name in Energon 8
EPath = Path

_ONLY_HERE = [
    *metadatasets.__all__,
    *webdatasets.__all__,
    "BaseCoreDataset",
    "BaseCoreDatasetFactory",
    "ByteRangeStore",
    "DataLoader",
    "DecodeFileStore",
    "DirectLazy",
    "FileCacheLazy",
    "FileStoreDecoder",
    "MockLazy",
    "PackedSamplesOutput",
    "PartialSample",
    "PrimaryFileStore",
    "SystemFileStore",
    "__version__",
    "build_filter_index",
    "build_filter_index_from_shard_indexes",
    "install",
    "sample_size_metric",
    "skip_safe",
]
__all__ = [*energy_data.__all__, *sorted(_ONLY_HERE)]  # noqa: PLE0604 - names of other modules

# The modules that programs import these names from are all this one.
for _path in MODULES:
    sys.modules.setdefault(f"{__name__}.{_path}", sys.modules[__name__])
    globals().setdefault(_path.split(".")[-1], sys.modules[__name__])


def __getattr__(name: str) -> Any:
    refuse(__name__, name)
