"""`__leaf__`: which leaf each sample of a batch is from, so losses are summed by leaf."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import torch
from tars import write_tar

from energy_data import (
    Batch,
    DefaultTaskEncoder,
    Sample,
    TaskEncoder,
    WorkerConfig,
    edataclass,
    get_loader,
    get_train_dataset,
)
from energy_data.nodes.packing import Joined, Packing

BLEND = "blend: [{path: b.jsonl}, {path: a.jsonl}]"
STAGES = """staged: {unit: steps, stages: [
  {name: x, end: 3, path: b.jsonl}, {name: y, end: 6, path: a.jsonl}, {name: z, path: c}]}"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        lines = (json.dumps({"from": name}) + "\n" for _ in range(40))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "c").mkdir()
    write_tar(tmp_path / "c" / "0.tar", [(f"{n}.json", b'{"from": "c"}') for n in range(40)])


def loader(meta, encoder=None, workers=0, **facts):
    Path("meta.yaml").write_text(f"splits: {{train: {{{meta}}}}}")
    facts = {
        "batch_size": 4,
        "task_encoder": encoder or TaskEncoder(),
        **facts,
        "microbatches_per_step": 1,
    }
    config = WorkerConfig(0, 1, workers, lanes=2)
    return get_loader(get_train_dataset("meta.yaml", worker_config=config, **facts))


def names(one, leaves):
    return [one.leaves[leaf].partition(".")[0].partition(":")[0] for leaf in leaves.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("meta", [BLEND, STAGES])
def test_each_sample_of_a_batch_has_the_place_of_its_leaf_among_all_of_the_run(meta, workers):
    with loader(meta, workers=workers) as one:
        for batch in islice(one, 9):
            assert batch["__leaf__"].dtype == torch.int64
            assert names(one, batch["__leaf__"]) == [line["from"] for line in batch["json"]]


def test_losses_by_leaf_are_one_scatter_add():
    one = loader(BLEND)
    sums = torch.zeros(len(one.leaves))
    for batch in islice(one, 5):
        losses = torch.tensor([float(line["from"] == "b") for line in batch["json"]])
        sums.scatter_add_(0, batch["__leaf__"], losses)
    assert sums.tolist() == [0, 10]


class Packs(TaskEncoder):
    packing = Packing(limits={"tokens": 3}, pack=Joined())

    def encode_sample(self, sample):
        count = 2 if sample["json"]["from"] == "a" else 1
        return {"tokens": torch.zeros(count), "__leaf__": sample["__leaf__"]}


class PacksOfTensors(Packs):
    packing = Packing(
        limits={"tokens": 3},
        pack=lambda documents: Joined()(
            [{**one, "__leaf__": torch.tensor([one["__leaf__"]])} for one in documents]
        ),
    )


@pytest.mark.parametrize("kind", [Packs, PacksOfTensors])
def test_a_pack_has_the_leaf_of_each_document_filled_up_with_minus_one(kind):
    one = loader(BLEND, kind(), packing_buffer_size=8)
    for batch in islice(one, 9):
        lengths = batch["cu_seqlens"].diff().tolist()
        expected = [[{2: 0, 1: 1, 0: -1}[length] for length in row] for row in lengths]
        assert batch["__leaf__"].tolist() == expected


@edataclass
class Line(Sample):
    json: dict


@edataclass
class Lines(Batch):
    json: list


@pytest.mark.parametrize(
    "types", [{"encoded_sample_type": Line, "raw_batch_type": Lines}, {"batch_type": Lines}]
)
def test_a_batch_of_a_declared_type_has_it_too(types):
    one = loader(BLEND, DefaultTaskEncoder(**types))
    batch = one.next_batch()
    assert names(one, batch.__leaf__) == [line["from"] for line in batch.json]


def test_a_batch_made_without_it_does_not_get_it():
    class Plain(TaskEncoder):
        def batch(self, samples):
            return {"count": len(samples)}

    assert loader(BLEND, Plain()).next_batch() == {"count": 4}
