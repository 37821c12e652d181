"""Train through three stages, stop in each, resume: the losses are those of an unbroken run."""

import json
from dataclasses import dataclass
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import torch
from webdataset import TarWriter

from energy_data import DefaultTaskEncoder, Loader, WorkerConfig, get_loader, get_train_dataset


@dataclass
class Bytes(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Texts as numbers, cut to a length that the stages change."""

    seq_len: int = 8

    def encode_sample(self, sample: Any) -> dict[str, torch.Tensor]:
        """Return the first bytes of a text, float32 [seq_len]."""
        return {"x": torch.tensor(list(sample["txt"].encode())[: self.seq_len]) / 128}


def start(meta: dict[str, Any]) -> Loader:
    """A loader; a step is two micro-batches of 4 samples."""
    facts: dict[str, Any] = {"task_encoder": Bytes(), "worker_config": WorkerConfig(lanes=4)}
    return get_loader(get_train_dataset(meta, batch_size=4, microbatches_per_step=2, **facts))


def train(meta: dict[str, Any], stops: tuple[int, ...] = ()) -> list[float]:
    """The loss of each step; at each stop all is saved, thrown away and restored."""
    loader, model, losses = start(meta), torch.zeros(16, requires_grad=True), []
    for step in range(15):
        if step in stops:
            data, weights = json.loads(json.dumps([loader.state_dict(), model.tolist()]))
            loader, model = start(meta), torch.tensor(weights, requires_grad=True)
            loader.load_state_dict(data)
        batches = list(islice(loader, 2))
        assert {batch["__stage__"][0] for batch in batches} == {step // 5}
        loss = sum(((b["x"] @ model[: b["x"].shape[1]] - 1) ** 2).mean() for b in batches) / 2
        model = (model - 0.05 * torch.autograd.grad(loss, model)[0]).detach().requires_grad_()
        losses.append(loss.item())
    return losses


with TemporaryDirectory() as name:
    for part in ("web", "books"):
        with TarWriter(f"{name}/{part}.tar") as tar:
            for n in range(50):
                tar.write({"__key__": f"{n}", "txt": f"{n} words of {part}, and more"})
    web, books = ({"path": f"{name}/{part}.tar", "id": part} for part in ("web", "books"))
    anneal = {"name": "anneal", "end": 10, "blend": [web, {**books, "weight": 3}]}
    long = {"name": "long", "params": {"seq_len": 16, "batch_size": 2}, **web}
    stages = [{"name": "general", "end": 5, **web}, anneal, long]
    unbroken = train(run := {"splits": {"train": {"staged": {"stages": stages}}}})
    print([round(loss, 3) for loss in unbroken])
    assert train(run, stops=(3, 5, 8, 12)) == unbroken, "bit for bit"
