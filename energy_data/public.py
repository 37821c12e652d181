"""The public names of the package, which `energy_data` imports with the first of them."""

from energy_data.api import get_train_dataset, get_val_dataset, get_val_datasets
from energy_data.core.batch_memory import new_batch_tensor
from energy_data.core.rng import sample_rng
from energy_data.core.sample import SampleSource
from energy_data.core.user_call import log_exception, reraise_exception
from energy_data.core.worker_config import WorkerConfig
from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.decode.raw_tensor import RawTensor
from energy_data.data.files.cache import CachePool, FileStoreCachePool, Lazy, NoCachePool
from energy_data.data.files.stores import FileStore
from energy_data.data.text.chat import TokenizeChat
from energy_data.data.text.tokenize import Tokenize
from energy_data.data.typed.sample_types import (
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    InterleavedSample,
    MultiChoiceVQASample,
    OCRSample,
    SimilarityInterleavedSample,
    TextSample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)
from energy_data.data.typed.samples import CrudeSample, Sample, SourceInfo, edataclass
from energy_data.errors import (
    DataError,
    EnergyDataError,
    FatalSampleError,
    MissingExtraError,
    SampleError,
    SkipSample,
    SpecError,
    StateError,
    StateIncompleteError,
    StateMismatchError,
    StateMissingError,
    StructureError,
)
from energy_data.loading.checkpoint.saved_file import read_state
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.factory import get_loader, get_savable_loader
from energy_data.loading.loader import Loader
from energy_data.loading.savable_loader import LoaderIterator, SavableDataLoader, merge_states
from energy_data.loading.steps.counts import Step
from energy_data.loading.steps.exchange import StepsError
from energy_data.nodes.packing import Packing
from energy_data.nodes.run_plan import RunPlan
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.order.step_rules import DocsPerStep
from energy_data.tasks.collate import (
    Batch,
    batch_list,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    generic_batch,
    generic_concat,
    homogeneous_concat_mix,
)
from energy_data.tasks.datasets import (
    BatchDataset,
    EpochizeDataset,
    FilterDataset,
    GcDataset,
    GroupBatchDataset,
    IterMapDataset,
    LimitDataset,
    LogSampleDataset,
    MapDataset,
    MixBatchDataset,
    PackingDataset,
)
from energy_data.tasks.encoder import TaskEncoder
from energy_data.tasks.encoders import AugmentTaskEncoder, DefaultTaskEncoder
from energy_data.tasks.functions import Cooker, basic_sample_keys, cooker, stateless
from energy_data.tasks.orders import (
    BlendDataset,
    ConcatDataset,
    RepeatDataset,
    ShuffleBufferDataset,
)

__all__ = [
    "AugmentTaskEncoder",
    "Batch",
    "BatchDataset",
    "BlendDataset",
    "CachePool",
    "CaptioningSample",
    "ConcatDataset",
    "Cooker",
    "CrudeSample",
    "DataError",
    "DefaultTaskEncoder",
    "DocsPerStep",
    "EnergyDataError",
    "EpochizeDataset",
    "FatalSampleError",
    "FileStore",
    "FileStoreCachePool",
    "FilterDataset",
    "GcDataset",
    "GroupBatchDataset",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "IterMapDataset",
    "Lazy",
    "LimitDataset",
    "Loader",
    "LoaderIterator",
    "LogSampleDataset",
    "MapDataset",
    "MissingExtraError",
    "MixBatchDataset",
    "MultiChoiceVQASample",
    "NoCachePool",
    "OCRSample",
    "Packing",
    "PackingDataset",
    "RawTensor",
    "RepeatDataset",
    "RunPlan",
    "Sample",
    "SampleDecoder",
    "SampleError",
    "SampleSource",
    "SavableDataLoader",
    "SavableDataset",
    "ShuffleBufferDataset",
    "SimilarityInterleavedSample",
    "SkipSample",
    "SourceInfo",
    "SpecError",
    "Stage",
    "StagedSpec",
    "StateError",
    "StateIncompleteError",
    "StateMismatchError",
    "StateMissingError",
    "Step",
    "StepsError",
    "StructureError",
    "TaskEncoder",
    "TextSample",
    "Tokenize",
    "TokenizeChat",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "WorkerConfig",
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
    "log_exception",
    "merge_states",
    "new_batch_tensor",
    "read_state",
    "reraise_exception",
    "sample_rng",
    "stateless",
]
