"""Trains one number with a trainer of others; the environment of trainers runs it.

python trainers.py TRAINER FOLDER STEPS NAME: trains to a step, saves at step 8 (7 with some), and
continues from there if NAME is "resumed". Each rank writes a line per
micro-batch: what it saw, and its loss.
"""

# ruff: noqa: PLC0415 - the environment has each trainer, but a run needs one

import sys
from functools import partial
from pathlib import Path

import torch
from trained import Model, loader_of
from trained import note as note_of

from energy_data import WorkerConfig
from energy_data.integrations.run_loader import RunLoader

TRAINER, FOLDER, STEPS, NAME = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
ONE = {"rank": 0, "world_size": 1} if TRAINER == "deepspeed-pipeline" else {}  # stages are no ranks
CONFIG = WorkerConfig(num_workers=1, lanes=4, **ONE)
ACCUMULATED = 2 // CONFIG.world_size  # so a step has two micro-batches on any number of ranks

note = partial(note_of, FOLDER, NAME, CONFIG.rank)


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


def with_deepspeed(loader):
    import deepspeed

    deepspeed.init_distributed("gloo")
    model = Model()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=DEEPSPEED
    )
    if NAME == "resumed":
        _, client_state = engine.load_checkpoint(FOLDER / "deepspeed")
        loader.load_state_dict(client_state["loader"])
    for batch in loader:
        loss = engine(batch["x"])
        note(batch, loss)
        engine.backward(loss)
        engine.step()
        if engine.global_steps == STEPS:
            break
    if STEPS == 7:
        client_state = {"loader": loader.state_dict(scope="run")}
        engine.save_checkpoint(FOLDER / "deepspeed", client_state=client_state)


class Factor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.weight * x


def with_deepspeed_pipeline(loader):
    import deepspeed
    from deepspeed.pipe import PipelineModule

    seen = []

    def inputs_and_labels(batch):
        seen.append(batch)
        return batch["x"], 2 * batch["x"]

    deepspeed.init_distributed("gloo")
    stages = torch.distributed.get_world_size()
    model = PipelineModule([Factor(), Factor()], stages, loss_fn=torch.nn.functional.mse_loss)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=DEEPSPEED
    )
    engine.set_batch_fn(inputs_and_labels)
    engine.set_dataiterator(iter(loader))
    if NAME == "resumed":
        _, client_state = engine.load_checkpoint(FOLDER / "deepspeed", load_optimizer_states=False)
        loader.load_state_dict(client_state["loader"])
    while engine.global_steps < STEPS:
        seen.clear()
        loss = engine.train_batch()
        for batch in seen if engine.is_first_stage() else ():
            note(batch, loss)
    if STEPS == 7:
        client_state = {"loader": loader.state_dict(scope="run")}
        engine.save_checkpoint(FOLDER / "deepspeed", client_state=client_state)


DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 3,
    "gradient_accumulation_steps": ACCUMULATED,
    "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
}

with loader_of(FOLDER, CONFIG) as LOADER:
    TRAIN = {
        "lightning": with_lightning,
        "accelerate": with_accelerate,
        "transformers": with_transformers,
        "deepspeed": with_deepspeed,
        "deepspeed-pipeline": with_deepspeed_pipeline,
    }
    TRAIN[TRAINER](LOADER)
