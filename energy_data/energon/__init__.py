"""Energon's names: import from `energy_data.energon` in place of `megatron.energon`.

    from energy_data.energon import WorkerConfig, get_savable_loader, get_train_dataset

    config = WorkerConfig(rank=0, world_size=1, num_workers=2)
    loader = get_savable_loader(get_train_dataset("meta.yaml", batch_size=32, worker_config=config))

These are the objects of `energy_data`, and the names of Energon that it does not export. The
submodules have the paths that programs import from. docs/coming-from-energon.md lists the
differences.
"""

from importlib.metadata import version

import energy_data
from energy_data import *
from energy_data.data.files.cache import DirectLazy, FileCacheLazy, MockLazy
from energy_data.data.files.stores import (
    DecodeFileStore,
    FileStoreDecoder,
    PrimaryFileStore,
    SystemFileStore,
)
from energy_data.energon.metadatasets import (
    DatasetLoader,
    DatasetLoaderInterface,
    Metadataset,
    MetadatasetV2,
    load_dataset,
    prepare_metadataset,
    traverse_metadataset,
)
from energy_data.energon.webdatasets import (
    BaseWebdatasetFactory,
    CaptioningWebdataset,
    CrudeJsonlDatasetFactory,
    CrudeWebdataset,
    DefaultCrudeJsonlDatasetFactory,
    DefaultDecoderWebdatasetFactory,
    DefaultGenericWebdatasetFactory,
    ImageClassificationWebdataset,
    ImageWebdataset,
    InterleavedWebdataset,
    JoinedWebdatasetFactory,
    MultiChoiceVQAWebdataset,
    OCRWebdataset,
    SimilarityInterleavedWebdataset,
    StandardWebdatasetFactory,
    TextWebdataset,
    VidQAWebdataset,
    VQAOCRWebdataset,
    VQAWebdataset,
)
from energy_data.tasks.mixture import BaseCoreDatasetFactory

__version__ = version("energy_data")

BaseCoreDataset = energy_data.SavableDataset  # its name in older versions

__all__ = [  # noqa: PLE0604 - names of energy_data, and these
    *energy_data.__all__,
    "BaseCoreDataset",
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "CaptioningWebdataset",
    "CrudeJsonlDatasetFactory",
    "CrudeWebdataset",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "DecodeFileStore",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "DirectLazy",
    "FileCacheLazy",
    "FileStoreDecoder",
    "ImageClassificationWebdataset",
    "ImageWebdataset",
    "InterleavedWebdataset",
    "JoinedWebdatasetFactory",
    "Metadataset",
    "MetadatasetV2",
    "MockLazy",
    "MultiChoiceVQAWebdataset",
    "OCRWebdataset",
    "PrimaryFileStore",
    "SimilarityInterleavedWebdataset",
    "StandardWebdatasetFactory",
    "SystemFileStore",
    "TextWebdataset",
    "VQAOCRWebdataset",
    "VQAWebdataset",
    "VidQAWebdataset",
    "__version__",
    "load_dataset",
    "prepare_metadataset",
    "traverse_metadataset",
]
