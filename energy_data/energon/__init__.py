"""Energon's names: `from energy_data.energon import ...` in place of `megatron.energon`.

    from energy_data.energon import WorkerConfig, get_savable_loader, get_train_dataset

    config = WorkerConfig(rank=0, world_size=1, num_workers=2)
    loader = get_savable_loader(get_train_dataset("meta.yaml", batch_size=32, worker_config=config))

Signatures are those of 7.4, and older ones where they differ; datasets, metadatasets and task
encoders stay as they are. What is different, and why, is in docs/migrating-from-energon.md.
"""

from importlib.metadata import version

from energy_data.core.context import WorkerConfig
from energy_data.core.user_call import log_exception, reraise_exception
from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.files.cache import (
    CachePool,
    DirectLazy,
    FileCacheLazy,
    FileStoreCachePool,
    Lazy,
    MockLazy,
    NoCachePool,
)
from energy_data.data.files.stores import (
    DecodeFileStore,
    FileStore,
    FileStoreDecoder,
    PrimaryFileStore,
    SystemFileStore,
)
from energy_data.data.typed.samples import (
    CaptioningSample,
    CrudeSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    Sample,
    SimilarityInterleavedSample,
    SourceInfo,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
    edataclass,
)
from energy_data.energon.batches import BatchDataset, GroupBatchDataset, PackingDataset
from energy_data.energon.dataset import SavableDataset
from energy_data.energon.encoder import AugmentTaskEncoder, DefaultTaskEncoder, TaskEncoder
from energy_data.energon.epochs import EpochizeDataset, LimitDataset, RepeatDataset
from energy_data.energon.get import get_train_dataset, get_val_dataset, get_val_datasets
from energy_data.energon.loaded import BaseCoreDatasetFactory
from energy_data.energon.loader import SavableDataLoader, get_loader, get_savable_loader
from energy_data.energon.mapping import (
    FilterDataset,
    GcDataset,
    IterMapDataset,
    LogSampleDataset,
    MapDataset,
    ShuffleBufferDataset,
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
from energy_data.energon.mixing import BlendDataset, ConcatDataset, MixBatchDataset
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
from energy_data.errors import FatalSampleError, SkipSample
from energy_data.tasks.batch import Batch
from energy_data.tasks.batching import (
    batch_list,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    generic_batch,
    generic_concat,
    homogeneous_concat_mix,
)
from energy_data.tasks.cooking import Cooker, basic_sample_keys, cooker
from energy_data.tasks.stateless import stateless

__version__ = version("energy_data")

BaseCoreDataset = SavableDataset  # the name that older versions had for datasets of one source

__all__ = [
    "AugmentTaskEncoder",
    "BaseCoreDataset",
    "BaseCoreDatasetFactory",
    "BaseWebdatasetFactory",
    "Batch",
    "BatchDataset",
    "BlendDataset",
    "CachePool",
    "CaptioningSample",
    "CaptioningWebdataset",
    "ConcatDataset",
    "Cooker",
    "CrudeJsonlDatasetFactory",
    "CrudeSample",
    "CrudeWebdataset",
    "DatasetLoader",
    "DatasetLoaderInterface",
    "DecodeFileStore",
    "DefaultCrudeJsonlDatasetFactory",
    "DefaultDecoderWebdatasetFactory",
    "DefaultGenericWebdatasetFactory",
    "DefaultTaskEncoder",
    "DirectLazy",
    "EpochizeDataset",
    "FatalSampleError",
    "FileCacheLazy",
    "FileStore",
    "FileStoreCachePool",
    "FileStoreDecoder",
    "FilterDataset",
    "GcDataset",
    "GroupBatchDataset",
    "ImageClassificationSample",
    "ImageClassificationWebdataset",
    "ImageSample",
    "ImageWebdataset",
    "InterleavedSample",
    "InterleavedWebdataset",
    "IterMapDataset",
    "JoinedWebdatasetFactory",
    "Lazy",
    "LimitDataset",
    "LogSampleDataset",
    "MapDataset",
    "Metadataset",
    "MetadatasetV2",
    "MixBatchDataset",
    "MockLazy",
    "MultiChoiceVQASample",
    "MultiChoiceVQAWebdataset",
    "NoCachePool",
    "OCRSample",
    "OCRWebdataset",
    "PackingDataset",
    "PrimaryFileStore",
    "RepeatDataset",
    "Sample",
    "SampleDecoder",
    "SavableDataLoader",
    "SavableDataset",
    "ShuffleBufferDataset",
    "SimilarityInterleavedSample",
    "SimilarityInterleavedWebdataset",
    "SkipSample",
    "SourceInfo",
    "StandardWebdatasetFactory",
    "SystemFileStore",
    "TaskEncoder",
    "TextSample",
    "TextWebdataset",
    "VQAOCRSample",
    "VQAOCRWebdataset",
    "VQASample",
    "VQAWebdataset",
    "VidQASample",
    "VidQAWebdataset",
    "WorkerConfig",
    "__version__",
    "basic_sample_keys",
    "batch_list",
    "batch_pad_stack",
    "batch_stack",
    "concat_pad",
    "cooker",
    "edataclass",
    "generic_batch",
    "generic_concat",
    "get_loader",
    "get_savable_loader",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "homogeneous_concat_mix",
    "load_dataset",
    "log_exception",
    "prepare_metadataset",
    "reraise_exception",
    "stateless",
    "traverse_metadataset",
]
