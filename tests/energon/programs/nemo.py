"""What NeMo's Energon data modules import and call, in a program of our own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from megatron.core import parallel_state
from megatron.energon import (
    DefaultTaskEncoder,
    Sample,
    SkipSample,
    WorkerConfig,
    batch_list,
    batch_pad_stack,
    get_savable_loader,
    get_train_dataset,
)
from megatron.energon.task_encoder.base import stateless
from megatron.energon.task_encoder.cooking import Cooker, basic_sample_keys


@dataclass
class Latent(Sample):
    video: torch.Tensor  # float32 [frames]
    loss_mask: torch.Tensor | None = None


@dataclass
class RawBatch:
    __keys__: list[str]
    video: torch.Tensor  # float32 [samples, frames]


@stateless
def cook(sample: dict) -> dict:
    return dict(**basic_sample_keys(sample), txt=sample["txt"])


class Encoder(DefaultTaskEncoder):
    cookers = (Cooker(cook),)

    @stateless(restore_seeds=True)
    def encode_sample(self, sample: dict) -> Latent:
        number = int(sample["txt"].split()[-1])
        if number % 7 == 5:
            raise SkipSample
        video = torch.full((1 + number % 2,), number / 60) + torch.rand(1) / 100
        return Latent(
            __key__=sample["__key__"],
            __restore_key__=sample["__restore_key__"],
            __subflavors__=sample["__subflavors__"],
            video=video,
        )

    def batch(self, samples: list[Latent]) -> RawBatch:
        keys = batch_list([one.__key__ for one in samples])
        return RawBatch(keys, batch_pad_stack([one.video for one in samples]))

    def encode_batch(self, batch: RawBatch) -> dict:
        facts = batch.__dict__
        facts["media"] = facts["video"]
        del facts["video"]
        return facts


class Stream:
    """The batches of this rank, as a data module of Lightning has them."""

    def __init__(self, step: int) -> None:
        assert parallel_state.is_initialized()
        config = WorkerConfig(
            rank=parallel_state.get_data_parallel_rank(),
            world_size=parallel_state.get_data_parallel_world_size(),
            num_workers=0,
            data_parallel_group=parallel_state.get_data_parallel_group(),
            worker_debug_path=None,
            worker_log_level=0,
        )
        dataset = get_train_dataset(
            "texts",
            batch_size=2,
            task_encoder=Encoder(),
            worker_config=config,
            max_samples_per_sequence=None,
            shuffle_buffer_size=None,
            split_part="train",
            batch_drop_last=True,
            virtual_epoch_length=1_000_000_000,
            packing_buffer_size=None,
        )
        self.loader = get_savable_loader(dataset, worker_config=config)
        if step:
            saved = torch.load("trainer.ckpt")
            self.loader.restore_state_global(saved["dataloader_state"])
        self.batches = iter(self.loader)

    def next_batch(self) -> torch.Tensor:
        return next(self.batches)["media"].flatten()

    def save(self, step: int) -> None:
        if (
            parallel_state.get_context_parallel_rank()
            or parallel_state.get_pipeline_model_parallel_rank()
            or parallel_state.get_tensor_model_parallel_rank()
            or parallel_state.get_expert_model_parallel_rank()
        ) == 0:
            state = self.loader.save_state_global(global_dst_rank=0)
            if state is not None:
                torch.save({"dataloader_state": state}, "trainer.ckpt")
