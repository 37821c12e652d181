"""Training with FSDP2 and steps of 64 documents, which continues on any number of ranks.

torchrun --nproc-per-node 2 examples/train_fsdp.py run 6   # 6 steps, then a checkpoint
torchrun --nproc-per-node 4 examples/train_fsdp.py run 12  # continues after step 6
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from webdataset import TarWriter

from energy_data import (
    DocsPerStep,
    Loader,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)


class Words(TaskEncoder):
    """A batch is the words of its documents, one after another."""

    def encode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the lengths of the words, and what counts as tokens."""
        words = torch.tensor([len(word) / 10 for word in sample["txt"].split()])
        return {"words": words, "__docs__": {"tokens": len(words)}}

    def batch(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the words of several documents."""
        words = torch.cat([sample["words"] for sample in samples])
        return {"words": words, "__docs__": [sample["__docs__"] for sample in samples]}


def make_data(folder: Path) -> None:
    """Write 400 documents."""
    folder.mkdir(parents=True)
    with TarWriter(f"{folder}/0.tar") as tar:
        for number in range(400):
            tar.write({"__key__": f"{number}", "txt": "a few words " * (1 + number % 7)})


def loader_of(folder: Path) -> Loader:
    """Return the loader of this rank."""
    config = WorkerConfig(num_workers=1, lanes=8)  # rank and world size are those of torchrun
    dataset = get_train_dataset(folder, batch_size=3, task_encoder=Words(), worker_config=config)
    # With `shares`, steps are the same on 1, 2 and 4 ranks.
    steps = DocsPerStep(target=64, mode="exact", shares=4)
    return get_loader(dataset, docs_per_step=steps, start_method="forkserver")


def train(loader: Loader, model: Any, optimizer: Any, last: int) -> list[float]:
    """Train up to a step, and return the mean loss of each step."""
    losses, total = [], 0.0
    for batch in loader:
        step = batch["__step__"]
        model.set_requires_gradient_sync(step.is_last)
        loss = model(batch["words"][:, None]).square().sum()  # 0 for an empty micro-batch
        (loss * step.dp_size / step.step_tokens).backward()
        total += loss.detach() / step.step_tokens
        if step.is_last:
            optimizer.step()
            optimizer.zero_grad()
            distributed.all_reduce(total)
            losses.append(total.item())
            total = 0.0
        if step.is_last and step.step + 1 == last:
            break
    return losses


def main(folder: Path, last: int) -> None:
    """Continue from the last checkpoint in the folder up to a step, and save."""
    distributed.init_process_group("gloo")  # nccl on GPUs
    is_first = distributed.get_rank() == 0
    if is_first and not (folder / "docs").exists():
        make_data(folder / "docs")
    distributed.barrier()  # the data is there

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    for layer in model[::2]:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader, checkpoints = loader_of(folder / "docs"), sorted(folder.glob("step-*"))

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "loader": loader}

    if checkpoints:
        dcp.load(found := state(), checkpoint_id=checkpoints[-1])
        set_state_dict(
            model,
            optimizer,
            model_state_dict=found["model"],
            optim_state_dict=found["optimizer"],
        )
    losses = train(loader, model, optimizer, last)
    dcp.save(state(), checkpoint_id=folder / f"step-{last:06}")
    if is_first:
        print(" ".join(f"{loss:.6f}" for loss in losses))
    loader.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
