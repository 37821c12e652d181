"""Task encoders: samples in, batches out, and what may be left out on the way."""

from __future__ import annotations

import io
import tarfile
import weakref

import numpy as np
import pytest
import torch

from energy_data import (
    DefaultTaskEncoder,
    SampleError,
    SkipSample,
    SpecError,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)
from energy_data.tasks.collate import collate

ALONE = WorkerConfig(0, 1, 0, lanes=2)


def write_tar(path, count, *, broken=()):
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            parts = {
                "txt": f"{path.parent.name} {number}".encode(),
                "cls": b"x" if number in broken else str(number).encode(),
                "npy": _npy(np.full((2, 3), number, np.float32)),
            }
            for extension, data in parts.items():
                info = tarfile.TarInfo(f"{number:04d}.{extension}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def _npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    for name, count in (("cats", 20), ("dogs", 7)):
        (tmp_path / name).mkdir()
        write_tar(tmp_path / name / "shard-0.tar", count)
    both = {"blend": [{"path": "cats", "weight": 3}, {"path": "dogs", "weight": 1}]}
    text = str(
        {
            "splits": {
                "train": both,
                "val": {
                    "concat": [
                        {"path": "cats", "split_part": "train", "subflavors": {"fur": "short"}},
                        {"path": "dogs", "split_part": "train"},
                    ]
                },
            }
        }
    )
    (tmp_path / "meta.yaml").write_text(text)
    return tmp_path


def test_a_batch_is_a_dict_of_stacked_tensors_and_lists(folder):
    dataset = get_val_dataset(folder / "meta.yaml", batch_size=4, worker_config=ALONE)
    batch = next(iter(dataset))
    assert batch["txt"] == [f"cats {number}" for number in range(4)]
    assert torch.equal(batch["cls"], torch.arange(4))
    assert batch["npy"].shape == (4, 2, 3)
    assert batch["__key__"] == ["0000", "0001", "0002", "0003"]
    assert batch["__subflavors__"] == [{"fur": "short"}] * 4
    source = batch["__sources__"][3][0]
    assert (source.dataset, source.shard, source.index) == (
        str(folder / "cats"),
        "shard-0.tar",
        3,
    )


def test_a_dataset_iterates_from_its_beginning_and_a_loader_goes_on(folder):
    dataset = get_train_dataset(folder / "cats", batch_size=5, worker_config=ALONE)
    loader = get_loader(dataset)
    first, second = next(iter(loader)), next(iter(loader))
    assert next(iter(dataset))["txt"] == next(iter(dataset))["txt"] == first["txt"]
    assert second["txt"] != first["txt"]


class Encoder(DefaultTaskEncoder):
    def encode_sample(self, sample):
        if sample["cls"] % 5 == 0:
            raise SkipSample
        return sample["cls"]

    def batch(self, samples):
        if 7 in samples:
            raise SkipSample
        return torch.tensor(samples)

    def encode_batch(self, batch):
        if 13 in batch:
            raise SkipSample
        return batch * 10


def test_each_step_of_a_task_encoder_may_leave_out(folder):
    dataset = get_val_dataset(
        folder / "cats",
        batch_size=4,
        split_part="train",
        worker_config=ALONE,
        task_encoder=Encoder(),
    )
    given = [batch.tolist() for batch in dataset]
    assert given == [[10, 20, 30], [80, 90, 110], [160, 170, 180, 190]]


def test_what_is_left_out_in_training_is_made_up_for_and_counted(folder):
    loader = get_loader(
        get_train_dataset(
            folder / "cats", batch_size=4, worker_config=ALONE, task_encoder=Encoder()
        )
    )
    for _, batch in zip(range(20), loader, strict=False):
        assert len(batch) == 4
    assert loader.stats().skipped["SkipSample or error while encoding samples"]


class Watched(DefaultTaskEncoder):
    def __init__(self):
        super().__init__()
        self.given = []

    def encode_sample(self, sample):
        self.given.append(weakref.ref(sample["npy"]))
        return sample

    def batch(self, samples):
        return [sample["cls"] for sample in samples]

    def encode_batch(self, batch):
        self.given.append(weakref.ref(array := np.array(batch)))
        return array


def test_nothing_of_a_batch_is_kept_when_it_was_handed_over(folder):
    encoder = Watched()
    stream = iter(
        get_train_dataset(folder / "cats", batch_size=4, worker_config=ALONE, task_encoder=encoder)
    )
    for _ in range(3):
        next(stream)
        assert not any(one() is not None for one in encoder.given)


class Failing(DefaultTaskEncoder):
    def encode_sample(self, sample):
        raise KeyError("caption")


def test_an_error_in_a_task_encoder_says_which_sample_it_was(folder):
    dataset = get_train_dataset(
        folder / "dogs",
        batch_size=2,
        worker_config=ALONE,
        task_encoder=Failing(),
        on_error="raise",
    )
    with pytest.raises(KeyError, match="caption") as caught:
        next(iter(dataset))
    (note,) = caught.value.__notes__
    assert note.startswith(f"while encoding dataset {folder / 'dogs'}, shard shard-0.tar, key 000")


def test_a_bad_sample_is_left_out_or_raised_as_asked(tmp_path):
    (tmp_path / "birds").mkdir()
    write_tar(tmp_path / "birds" / "shard-0.tar", 6, broken={2, 5})
    facts = {"batch_size": 3, "split_part": "train", "worker_config": ALONE}
    dataset = get_val_dataset(tmp_path / "birds", **facts)
    assert [batch["cls"].tolist() for batch in dataset] == [[0, 1], [3, 4]]
    with pytest.raises(SampleError, match="key 0002"):
        list(get_val_dataset(tmp_path / "birds", on_error="raise", **facts))


def test_validation_sets_come_apart_too(folder):
    sets = get_val_datasets(folder / "meta.yaml", batch_size=8, worker_config=ALONE)
    assert [len(factory) for _, factory in sets] == [20, 7]
    assert [sum(len(batch["txt"]) for batch in dataset) for dataset, _ in sets] == [20, 7]


def test_validation_can_be_limited(folder):
    dataset = get_val_dataset(folder / "meta.yaml", batch_size=4, limit=3, worker_config=ALONE)
    assert [batch["cls"].tolist() for batch in dataset] == [
        [4 * g + n for n in range(4)] for g in range(3)
    ]
    assert len(list(get_loader(dataset))) == 3


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"batch_size": 0}, "batch_size: must be a whole number >= 1, got 0"),
        ({"batch_size": 2.5}, "batch_size: must be a whole number >= 1, got 2.5"),
        ({"virtual_epoch_length": -1}, "virtual_epoch_length: must be a whole number >= 0"),
        ({"shuffle_buffer_size": -1}, "shuffle_buffer_size: must be a whole number >= 0"),
        ({"packing_buffer_size": True}, "packing_buffer_size: must be a whole number >= 1"),
        ({"seed": 2**70}, "seed: must be a whole number <= 9223372036854775807"),
        ({"seed": "a"}, "seed: must be a whole number >= -9223372036854775808, got 'a'"),
        ({"task_encoder": DefaultTaskEncoder}, "Write it with parentheses"),
        ({"batch_size": 2, "split_part": "trian"}, "trian"),
    ],
)
def test_what_cannot_be_is_refused(folder, facts, message):
    with pytest.raises(SpecError, match=message):
        get_train_dataset(folder / "cats", worker_config=ALONE, **{"batch_size": 2, **facts})


def test_fields_that_differ_become_lists_with_none_where_missing():
    batch = collate([{"a": torch.zeros(2), "b": 1.5}, {"a": torch.zeros(3), "c": "x"}])
    assert [tensor.shape for tensor in batch["a"]] == [(2,), (3,)]
    assert batch["b"] == [1.5, None]
    assert batch["c"] == [None, "x"]


@pytest.mark.parametrize("value", [2**70, "text", None, [1], {"a": 1}, np.array(["s"])])
def test_what_has_no_tensor_stays_a_list(value):
    assert collate([{"x": value}, {"x": value}])["x"] == [value, value]


def test_numbers_become_tensors_of_their_kind():
    batch = collate([{"i": 3, "f": 0.5, "b": True, "n": np.float32(2)}] * 2)
    assert (batch["i"].dtype, batch["f"].dtype, batch["b"].dtype) == (
        torch.int64,
        torch.float64,
        torch.bool,
    )
    assert batch["n"] == [2, 2]


def test_a_loader_of_a_path_is_an_error_that_says_what_to_pass():
    with pytest.raises(SpecError, match=r"must be a SavableDataset, got 'tars'\. Pass what get_"):
        get_loader("tars")
