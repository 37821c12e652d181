"""Checked by mypy and pyright, never run: see test_typing.py."""

from typing import Any, NamedTuple, assert_type

import torch

from energy_data import (
    DefaultTaskEncoder,
    SavableDataset,
    TaskEncoder,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    get_val_datasets,
)


class Batch(NamedTuple):
    image: torch.Tensor


class Encoder(TaskEncoder[dict[str, Any], torch.Tensor, Batch, Batch]):
    def batch(self, samples: list[torch.Tensor]) -> Batch:
        return Batch(torch.stack(samples))


class TwoSteps(DefaultTaskEncoder[dict[str, Any], torch.Tensor, list[torch.Tensor], Batch]):
    def encode_batch(self, batch: list[torch.Tensor]) -> Batch:
        return Batch(torch.stack(batch))


dataset = get_train_dataset("folder", batch_size=2, task_encoder=Encoder())
loader = get_loader(dataset)
assert_type(dataset, SavableDataset[Batch])
assert_type(loader.next_batch(), Batch)
assert_type(next(iter(loader)), Batch)
for batch in loader:
    assert_type(batch, Batch)
for batch in dataset:
    assert_type(batch, Batch)
for batch in loader.with_progress():
    assert_type(batch, Batch)
for batch in get_savable_loader(get_val_dataset("folder", batch_size=2, task_encoder=TwoSteps())):
    assert_type(batch, Batch)
for one, _leaf in get_val_datasets("folder", batch_size=2, task_encoder=Encoder()):
    assert_type(one, SavableDataset[Batch])
for plain in get_loader(get_train_dataset("folder", batch_size=2)):
    assert_type(plain, Any)  # of the type that dataset.yaml declares, or a dict
