"""Task encoders that pack, group, and give several samples for one, from files to batches."""

from __future__ import annotations

import json
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from webdataset import TarWriter

from energy_data import (
    DefaultTaskEncoder,
    SkipSample,
    SpecError,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energy_data.nodes.packing import Joined, Packing
from energy_data.tasks.collate import collate

SIZES = np.random.default_rng(0).integers(1, 30, 60).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts")
    with TarWriter(str(path / "shard-0.tar")) as tar:
        for number, size in enumerate(SIZES):
            tar.write({"__key__": f"{number:03d}", "txt": f"{number:03d}" * size})
    return path


def config(**facts):
    return WorkerConfig(**{"lanes": 4, **facts})


class Packed(DefaultTaskEncoder):
    """Documents of a token per three letters, packed by length."""

    packing = Packing(limits={"tokens": 40}, pack=Joined("tokens", 40, {"tokens": -1}))

    def encode_sample(self, sample):
        tokens = [int(sample["txt"][at : at + 3]) for at in range(0, len(sample["txt"]), 3)]
        return {"tokens": torch.tensor(tokens), "key": sample["__key__"]}


def test_batches_of_packs_are_tensors_with_their_documents_and_tokens_counted(folder):
    dataset = get_train_dataset(folder, batch_size=3, task_encoder=Packed(), worker_config=config())
    for batch in islice(dataset, 8):
        assert batch["tokens"].shape == batch["position_ids"].shape == (3, 40)
        assert batch["cu_seqlens"].dtype == torch.int32
        assert batch["cu_seqlens"].shape == (3, max(batch["__docs__"]) + 1)
        for row, size, docs, ends in zip(
            batch["tokens"],
            batch["__tokens__"],
            batch["__docs__"],
            batch["cu_seqlens"],
            strict=True,
        ):
            assert (row >= 0).sum() == size == ends[docs]
            assert (ends[docs:] == size).all()
            for begin, end in pairwise(ends[: docs + 1]):
                assert len(set(row[begin:end].tolist())) == 1


class Listed(Packed):
    def batch(self, samples):
        return [type(sample["tokens"]) for sample in samples]


class Marked(Joined):
    def __call__(self, documents):
        return {**super().__call__(documents), "mark": 1}


class PackedByMarked(Packed):
    packing = Packing(limits={"tokens": 40}, pack=Marked("tokens", 40))


@pytest.mark.parametrize(
    ("encoder", "field", "expected"),
    [(Listed(), None, [torch.Tensor] * 3), (PackedByMarked(), "mark", [1, 1, 1])],
)
def test_functions_of_the_user_get_and_make_whole_packs(folder, encoder, field, expected):
    dataset = get_train_dataset(folder, batch_size=3, task_encoder=encoder, worker_config=config())
    batch = next(iter(dataset))
    assert (batch if field is None else batch[field].tolist()) == expected


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("buffer_size", [None, 5])
def test_validation_packs_every_document_once_on_any_number_of_ranks(folder, ranks, buffer_size):
    documents = []
    for rank in range(ranks):
        dataset = get_val_dataset(
            folder,
            batch_size=2,
            split_part="train",
            task_encoder=Packed(),
            packing_buffer_size=buffer_size,
            worker_config=config(rank=rank, world_size=ranks),
        )
        documents += [key for batch in dataset for keys in batch["key"] for key in keys]
    assert sorted(documents) == [f"{number:03d}" for number in range(60)]


class Chosen(DefaultTaskEncoder):
    """Packing as Energon's task encoders have it: light samples are chosen, then made whole."""

    def preencode_sample(self, sample):
        return {"length": len(sample["txt"]) // 3, "txt": sample["txt"], "key": sample["__key__"]}

    def select_samples_to_pack(self, samples):
        packs, room = [], 0
        for sample in sorted(samples, key=lambda sample: sample["length"]):
            if sample["length"] > room:
                packs.append([])
                room = 40
            packs[-1].append(sample)
            room -= sample["length"]
        return packs

    def postencode_sample(self, sample):
        if sample["key"] == "007":
            raise SkipSample
        return int(sample["key"]), sample["length"]

    def pack_selected_samples(self, samples):
        return samples

    def batch(self, samples):
        return samples


def test_a_task_encoder_may_choose_what_goes_together(folder):
    dataset = get_val_dataset(
        folder,
        batch_size=2,
        split_part="train",
        task_encoder=Chosen(),
        packing_buffer_size=10,
        worker_config=config(),
    )
    packs = [pack for batch in dataset for pack in batch]
    assert all(sum(size for _, size in pack) <= 40 for pack in packs)
    expected = [(number, size) for number, size in enumerate(SIZES) if number != 7]
    assert sorted(sample for pack in packs for sample in pack) == expected


def test_without_a_buffer_such_a_task_encoder_encodes_in_two_steps(folder):
    dataset = get_val_dataset(
        folder, batch_size=60, split_part="train", task_encoder=Chosen(), worker_config=config()
    )
    (batch,) = dataset
    assert batch == [(number, size) for number, size in enumerate(SIZES) if number != 7]


class Grouped(DefaultTaskEncoder):
    """Words by length; those of long texts two by two."""

    def encode_sample(self, sample):
        for part in range(len(sample["txt"]) // 30 + 1):
            yield {"number": int(sample["__key__"]), "part": part}

    def batch_group_criterion(self, sample):
        return sample["part"], None if sample["part"] else 2


def test_several_samples_for_one_are_batched_by_group(folder):
    dataset = get_train_dataset(
        folder, batch_size=5, task_encoder=Grouped(), worker_config=config(), repeat=False
    )
    batches = list(dataset)
    assert all(len(set(batch["part"].tolist())) == 1 for batch in batches)
    given = [
        pair for b in batches for pair in zip(b["number"].tolist(), b["part"].tolist(), strict=True)
    ]
    assert sorted(given) == [(n, p) for n, size in enumerate(SIZES) for p in range(size // 10 + 1)]
    assert max(len(batch["part"]) for batch in batches if not batch["part"][0]) == 2


@pytest.mark.parametrize(
    "encoder", [Packed(), Chosen(), Grouped()], ids=lambda one: type(one).__name__
)
def test_restored_at_any_batch_it_goes_on_identically(folder, encoder):
    buffer_size = None if isinstance(encoder, Grouped) else 8
    dataset = get_train_dataset(
        folder,
        batch_size=2,
        task_encoder=encoder,
        packing_buffer_size=buffer_size,
        worker_config=config(),
    )
    expected = [str(batch) for batch in islice(get_loader(dataset), 20)]
    for rounds in range(12):
        loader, other = get_loader(dataset), get_loader(dataset)
        list(islice(loader, rounds))
        other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert [str(batch) for batch in islice(other, 6)] == expected[rounds : rounds + 6]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (
            {"packing_buffer_size": 8},
            "TaskEncoder: packing_buffer_size needs `packing`, or",
        ),
        (
            {"packing_buffer_size": 0, "task_encoder": Chosen()},
            "packing_buffer_size: must be a whole number >= 1",
        ),
        (
            {"task_encoder": Packed(), "repeat": False, "even_batches": "drop"},
            "the number of batches in a pass is not known",
        ),
    ],
)
def test_what_cannot_be_is_refused(folder, facts, message):
    with pytest.raises(SpecError, match=message):
        get_train_dataset(folder, batch_size=2, worker_config=config(), **facts)


def test_a_row_of_cu_seqlens_without_a_value_is_not_stacked():
    empty = torch.zeros(0, dtype=torch.int32)
    assert (
        collate([{"cu_seqlens": torch.arange(3)}, {"cu_seqlens": empty}])["cu_seqlens"][1] is empty
    )
