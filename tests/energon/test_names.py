"""Energon's public names are all here, and what calls them there can call them here."""

from __future__ import annotations

import json
import os
import subprocess
from inspect import signature
from pathlib import Path

import names as describing
import pytest

import energy_data.energon
from energy_data.errors import SpecError

STORED = json.loads(Path(__file__).with_name("names_7.4.1.json").read_text())
PYTHON = os.environ.get("ENERGY_DATA_ENERGON_PYTHON", "")

# Made by the package, never by its user; what makes them has the same name.
NOT_CALLED = {
    "FileCacheLazy": "made by FileStoreCachePool",
    "SavableDataLoader": "made by get_loader and get_savable_loader",
    "SavableDataset": "made by get_train_dataset and by wrappers",
    "BaseCoreDatasetFactory": "made by load_dataset(...).get_datasets",
}
# Names of arguments that stand for the running of workers, which lanes have no use for.
_SAVING = {"save_state", "restore_state", "reset_state_own", "reset_state_deep", "restore_sample"}
_WORKERS = {"len_worker", "worker_has_samples", "assert_can_restore"}
_INSIDE_READING = {
    "add_media_metadata", "config", "iter_dataset_content", "load_sample", "prepare_dataset",
    "sample_filter", "shard_workers", "slice_workers", "split_samples_to_workers",
    "shuffle_over_epochs",
}  # fmt: skip
_WORKER_CONFIG = {
    "active_worker_batch_index", "active_worker_config", "active_worker_sample_index",
    "assert_worker", "global_worker_id", "rank_worker_id", "worker_activate",
    "worker_deactivate", "worker_id_offset", "worker_log", "worker_pop_sample_index",
    "worker_push_sample_index", "worker_seed",
}  # fmt: skip
_OF_TORCH = {"check_worker_number_rationality", "id", "multiprocessing_context", "next_id"}
NOT_HERE = {
    "Dataset": _SAVING | _WORKERS | {"dataset"},
    "Factory": _INSIDE_READING,
    "Webdataset": _INSIDE_READING,
    "Loader": _OF_TORCH | {"get_dataset", "post_initialize", "restore_sample"},
    "LoaderInterface": {"post_initialize"},
    "Metadataset": {"post_initialize"},
    "MetadatasetV2": {"post_initialize"},
    "WorkerConfig": _WORKER_CONFIG,
    "MockLazy": {"get_fn"},  # set when it is made
    "FileCacheLazy": {"entry"},  # set when it is made
}


@pytest.mark.slow
def test_the_stored_list_is_that_of_the_judge():
    if not PYTHON:
        pytest.skip("Energon is not installed")
    command = [PYTHON, describing.__file__, "megatron.energon"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == STORED


@pytest.mark.parametrize("name", STORED)
def test_the_name_is_public(name):
    assert name in energy_data.energon.__all__
    assert hasattr(energy_data.energon, name)


def test_all_public_names_are_there_and_sorted():
    for names in (energy_data.__all__, energy_data.energon.__all__[len(energy_data.__all__) :]):
        assert list(names) == sorted(names)
    assert len(set(energy_data.energon.__all__)) == len(energy_data.energon.__all__)
    assert all(hasattr(energy_data.energon, name) for name in energy_data.energon.__all__)


@pytest.mark.parametrize("name", energy_data.__all__)
def test_shared_names_are_the_same_objects(name):
    assert getattr(energy_data.energon, name) is getattr(energy_data, name)


@pytest.mark.parametrize(
    "name", [name for name, said in STORED.items() if said["parameters"] is not None]
)
def test_what_calls_it_there_can_call_it_here(name):
    if name in NOT_CALLED:
        pytest.skip(NOT_CALLED[name])
    ours = signature(getattr(energy_data.energon, name)).parameters
    takes_any = {one.kind.name for one in ours.values()}
    theirs = STORED[name]["parameters"]
    forwards = any(kind == "VAR_KEYWORD" for _, kind, _ in theirs)  # to what it is derived from
    for parameter, kind, _ in theirs:
        private = parameter.startswith("_") and not parameter.startswith("__")
        if private or kind == "VAR_KEYWORD":
            continue
        star = kind if kind.startswith("VAR") else "VAR_KEYWORD"
        assert parameter in ours or star in takes_any, f"{name} lacks {parameter}"
    positional = [one for one, kind, _ in theirs if kind == "POSITIONAL_OR_KEYWORD"]
    here = [one for one in ours if ours[one].kind.name == "POSITIONAL_OR_KEYWORD"]
    assert here[: len(positional)] == positional
    required = {one for one in ours if ours[one].default is ours[one].empty} & {
        one for one in ours if not ours[one].kind.name.startswith("VAR")
    }
    assert forwards or required <= {one for one, _, has_default in theirs if not has_default}


@pytest.mark.parametrize("name", [name for name, said in STORED.items() if "methods" in said])
def test_methods_are_there_but_for_those_that_lanes_have_no_use_for(name):
    endings = [ending for ending in NOT_HERE if name.endswith(ending)]
    absent = {method for ending in endings for method in NOT_HERE[ending]}
    thing = getattr(energy_data.energon, name)
    fields = {field for one in thing.__mro__ for field in getattr(one, "__annotations__", {})}
    here = {method for method in STORED[name]["methods"] if hasattr(thing, method)} | fields
    assert set(STORED[name]["methods"]) - here <= absent


def test_datasets_are_joined_by_metadatasets_only():
    with pytest.raises(SpecError, match="Write `join:` with the same datasets"):
        energy_data.energon.JoinedWebdatasetFactory([])
