"""The modules that Megatron-LM, Megatron-Bridge and NeMo import names from."""

from __future__ import annotations

from importlib import import_module

import pytest

import energy_data.energon

PATHS = {
    "av": ["AVDecoder", "AVData"],
    "epathlib": ["EPath"],
    "epathlib.epath": ["EPath"],
    "errors": ["FatalSampleError", "SkipSample", "log_exception", "reraise_exception"],
    "flavors": ["BaseWebdatasetFactory", "CrudeSample"],
    "flavors.base_dataset": ["Sample", "SavableDataset"],
    "flavors.webdataset": ["DefaultDecoderWebdatasetFactory", "SampleDecoder"],
    "flavors.webdataset.base_webdataset": ["BaseWebdatasetFactory"],
    "dataloader": ["DataLoader"],
    "flavors.common.filter_index": ["build_filter_index"],
    "recipe": ["Recipe", "DatasetLoader", "prepare_recipe", "traverse_recipe"],
    "recipe.recipe": ["Recipe", "MetadatasetV2"],
    "wrappers.packing_dataset": ["PackedSamplesOutput", "PartialSample"],
    "task_encoder": ["TaskEncoder", "Cooker"],
    "task_encoder.base": ["stateless", "WorkerConfig", "DefaultTaskEncoder", "Batch"],
    "task_encoder.cooking": ["Cooker", "basic_sample_keys"],
    "task_encoder.loader": ["get_train_dataset"],
}


@pytest.mark.parametrize("path", PATHS)
def test_names_are_there(path):
    module = import_module(f"energy_data.energon.{path}")
    exec(f"import energy_data.energon.{path} as imported; assert imported is module")
    for name in PATHS[path]:
        assert hasattr(module, name)
        if hasattr(energy_data.energon, name):
            assert getattr(module, name) is getattr(energy_data.energon, name)
