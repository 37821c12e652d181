"""The law with joins in the tree, over real tars: ranks, workers, saves and restores."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from tars import write_tar

from energy_data import WorkerConfig, get_loader, get_train_dataset, get_val_dataset
from energy_data.data.prepare import prepare

MIXTURE = """
splits:
  train:
    blend:
      - weight: 3
        join:
          - {path: pictures}
          - {path: texts, split_config: split.yaml, nonmatch: skip}
      - weight: 1
        join: [{path: texts}, {path: pictures, nonmatch: skip}]
        subset: {range: [25%, 100%]}
        shuffle_over_epochs_multiplier: 2
      - {path: pictures, weight: 2}
  val:
    split_part: train
    join: [{path: pictures}, {path: texts, nonmatch: skip}]
"""


@pytest.fixture
def mixture(tmp_path):
    for name, extension, numbers in (
        ("pictures", "id", range(40)),
        ("texts", "txt", range(10, 50)),
    ):
        for shard in range(2):
            files = [(f"k{n}.{extension}", str(n).encode()) for n in numbers[shard::2]]
            write_tar(tmp_path / name / f"{shard}.tar", files)
        prepare(tmp_path / name, split="1,0,0", workers=1)
    path = tmp_path / "mixture.yaml"
    path.write_text(MIXTURE)
    return path


def start(path, rank=0, ranks=1, workers=0):
    run = WorkerConfig(rank, ranks, workers, lanes=4)
    return get_loader(get_train_dataset(path, batch_size=3, worker_config=run))


def keys(batch):
    return [*batch["__key__"]]


def test_the_stream_is_the_same_on_any_ranks_and_workers(mixture):
    whole = [keys(batch) for batch in islice(start(mixture), 24)]
    ranks = [iter(start(mixture, rank, 2)) for rank in range(2)]
    assert [keys(next(ranks[g % 2])) for g in range(24)] == whole
    with_workers = start(mixture, workers=2)
    assert [keys(batch) for batch in islice(with_workers, 24)] == whole
    with_workers.close()


def test_saved_at_any_batch_it_goes_on_identically(mixture):
    whole = [keys(batch) for batch in islice(start(mixture), 24)]
    for taken in (0, 1, 7, 16):
        loader = start(mixture)
        stream = iter(loader)
        for _ in range(taken):
            next(stream)
        state = json.loads(json.dumps(loader.state_dict()))
        again = start(mixture)
        again.load_state_dict(state)
        assert [keys(batch) for batch in islice(again, 24 - taken)] == whole[taken:]


def test_validation_gives_every_joined_sample_once(mixture):
    run = WorkerConfig(0, 1)
    dataset = get_val_dataset(mixture, batch_size=7, worker_config=run, split_part="val")
    batches = list(get_loader(dataset))
    assert sorted(key for batch in batches for key in keys(batch)) == sorted(
        f"k{n}" for n in range(10, 40)
    )
    assert [text for batch in batches for text in batch["txt"]] == [
        str(number) for batch in batches for number in batch["id"].tolist()
    ]
