"""Adapters for trainers; tests/judge/test_trainers.py runs them in the real ones."""

from __future__ import annotations

import importlib.util
import json
import sys
from itertools import islice
from types import SimpleNamespace

import pytest

from energy_data.errors import MissingExtraError, StateError, StateMissingError
from energy_data.integrations.run_loader import RunLoader
from loading.workers import worker_loader

MODULE = "energy_data.integrations.transformers"


def test_a_run_loader_continues_at_what_it_saved():
    one = RunLoader(worker_loader(workers=0))
    list(islice(one, 7))
    state = json.loads(json.dumps(one.state_dict()))
    again = RunLoader(worker_loader(workers=0))
    again.load_state_dict(state)
    assert list(islice(again, 5)) == list(islice(one, 5))
    assert len(one) == len(one.loader)


def test_an_empty_state_is_a_fresh_start():
    one = RunLoader(worker_loader(workers=0))
    one.load_state_dict({})
    assert next(iter(one)) == worker_loader(workers=0).next_batch()


@pytest.fixture
def callback(monkeypatch, tmp_path):
    """Make callbacks, and the arguments that a trainer calls them with, without transformers."""
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(TrainerCallback=object))
    module = importlib.import_module(MODULE)
    arguments = SimpleNamespace(output_dir=tmp_path, ignore_data_skip=True)
    at = SimpleNamespace(global_step=3, is_world_process_zero=True)
    yield lambda **facts: module.LoaderCallback(worker_loader(workers=0), **facts), arguments, at
    sys.modules.pop(MODULE)


def test_a_callback_restores_what_it_wrote_into_the_checkpoint(callback, tmp_path):
    make, arguments, at = callback
    one, again = make(), make()
    given = list(islice(one.loader, 7))
    (tmp_path / "checkpoint-3").mkdir()
    one.on_save(arguments, at, None)
    again.on_train_begin(arguments, at, None)
    assert again.loader.next_batch() == one.loader.next_batch() not in given


def test_a_callback_reports_what_it_cannot_restore(callback, tmp_path):
    make, arguments, at = callback
    with pytest.raises(StateMissingError, match=r"checkpoint-3.energy_data\.json: .*resume_from="):
        make().on_train_begin(arguments, at, None)
    (tmp_path / "energy_data.json").write_text('{"format": ')
    with pytest.raises(StateError, match=r"energy_data\.json: it is damaged"):
        make(resume_from=tmp_path).on_train_begin(arguments, at, None)
    arguments.ignore_data_skip = False
    with pytest.raises(StateMissingError, match="ignore_data_skip=True"):
        make().on_train_begin(arguments, at, None)


@pytest.mark.skipif(importlib.util.find_spec("transformers"), reason="transformers is installed")
def test_without_transformers_its_extra_is_named():
    with pytest.raises(MissingExtraError, match=r"energy_data\[transformers\]"):
        importlib.import_module(MODULE)
