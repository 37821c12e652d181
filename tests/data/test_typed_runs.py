"""Typed samples in a run: asked for, in a metadataset with other configs, over workers, resumed."""

from __future__ import annotations

import dataclasses
import json
import sys
from itertools import islice

import numpy as np
import pytest
import torch
import yaml
from tars import dataset, write_tar

from energy_data import WorkerConfig, get_loader, get_train_dataset, get_val_dataset
from energy_data.data.decode.parts import SampleDecoder
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.typed.wrap import open_typed
from energy_data.errors import SpecError

TEXT = {"__module__": "megatron.energon", "__class__": "TextSample"}


@pytest.fixture
def mixture(tmp_path):
    """Two datasets and a JSONL file, the first with another type and other splits on request."""
    for name in ("a", "b"):
        dataset(tmp_path / name, shards=2, samples=6)
        said = {"sample_type": TEXT, "field_map": {"text": "txt"}, "subflavors": {"of": name}}
        (tmp_path / name / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(said))
    other = {"sample_type": TEXT, "field_map": {"text": "json[number]"}}
    (tmp_path / "a" / ".nv-meta" / "other.yaml").write_text(yaml.safe_dump(other))
    half = {"split_parts": {"half": ["shard-001.tar"]}}
    (tmp_path / "a" / ".nv-meta" / "half.yaml").write_text(yaml.safe_dump(half))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"n": n}) + "\n" for n in range(6)))
    part = {"path": "a", "split_part": "half", "split_config": "half.yaml"}
    parts = [{**part, "dataset_config": "other.yaml", "weight": 1}, {"path": "b", "weight": 1}]
    text = {"splits": {"train": {"blend": parts}, "val": {"path": "b", "split_part": "train"}}}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(text))
    return tmp_path


def run(path, **options):
    config = WorkerConfig(lanes=4, num_workers=options.pop("num_workers", 0))
    method = options.pop("start_method", "forkserver")
    dataset = get_train_dataset(path, batch_size=2, worker_config=config, **options)
    return get_loader(dataset, start_method=method)


def plain(batch):
    return [
        value.tolist() if isinstance(value, torch.Tensor) else value
        for value in dataclasses.astuple(batch)
    ]


def test_other_configs_of_a_metadataset_are_used(mixture):
    loader = run(mixture / "m.yaml", repeat=False)
    texts = [text for batch in loader for text in batch.text]
    assert sorted(text for text in texts if isinstance(text, int)) == list(range(6, 12))
    assert sum(isinstance(text, str) for text in texts) == 12


def test_dicts_are_given_if_asked_for(mixture):
    batch = next(iter(run(mixture / "b", samples="dicts")))
    assert {"txt", "json", "bin"} <= batch.keys()
    assert batch["__subflavors__"] == [{}, {}]


@pytest.mark.parametrize("method", ["forkserver", "thread"])
def test_batches_are_the_same_over_workers_and_after_a_restore(mixture, method):
    whole = [plain(batch) for batch in islice(run(mixture / "m.yaml"), 20)]
    loader = run(mixture / "m.yaml", num_workers=2, start_method=method)
    first = [plain(batch) for batch in islice(loader, 7)]
    state = json.loads(json.dumps(loader.state_dict()))
    again = run(mixture / "m.yaml")
    again.load_state_dict(state)
    assert [*first, *(plain(batch) for batch in islice(again, 13))] == whole


def test_validation_gives_types_too(mixture):
    config = WorkerConfig(lanes=4)
    loader = get_loader(get_val_dataset(mixture / "m.yaml", batch_size=5, worker_config=config))
    keys = [key for batch in loader for key in batch.__restore_key__]
    assert [index for _, _, index in keys] == list(range(12))


def test_the_word_for_the_kind_of_samples_is_checked(mixture):
    with pytest.raises(SpecError, match="'declared' or 'dicts', got 'tpyed'"):
        run(mixture / "b", samples="tpyed")


def test_code_of_a_dataset_is_allowed_by_the_run(mixture):
    meta = mixture / "b" / ".nv-meta"
    (meta / "sample_loader.py").write_text("def sample_loader(raw):\n    return {'text': 'mine'}\n")
    said = {"sample_type": TEXT, "sample_loader": "sample_loader.py", "part_filter": ["txt"]}
    (meta / "dataset.yaml").write_text(yaml.safe_dump(said))
    with pytest.raises(SpecError, match="allow_modules="):
        run(mixture / "b")
    allowed = run(mixture / "b", allow_modules=[str(mixture / "b")])
    assert next(iter(allowed)).text == ["mine", "mine"]


def test_one_decoder_serves_datasets_that_need_different_parts(mixture):
    decoder = SampleDecoder()
    one = open_typed(mixture / "b", decoder=decoder)
    other = open_typed(mixture / "a", decoder=decoder, dataset_config="other.yaml")
    for _ in range(2):
        assert one.read(np.array([0]))[0].text.startswith("text 0")
        assert other.read(np.array([3]))[0].text == 3


def test_the_plain_way_calls_nothing_of_the_typed_one(tmp_path):
    write_tar(tmp_path / "a.tar", [(f"{n}.txt", b"x") for n in range(100)])
    prepare(tmp_path, workers=1)
    source = open_source(tmp_path)
    called = set()
    sys.setprofile(lambda frame, event, _: called.add(frame.f_code.co_filename))
    try:
        source.read(np.arange(100))
    finally:
        sys.setprofile(None)
    ours = {name.rpartition("/")[2] for name in called if "energy_data" in name}
    assert "reader.py" in ours
    assert not ours & {"typed.py", "sample_decoder.py", "field_map.py", "dataset_yaml.py"}


def test_dicts_have_no_type_so_a_file_that_gives_one_is_refused(mixture):
    split = {"train": {"path": str(mixture / "a"), "dataset_config": "other.yaml"}}
    one = WorkerConfig()
    with pytest.raises(SpecError, match=r"'other\.yaml' declares the type of samples"):
        get_train_dataset({"splits": split}, batch_size=2, worker_config=one, samples="dicts")
    get_train_dataset({"splits": split}, batch_size=2, worker_config=one)


@pytest.mark.parametrize("name", ["none.yaml", "../other.yaml"])
def test_a_file_that_gives_a_type_must_be_there_for_dicts_too(mixture, name):
    with pytest.raises(SpecError, match=name.replace(".", r"\.")):
        open_source(mixture / "a", dataset_config=name)
