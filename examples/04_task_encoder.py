"""A task encoder: leave samples out, make tensors of them, and pad batches."""

from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from webdataset import TarWriter

from energy_data import DefaultTaskEncoder, SkipSample, WorkerConfig, get_loader, get_train_dataset


class Bytes(DefaultTaskEncoder[dict[str, Any], Tensor, Tensor, dict[str, Tensor]]):
    """Texts as bytes, padded to the longest of the batch; texts with a digit are left out."""

    def encode_sample(self, sample: dict[str, Any]) -> Tensor:
        """Return the bytes of a text, int64 [length]."""
        if any(character.isdigit() for character in sample["txt"]):
            raise SkipSample
        return torch.tensor(list(sample["txt"].encode()))

    def batch(self, samples: list[Tensor]) -> Tensor:
        """Return the texts, int64 [texts, longest]."""
        return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)

    def encode_batch(self, batch: Tensor) -> dict[str, Tensor]:
        """Return what the model takes."""
        return {"tokens": batch, "mask": batch != 0}


with TemporaryDirectory() as folder:
    words = ["order", "is", "arithmetic", "2 + 2", "lanes", "hold", "state", "no digits"]
    with TarWriter(f"{folder}/shard-0.tar") as tar:
        for number, word in enumerate(words * 5):
            tar.write({"__key__": f"{number}", "txt": word})

    dataset = get_train_dataset(
        folder, batch_size=7, task_encoder=Bytes(), worker_config=WorkerConfig(lanes=1)
    )
    for batch in islice(get_loader(dataset), 5):
        texts = [bytes(row[row != 0].tolist()).decode() for row in batch["tokens"]]
        print(tuple(batch["tokens"].shape), texts)
        assert len(texts) == 7  # batches are full: others move up for those left out
        assert "2 + 2" not in texts
        assert batch["mask"].sum() == sum(map(len, texts))
