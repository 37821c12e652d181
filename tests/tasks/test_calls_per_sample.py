"""The functions that are called for every sample, by name: each of them is paid for each sample."""

from __future__ import annotations

import sys
import weakref
from collections import Counter

import pyarrow as pa
import pytest
import torch
import yaml
from pyarrow import parquet
from tars import write_tar

from energy_data.data.prepare import prepare
from energy_data.data.tar import native
from energy_data.energon import (
    Batch,
    Cooker,
    DefaultTaskEncoder,
    Sample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    edataclass,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energy_data.nodes.packing import Joined, Packing

pytestmark = pytest.mark.skipif(native.TAR is None, reason="installed without a compiler")

SAMPLES, BATCH, COUNTED = 2048, 64, 1024
TYPED = {
    "sample_type": {"__module__": "megatron.energon", "__class__": "TextSample"},
    "field_map": {"text": "txt"},
}


@edataclass
class Measured(Sample):
    text: str
    length: int


@edataclass
class MeasuredBatch(Batch):
    text: list[str]
    length: list[int]


@stateless
def cook(sample):
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


class Cooks(DefaultTaskEncoder):
    cookers = (Cooker(cook),)


class Encodes(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        return Measured.derive_from(sample, text=sample.text, length=len(sample.text))

    def batch(self, samples):
        return MeasuredBatch.from_samples(samples)


class EncodesDicts(DefaultTaskEncoder):
    @stateless
    def encode_sample(self, sample):
        sample["length"] = len(sample["txt"])
        return sample


class Packs(DefaultTaskEncoder):
    packing = Packing(limits={"tokens": 16}, pack=Joined("tokens", 16))

    @stateless
    def encode_sample(self, sample):
        return {"tokens": torch.zeros(4)}


class CooksAndEncodes(Cooks, Encodes):
    pass


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Two datasets: one of crude samples, and one of typed ones."""
    root = tmp_path_factory.mktemp("texts")
    for name in ("crude", "typed"):
        for shard in range(2):
            numbers = range(shard * SAMPLES // 2, (shard + 1) * SAMPLES // 2)
            write_tar(root / name / f"{shard}.tar", [(f"{n:05d}.txt", b"text") for n in numbers])
        prepare(root / name, workers=1)
    (root / "typed" / ".nv-meta" / "dataset.yaml").write_text(yaml.safe_dump(TYPED))
    pages = pa.table({"text": ["text"] * SAMPLES, "score": [0.5] * SAMPLES})
    parquet.write_table(pages, root / "pages.parquet", row_group_size=256)
    parts = [{"weight": 1, "path": name} for name in ("crude", "typed")]
    (root / "both.yaml").write_text(yaml.safe_dump({"splits": {"train": {"blend": parts}}}))
    return root


def calls(path, encoder, batch_size=BATCH, **options) -> Counter[str]:
    """Return how often each function is called for a sample, by name, all built-in ones as one."""
    dataset = get_train_dataset(
        path,
        batch_size=batch_size,
        shuffle_buffer_size=100,
        max_samples_per_sequence=100,
        worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0, lanes=2),
        task_encoder=encoder,
        **options,
    )
    batches = iter(get_savable_loader(dataset))
    for _ in range(8):  # both lanes are built, and their files are open
        next(batches)
    counts = Counter[str]()

    def count(frame, event, function):
        if event == "call":
            counts[frame.f_code.co_name] += 1
        elif event == "c_call":
            counts["built-in"] += 1

    sys.setprofile(count)
    try:
        for _ in range(COUNTED // BATCH):
            next(batches)
    finally:
        sys.setprofile(None)
    return Counter({name: number / COUNTED for name, number in counts.items()})


COOKS = {"__call__", "cook", "basic_sample_keys", "__init__"}
ENCODES = {"encode_sample", "derive_from", "__init__"}
PACKS = {"encode_sample", "documents", "_note", "_sizes", "_count", "_is_line"}
FOUR_IN_A_PACK = {"batch_size": BATCH // 4, "packing_buffer_size": BATCH}
MAKES = {"make", "__call__", "__init__"}  # of a field map


@pytest.mark.parametrize(
    ("name", "encoder", "options", "functions", "most"),
    [
        ("crude", None, {"samples": "dicts"}, set(), 4.5),
        ("pages.parquet", None, {}, set(), 5),
        ("crude", EncodesDicts(), {"samples": "dicts"}, {"encode_sample"}, 9),
        ("crude", Cooks(), {}, COOKS, 13),
        ("crude", CooksAndEncodes(), {}, COOKS | ENCODES, 16),
        ("typed", Encodes(), {}, MAKES | ENCODES, 19.5),
        ("both.yaml", Cooks(), {}, MAKES | COOKS, 18),
        ("crude", Packs(), FOUR_IN_A_PACK, PACKS, 46),
    ],
    ids=[
        "dicts",
        "rows",
        "encoded dicts",
        "cooked",
        "cooked and encoded",
        "typed",
        "blended",
        "packed",
    ],
)
def test_no_other_functions_are_called_for_each_sample(
    datasets, name, encoder, options, functions, most
):
    counts = calls(datasets / name, encoder, **options)
    often = {name for name, number in counts.items() if number > 0.4}
    # Comprehensions, too, are functions in some versions of Python.
    assert {name for name in often if name.isidentifier()} == functions
    assert counts.total() < most


def test_a_crude_sample_is_freed_once_it_is_cooked(datasets):
    seen, living = [], []

    def cook_and_count(sample):
        seen.append(weakref.ref(sample))
        living.append(sum(one() is not None for one in seen[-BATCH:]))
        return cook(sample)

    class Counts(DefaultTaskEncoder):
        cookers = (Cooker(cook_and_count),)

    calls(datasets / "crude", Counts())
    assert set(living) == {1}
