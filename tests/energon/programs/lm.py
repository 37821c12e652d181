"""What examples/multimodal of Megatron-LM imports and calls, in a program of our own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from megatron.core import parallel_state
from megatron.core.num_microbatches_calculator import get_num_microbatches
from megatron.energon import (
    Batch,
    CaptioningSample,
    DefaultTaskEncoder,
    LimitDataset,
    RepeatDataset,
    Sample,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_datasets,
)
from megatron.energon.task_encoder.base import stateless
from megatron.training import get_args
from megatron.training.checkpointing import get_checkpoint_name
from torch import distributed


@dataclass
class Shown(Sample):
    __key__: str
    __restore_key__: tuple[Any, ...]
    __subflavor__: dict[str, Any] | None
    __subflavors__: dict[str, Any] | None
    x: float


@dataclass
class ShownBatch(Batch):
    __key__: list[str]
    __restore_key__: tuple[Any, ...]
    __subflavor__: dict[str, Any] | None
    __subflavors__: list[dict[str, Any] | None]
    x: torch.Tensor  # float32 [samples]


class Encoder(DefaultTaskEncoder[CaptioningSample, Shown, ShownBatch, dict]):
    @stateless(restore_seeds=True)
    def encode_sample(self, sample: CaptioningSample):
        assert sample.__subflavors__["augmentation"] is False
        yield Shown(
            __key__=sample.__key__,
            __restore_key__=sample.__restore_key__,
            __subflavor__=None,
            __subflavors__=sample.__subflavors__,
            x=(sample.image.getpixel((0, 0))[0] + np.random.uniform(0, 0.1)) / 60,
        )

    def batch(self, samples: list[Shown]) -> ShownBatch:
        return ShownBatch(
            __key__=[one.__key__ for one in samples],
            __restore_key__=[one.__restore_key__ for one in samples],
            __subflavor__=None,
            __subflavors__=[one.__subflavors__ for one in samples],
            x=torch.tensor([one.x for one in samples]),
        )

    def encode_batch(self, batch: ShownBatch) -> dict:
        return {"x": batch.x}


def on_error(error: Exception, key: str | None) -> None:
    raise error


def datasets(config: WorkerConfig) -> tuple[Any, list[Any]]:
    args = get_args()
    options = {
        "batch_size": args.micro_batch_size,
        "task_encoder": Encoder(),
        "worker_config": config,
        "packing_buffer_size": args.packing_buffer_size,
        "handler": on_error,
        "image_decode": "pil",
    }
    train = get_train_dataset(
        args.data_path[0],
        virtual_epoch_length=4,
        max_samples_per_sequence=100,
        shuffle_buffer_size=100,
        **options,
    )
    val = [
        LimitDataset(
            RepeatDataset(one, worker_config=config),
            length=args.eval_iters * get_num_microbatches(),
            worker_config=config,
            reset_after_epoch=True,
        )
        for one, _ in get_val_datasets(args.data_path[0], **options)
    ]
    return train, val


class External:
    """What `--dataloader-type external` iterates and saves."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.batches = batches_for_ever(loader)

    def __next__(self) -> Any:
        return next(self.batches)

    def save_state(self) -> Any:
        return self.loader.save_state_rank()


def batches_for_ever(loader):
    while True:
        yield from loader


def file_of_rank(iteration: int) -> str:
    """The file of a data-parallel rank: others have none of their own."""
    name = f"train_dataloader_dprank{parallel_state.get_data_parallel_rank():03d}.pt"
    return get_checkpoint_name(
        get_args().dataloader_save, iteration, pipeline_rank=0, basename=name
    )


def provider() -> tuple[External, list[External]] | tuple[None, None]:
    args = get_args()
    if parallel_state.get_tensor_model_parallel_rank():
        return None, None
    config = WorkerConfig(
        rank=parallel_state.get_data_parallel_rank(),
        world_size=parallel_state.get_data_parallel_world_size(),
        num_workers=args.num_workers,
        data_parallel_group=parallel_state.get_data_parallel_group(),
        worker_debug_path=None,
        worker_log_level=0,
    )
    train, val = datasets(config)
    loader = get_savable_loader(train, worker_config=config)
    if args.load is not None:
        saved = torch.load(file_of_rank(args.iteration), map_location="cpu")
        loader.restore_state_rank(saved["dataloader_state_dict"])
    return External(loader), [External(get_loader(one, worker_config=config)) for one in val]


class Stream:
    """The batches of this rank, in the training loop: ranks without a loader receive them."""

    def __init__(self, step: int) -> None:
        get_args().load, get_args().iteration = "states" if step else None, step
        self.train, val = provider()
        assert val is None or len(next(val[0])["x"]) == 3

    def next_batch(self) -> torch.Tensor:
        sent = [None if self.train is None else next(self.train)["x"]]
        group = parallel_state.get_tensor_model_parallel_group()
        distributed.broadcast_object_list(
            sent, src=distributed.get_global_rank(group, 0), group=group
        )
        return sent[0]

    def save(self, step: int) -> None:
        if self.train is None:
            return
        state = self.train.save_state()
        file = Path(file_of_rank(step))
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"dataloader_state_dict": state}, file)
