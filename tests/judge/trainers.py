"""Trains one number with a trainer of others; the environment of trainers runs it.

python trainers.py TRAINER FOLDER STEPS NAME: trains to a step, saves at step 8 (7 with
transformers), and continues from there if NAME is "resumed". Each rank writes a line per
micro-batch: what it saw, and its loss.
"""

# ruff: noqa: PLC0415 - the environment has each trainer, but a run needs one

import json
import sys
from pathlib import Path

import torch

from energy_data import TaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energy_data.integrations.run_loader import RunLoader

TRAINER, FOLDER, STEPS, NAME = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
CONFIG = WorkerConfig(num_workers=1, lanes=4)
ACCUMULATED = 2 // CONFIG.world_size  # so a step has two micro-batches on any number of ranks


class Numbers(TaskEncoder):
    def encode_sample(self, sample):
        return {"__key__": sample["__key__"], "x": torch.tensor([sample["json"]["x"]])}


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return ((self.weight * x - 2 * x) ** 2).mean()


def note(batch, loss):
    with Path(FOLDER, f"{NAME}-{CONFIG.rank}.jsonl").open("a") as file:
        file.write(json.dumps([batch["__key__"], loss.item()]) + "\n")


def with_lightning(loader):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from page import run_block

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            loss = self.model(batch["x"])
            note(batch, loss)
            self.log_dict(loader.stats().scalars())
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    class OnCpus(lightning.Trainer):
        def __init__(self, **_):
            folder = FOLDER / ("unbroken" if NAME == "unbroken" else "saved")
            saves = ModelCheckpoint(folder, save_last=True, every_n_train_steps=8)
            super().__init__(
                accelerator="cpu", devices=CONFIG.world_size, max_steps=STEPS, callbacks=[saves],
                strategy="ddp" if CONFIG.world_size > 1 else "auto",
                accumulate_grad_batches=ACCUMULATED,  # counts batches of a rank
                logger=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip

    lightning.Trainer = OnCpus
    run_block("Lightning", model=Module(), loader=loader)


def with_accelerate(loader):
    from itertools import islice

    import accelerate
    from page import run_block

    from energy_data.integrations import run_loader

    class Noted(Model):
        def forward(self, batch):
            loss = super().forward(batch["x"])
            note(batch, loss)
            return loss

    class UpToTheStep(RunLoader):
        def __iter__(self):
            return islice(loader, (STEPS - 8 * (NAME == "resumed")) * ACCUMULATED)

    run_loader.RunLoader = UpToTheStep
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    accelerate.Accelerator = lambda **_: accelerator
    model = Noted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    run_block("Accelerate", model=model, optimizer=optimizer, loader=loader)
    if STEPS == 8:
        accelerator.save_state("last")
    accelerator.end_training()


def with_transformers(loader):
    from page import run_block
    from transformers import Trainer, TrainingArguments

    class Noting(Trainer):
        def compute_loss(self, model, inputs, **_):
            loss = model(inputs["x"])
            note(inputs, loss)
            return loss

    options = TrainingArguments(
        output_dir="run", max_steps=STEPS, use_cpu=True, save_steps=7,
        gradient_accumulation_steps=ACCUMULATED, ignore_data_skip=True, optim="sgd",
        learning_rate=0.5, lr_scheduler_type="constant", max_grad_norm=0, report_to=[],
        save_strategy="steps" if STEPS == 7 else "no", disable_tqdm=True,
    )  # fmt: skip
    module = sys.modules["transformers"]  # `import transformers` returns another
    module.Trainer, module.TrainingArguments = Noting, lambda *_, **__: options
    run_block("Transformers", model=Model(), loader=loader, is_resumed=NAME == "resumed")


with get_loader(
    get_train_dataset(
        str(FOLDER / "x.jsonl"), batch_size=3, worker_config=CONFIG, task_encoder=Numbers()
    )
) as LOADER:
    TRAIN = {
        "lightning": with_lightning,
        "accelerate": with_accelerate,
        "transformers": with_transformers,
    }
    TRAIN[TRAINER](LOADER)
