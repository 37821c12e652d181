"""Trains one number with each program, on each rank.

Before step SAVED, models and the positions of loaders are saved; from another first step, they are
restored. Each data-parallel rank writes a line per micro-batch: what it saw, and its loss.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path

import torch
from torch import distributed

import energy_data.energon

PROGRAMS, SAVED, MICROBATCHES = ("lm", "bridge", "nemo"), 3, 4


def train(name: str, first: int, last: int) -> None:
    stream = import_module(f"energon.programs.{name}").Stream(first)
    data = import_module("megatron.core.parallel_state").get_data_parallel_group()
    weight, lines = torch.load(f"{name}.pt") if first else torch.zeros(()), []
    for step in range(first, last):
        if step == SAVED > first:
            stream.save(step)
            torch.save(weight, f"{name}.pt")
        gradient = torch.zeros(())
        for _ in range(MICROBATCHES // data.size()):
            x = stream.next_batch()
            lines.append([step, x.tolist(), ((weight - 2) * x).square().mean().item()])
            gradient += 2 * ((weight - 2) * x.square()).mean() / MICROBATCHES
        distributed.all_reduce(gradient, group=data)
        weight = weight - 0.5 * gradient
    Path(f"{name}-{first}-{data.size()}-{data.rank()}.json").write_text(json.dumps(lines))


def main(folder: str, first: int, last: int, tensor: int) -> None:
    os.chdir(folder)
    energy_data.energon.install()
    sys.path.append(str(Path(__file__).with_name("stand_ins")))
    distributed.init_process_group("gloo")
    import_module("megatron.core.parallel_state").initialize_model_parallel(tensor)
    for name in PROGRAMS:
        train(name, first, last)
    distributed.destroy_process_group()
