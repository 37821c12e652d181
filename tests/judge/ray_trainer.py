"""Trains one number with Ray Train: python ray_trainer.py RANKS FOLDER STEPS NAME.

A step has two micro-batches on any number of ranks. The run "resumed" goes on from what the run
"begun" saved at its end: to Ray they are one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_model
from trained import Model, loader_of, note

from energy_data import WorkerConfig


def train(options):
    """Be a rank: Ray has made a process group of them."""
    config = WorkerConfig(num_workers=1, lanes=4)
    model, step = Model(), 0
    with loader_of(options["folder"], config) as loader:
        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as folder:
                saved = torch.load(Path(folder, "saved.pt"))
            step = saved["step"]
            model.load_state_dict(saved["model"])
            loader.load_state_dict(saved["loader"])
        wrapped = prepare_model(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for number, batch in enumerate(loader, 1):
            loss = wrapped(batch["x"])
            note(options["folder"], options["name"], config.rank, batch, loss)
            (loss * config.world_size / 2).backward()
            if number * config.world_size % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
            if step == options["steps"]:
                break
        saved = {"step": step, "model": model.state_dict()}
        saved["loader"] = loader.state_dict(scope="run")
    with TemporaryDirectory() as folder:
        torch.save(saved, Path(folder, "saved.pt"))
        checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({}, checkpoint=checkpoint if config.rank == 0 else None)


if __name__ == "__main__":
    ranks, folder, steps, name = sys.argv[1:]
    ray.init(num_cpus=int(ranks), include_dashboard=False)
    run = "unbroken" if name == "unbroken" else "run"
    TorchTrainer(
        train,
        train_loop_config={"folder": folder, "steps": int(steps), "name": name},
        scaling_config=ray.train.ScalingConfig(num_workers=int(ranks)),
        run_config=ray.train.RunConfig(storage_path=str(Path(folder, "ray")), name=run),
    ).fit()
