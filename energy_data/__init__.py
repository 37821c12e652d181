"""One exact, resumable stream of training batches from many datasets.

    from energy_data import get_loader, get_train_dataset

    loader = get_loader(get_train_dataset("meta.yaml", batch_size=32))
    for batch in loader: ...
    state = loader.state_dict()

The order of samples is arithmetic, state belongs to lanes, hardware only hosts lanes: see
docs/design.md.
"""

from energy_data.api import (
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from energy_data.core.context import WorkerConfig
from energy_data.core.rng import sample_rng
from energy_data.core.sample import Sample, SampleSource
from energy_data.data.decode.raw_tensor import RawTensor
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
from energy_data.loading.dataset import Dataset
from energy_data.loading.iteration import LoaderIterator
from energy_data.loading.loader import Loader
from energy_data.loading.rank_loader import merge_states
from energy_data.loading.steps.counts import Step
from energy_data.loading.steps.exchange import StepsError
from energy_data.nodes.run_plan import Plan
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.order.step_rules import DocsPerStep
from energy_data.tasks.encoder import DefaultTaskEncoder, TaskEncoder

__all__ = [
    "DataError",
    "Dataset",
    "DefaultTaskEncoder",
    "DocsPerStep",
    "EnergyDataError",
    "FatalSampleError",
    "Loader",
    "LoaderIterator",
    "MissingExtraError",
    "Plan",
    "RawTensor",
    "Sample",
    "SampleError",
    "SampleSource",
    "SkipSample",
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
    "WorkerConfig",
    "get_loader",
    "get_savable_loader",
    "get_train_dataset",
    "get_val_dataset",
    "get_val_datasets",
    "merge_states",
    "sample_rng",
]
