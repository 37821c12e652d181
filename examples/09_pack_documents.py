"""Packing: documents of all lengths into sequences of 2,048 tokens, restored in the middle."""

from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from webdataset import TarWriter

from energy_data import DefaultTaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energy_data.nodes.packing import Joined, Packing

LENGTH = 2048


class Documents(DefaultTaskEncoder[dict[str, Any], dict[str, Any], Any, dict[str, Any]]):
    """A byte is a token; what is longer than a sequence is split."""

    packing = Packing(
        limits={"tokens": LENGTH},
        over_long="split",
        pack=Joined("tokens", LENGTH, {"labels": -100}),
    )

    def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return tokens and labels of a document, int64 [length] both."""
        tokens = torch.tensor(list(sample["txt"].encode()))
        return {"tokens": tokens, "labels": torch.cat([tokens[1:], torch.tensor([-100])])}


with TemporaryDirectory() as folder:
    lengths = np.random.default_rng(0).lognormal(6, 1, 3000).astype(int) + 1
    with TarWriter(f"{folder}/shard-0.tar") as tar:
        for number, length in enumerate(lengths):
            tar.write({"__key__": f"{number}", "txt": "x" * int(length)})

    dataset = get_train_dataset(
        folder, batch_size=4, task_encoder=Documents(), worker_config=WorkerConfig(lanes=4)
    )
    loader = get_loader(dataset)
    tokens = docs = 0
    for batch in islice(loader, 100):
        assert batch["tokens"].shape == batch["labels"].shape == (4, LENGTH)
        tokens, docs = tokens + sum(batch["__tokens__"]), docs + sum(batch["__docs__"])
    print(f"{docs} documents in 400 packs, {tokens / 400 / LENGTH:.1%} full")
    assert tokens > 0.98 * 400 * LENGTH

    # What waits in the buffers of the lanes is in the state as references, and is read again.
    restored = get_loader(dataset)
    restored.load_state_dict(loader.state_dict())
    assert torch.equal(next(iter(restored))["tokens"], next(iter(loader))["tokens"])
    print(f"a state of {len(str(loader.state_dict())) / 1000:.1f} KB")
