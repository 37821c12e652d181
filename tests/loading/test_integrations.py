"""Adapters for trainers; tests/judge/test_trainers.py runs them in the real ones."""

from __future__ import annotations

import importlib.util
import json
from itertools import islice

import pytest

from energy_data.errors import MissingExtraError
from energy_data.integrations.run_loader import RunLoader
from loading.workers import worker_loader


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


@pytest.mark.skipif(importlib.util.find_spec("transformers"), reason="transformers is installed")
def test_without_transformers_its_extra_is_named():
    with pytest.raises(MissingExtraError, match=r"energy_data\[transformers\]"):
        importlib.import_module("energy_data.integrations.transformers")
