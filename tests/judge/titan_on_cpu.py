"""Runs `torchtitan.train` on CPUs: python titan_on_cpu.py --module titan_on_cpu --config NAME ...

Each rank writes a line per micro-batch, its tokens and its loss, into FOLDER-DP_RANK-RANK.jsonl.
"""

# ruff: noqa: PLC0415 - torchtitan is imported when torch is ready

import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.distributed.fsdp import FSDPModule

from energy_data import TaskEncoder, get_train_dataset
from energy_data.nodes.packing import Joined, Packing

LENGTH = 32


class Documents(TaskEncoder):
    packing = Packing(limits={"tokens": LENGTH}, over_long="split", pack=Joined("tokens", LENGTH))

    def encode_sample(self, sample):
        return {"tokens": sample["tokens"]}


def windows():
    """The config of docs/trainers.md, with a small model whose attention runs on CPUs."""
    from my_run import my_run
    from torchtitan.models.common import ScaledDotProductAttention

    config = my_run()
    model = config.model_spec.model
    model.layers = model.layers[:1]
    model.layers[0].attention.inner_attention = ScaledDotProductAttention.Config()
    return config


def packs():
    config = windows()
    config.dataloader.dataset_path = "corpus.ds"
    config.dataloader.dataset = partial(get_train_dataset, task_encoder=Documents())
    return config


def use_cpus():
    """Give torch what torchtitan asks of a GPU, and of a newer torch; before it is imported."""
    torch._utils._get_available_device_type = lambda: "cpu"
    for name, found in {
        "current_device": 0,
        "get_device_name": "cpu",
        "get_device_properties": SimpleNamespace(total_memory=1),
        "memory_stats": {},
        "reset_peak_memory_stats": None,
        "empty_cache": None,
    }.items():
        setattr(torch.cpu, name, lambda *_, found=found: found)
    torch.distributed.set_timeout = lambda *_: None

    def divide(self, factor):  # gloo has no sums with a factor
        set_factor(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    set_factor = FSDPModule.set_gradient_divide_factor
    FSDPModule.set_gradient_divide_factor = divide


def note_micro_batches(trainer):
    step = trainer.forward_backward_step

    def noted(self, *, input_dict, labels, **others):
        tokens = input_dict["input"].tolist()
        loss = step(self, input_dict=input_dict, labels=labels, **others)
        part = self.dataloader.loader.dataset.worker_config.rank
        path = f"{self.config.dump_folder}-{part}-{os.environ['RANK']}.jsonl"
        with Path(path).open("a") as file:
            file.write(json.dumps([tokens, loss.item()]) + "\n")
        return loss

    trainer.forward_backward_step = noted


if __name__ == "__main__":
    use_cpus()
    from torchtitan.train import main
    from torchtitan.trainer import Trainer

    note_micro_batches(Trainer)
    main()
