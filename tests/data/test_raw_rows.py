"""Rows of batches: no code of the user's meets one, and batches are as if they were stacked."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from loading.runs import loader_of
from raw_data import (
    RAW,
    SHAPE,
    parts,
    payload,
    stream,
    tensors,
    values,
)
from tars import write_tar
from trees import samples

from energy_data import (
    DefaultTaskEncoder,
)
from energy_data.core.batch_memory import make_row, new_rows
from energy_data.data.decode.parts import Decoding
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.source import OpenOptions
from energy_data.data.tar import source as webdataset
from energy_data.data.tar.source import WebdatasetSource
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import LeafSpec
from energy_data.tasks.collate import collate, stack_or_list


class KeepsSamples(DefaultTaskEncoder):
    def __init__(self):
        self.seen = []

    def encode_sample(self, sample):
        self.seen.append(sample["bin"])
        return sample


class KeepsBatches(DefaultTaskEncoder):
    def __init__(self):
        self.seen = []

    def batch(self, samples):
        self.seen += [sample["bin"] for sample in samples]
        return super().batch(samples)


@pytest.mark.parametrize("encoder", [KeepsSamples(), KeepsBatches()])
def test_tensors_that_code_of_users_sees_have_memory_of_their_own(tmp_path, encoder):
    assert len(list(stream(tensors(tmp_path), task_encoder=encoder))) == 10
    assert len(encoder.seen) == 40
    assert {one.untyped_storage().nbytes() for one in encoder.seen} == {RAW.num_bytes}


class Seeing(WebdatasetSource):
    def read(self, indices):
        samples = super().read(indices)
        assert all(isinstance(sample["bin"], torch.Tensor) for sample in samples)
        return samples


def test_sources_of_users_see_tensors(tmp_path, stacked):
    options = OpenOptions(decoding=Decoding(overrides={"bin": RAW}))
    source = Seeing(str(tensors(tmp_path)), options)
    tree = samples(LeafSpec(Leaf(id="a", source=source)))
    spec = BatchSpec(of=tree, batch_size=4, collate=collate, shows_none=True)
    assert next(iter(loader_of(spec)))["bin"].shape == (4, *SHAPE)
    assert len(stacked) == 4


def test_functions_that_join_samples_see_tensors(tmp_path, monkeypatch, stacked):
    (tmp_path / "adding.py").write_text("def add(a, b):\n    return {'sum': a['bin'] + b['bin']}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    members = [{"path": str(tensors(tmp_path / name))} for name in "ab"]
    join = {"join": members, "joiner": {"__module__": "adding", "__function__": "add"}}
    given = stream({"splits": {"train": join}}, allow_modules=["adding"])
    assert len(list(given)) == 10
    assert len(stacked) == 40


def test_batches_that_are_made_meanwhile_show_no_rows_to_others(tmp_path):
    beside = open_source(tensors(tmp_path / "beside", range(4)), decoders={"bin": RAW})

    class LooksBeside(DefaultTaskEncoder):
        def encode_batch(self, batch):
            return {**batch, "beside": [one["bin"] for one in beside.read(np.arange(4))]}

    for batch in stream(tensors(tmp_path / "own"), task_encoder=LooksBeside()):
        assert all(isinstance(one, torch.Tensor) for one in batch["beside"])


def test_a_function_put_in_place_of_batch_sees_tensors(tmp_path):
    encoder, seen = DefaultTaskEncoder(), []
    encoder.batch = lambda samples: seen.extend(one["bin"] for one in samples) or collate(samples)
    assert len(list(stream(tensors(tmp_path), task_encoder=encoder))) == 10
    assert {type(one) for one in seen} == {torch.Tensor}


class Sees(DefaultTaskEncoder):
    def batch(self, samples):
        assert {type(sample["bin"]) for sample in samples} == {torch.Tensor}
        return super().batch(samples)


class Delegates(DefaultTaskEncoder):
    def batch(self, samples):
        return Sees().batch(samples)


def test_another_encoder_that_batches_sees_tensors(tmp_path):
    assert len(list(stream(tensors(tmp_path), task_encoder=Delegates()))) == 10


def test_a_function_put_in_place_of_batch_later_sees_tensors(tmp_path):
    encoder = DefaultTaskEncoder()
    given = stream(tensors(tmp_path), task_encoder=encoder)
    encoder.batch = Sees().batch
    assert len(list(given)) == 10


def test_tensors_that_come_first_in_some_samples_only_keep_to_their_field(tmp_path):
    files = []
    for number in range(16):
        both = [(f"{number:04d}.x.bin", payload(number)), (f"{number:04d}.y.bin", payload(-number))]
        files += both if number % 3 else both[::-1]
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    for batch in stream(tmp_path):
        numbers = [int(key) for key in batch["__key__"]]
        assert batch["x.bin"][:, 0, 0, 0].tolist() == numbers
        assert batch["y.bin"][:, 0, 0, 0].tolist() == [-number for number in numbers]


def test_samples_that_a_dataset_excludes_take_no_memory(tmp_path, monkeypatch):
    path = tensors(tmp_path)
    prepare(path, workers=1, force=True, split={"train": ["a.tar"]})
    split = path / ".nv-meta" / "split.yaml"
    said = yaml.safe_load(split.read_text())
    split.write_text(yaml.safe_dump({**said, "exclude": ["a.tar/0003"]}))
    made, new_rows = [], webdataset.new_rows
    monkeypatch.setattr(webdataset, "new_rows", lambda *a: made.append(a[0]) or new_rows(*a))
    batches = list(stream(path))
    numbers = [number for batch in batches for number in batch["bin"][:, 0, 0, 0].tolist()]
    assert sorted(numbers) == [number for number in range(40) if number != 3]
    assert sum(made) == 39


def test_tensors_that_make_no_batch_have_memory_of_their_own(tmp_path):
    numbers = range(20)
    files = [(f"{n:04d}.{'q.bin' if n % 4 == 0 else 'bin'}", payload(n)) for n in numbers]
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    lists = [batch["bin"] for batch in stream(tmp_path, batch_size=10)]
    found = [one for values in lists for one in values if one is not None]
    assert sorted(one[0, 0, 0].item() for one in found) == [n for n in numbers if n % 4]
    assert {one.untyped_storage().nbytes() for one in found} == {RAW.num_bytes}


def test_others_take_the_rows_of_samples_left_out(tmp_path, stacked):
    files = [file for number in range(40) for file in parts(number)]
    files[3::10] = [(name, b"too short") for name, _ in files[3::10]]
    write_tar(tmp_path / "a.tar", files)
    prepare(tmp_path, workers=1)
    for batch in islice(stream(tmp_path, repeat=True), 30):
        assert batch["bin"][:, 0, 0, 0].tolist() == [int(key) for key in batch["__key__"]]
    assert not stacked


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=8))
def test_rows_in_any_order_are_stacked_like_other_tensors(places):
    made = [new_rows(6, SHAPE, torch.float32).tensor for _ in range(2)]
    blocks = [[make_row((block, number)) for number in range(6)] for block in made]
    for number, row in enumerate(row for rows in blocks for row in rows):
        row.tensor.fill_(number)
    tensors = [values(number) for number in range(100, 106)]
    picked = [[*blocks, tensors][which][number] for which, number in places]
    wanted = torch.stack([getattr(one, "tensor", one) for one in picked])
    assert torch.equal(stack_or_list(picked), wanted)


def test_a_batch_is_changed_without_changing_another(tmp_path):
    batches = iter(stream(tensors(tmp_path)))
    first = next(batches)["bin"]
    before = next(batches)["bin"]
    kept = before.clone()
    first.fill_(-1)
    assert torch.equal(before, kept)


def test_datasets_of_equal_tensors_share_batches(tmp_path, stacked):
    for name, numbers in (("a", range(20)), ("b", range(20, 40))):
        tensors(tmp_path / name, numbers)
    blend = {"blend": [{"path": str(tmp_path / name), "weight": 1} for name in "ab"]}
    given = stream({"splits": {"train": blend}}, repeat=True, batch_size=8)
    for batch in islice(given, 20):
        assert batch["bin"][:, 0, 0, 0].tolist() == [int(key) for key in batch["__key__"]]
    assert len(stacked) <= 2 * 8  # now and then each is read by itself, to see how long it takes


def test_a_batch_is_a_tensor_of_its_own(tmp_path):
    batch = next(iter(stream(tensors(tmp_path))))["bin"]
    assert batch.detach_() is batch  # which no view allows
