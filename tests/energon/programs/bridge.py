"""What Megatron-Bridge's Energon data modules import and call, in a program of our own."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from energon.programs.lm import External, batches_for_ever
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.energon import (
    Batch,
    DefaultTaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from megatron.energon.epathlib.epath import EPath
from megatron.energon.flavors.base_dataset import Sample
from megatron.energon.flavors.webdataset import DefaultDecoderWebdatasetFactory
from torch import distributed
from webdataset.autodecode import Decoder, imagehandler


@dataclass
class ChatSample(Sample):
    conversation: Any
    imgs: list[torch.Tensor] | None = None
    videos: list[list[torch.Tensor]] | None = None


class ChatWebdataset(DefaultDecoderWebdatasetFactory[ChatSample]):
    __sample_type__ = ChatSample

    def __init__(self, path: EPath, *, auto_decode: bool = True, **kwargs: Any) -> None:
        known = inspect.signature(DefaultDecoderWebdatasetFactory.__init__).parameters
        kwargs["decoder" if "decoder" in known else "auto_decode"] = None
        super().__init__(path, **kwargs)


class Pictures:
    """Decodes a part that is a pickled list of images."""

    def __init__(self) -> None:
        self.image = imagehandler("torchrgb")

    def __call__(self, key: str, data: bytes) -> list[torch.Tensor] | None:
        if not key.endswith("jpgs"):
            return None
        return [self.image("png", one) for one in pickle.loads(data)]


@dataclass
class Example:
    """It is derived from nothing of Energon."""

    __key__: str
    __subflavors__: dict[str, Any]
    x: float


@dataclass
class Packed(Sample):
    samples: list[Example]


@dataclass
class ExampleBatch(Batch):
    __keys__: list[str] = field(default_factory=list)
    x: torch.Tensor = field(default_factory=lambda: torch.empty(0))  # float32 [samples]


def names_of(kind: type) -> set[str]:
    return (
        {one.name for one in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    )


class Encoder(DefaultTaskEncoder[ChatSample, Example, ExampleBatch, dict]):
    decoder = Decoder([imagehandler("torchrgb"), Pictures()])

    @stateless(failure_tolerance=3)
    def encode_sample(self, sample: ChatSample) -> Example:
        turns = sample.conversation
        assert isinstance(turns, list)
        x = sum(image.mean().item() for image in sample.imgs) / len(sample.imgs) + turns[0]["x"]
        return Example(__key__=sample.__key__, __subflavors__=sample.__subflavors__, x=x)

    def select_samples_to_pack(self, samples: list[Example]) -> list[list[Example]]:
        ordered = sorted(samples, key=lambda one: one.x)
        return [ordered[:3], ordered[3:]]

    @stateless
    def pack_selected_samples(self, samples: list[Example]) -> Packed:
        about = {"__key__": ",".join(one.__key__ for one in samples), "__restore_key__": ()}
        if "__subflavor__" in names_of(Sample):
            about["__subflavor__"] = None
        return Packed(**about, __subflavors__={}, samples=samples)

    def batch(self, samples: list[Packed]) -> ExampleBatch:
        (pack,) = samples
        keys = [one.__key__ for one in pack.samples]
        facts = {"__key__": keys, "__restore_key__": [() for _ in keys]}
        known = {name: value for name, value in facts.items() if name in names_of(Batch)}
        return ExampleBatch(**known, __keys__=keys, x=torch.tensor([one.x for one in pack.samples]))

    def encode_batch(self, batch: ExampleBatch) -> dict:
        facts = {one.name: getattr(batch, one.name) for one in dataclasses.fields(batch)}
        for name in ("__key__", "__keys__", "__restore_key__", "__subflavors__", "__sources__"):
            facts.pop(name, None)
        return facts


class Restored(External):
    def restore_state(self, state: Any) -> None:
        self.loader.restore_state_rank(state)
        self.batches = batches_for_ever(self.loader)


class DataModule:
    def __init__(self, path: str, groups: ProcessGroupCollection, **options: Any) -> None:
        self.path, self.groups, self.options = path, groups, options

    def loader(self, split: str) -> Restored:
        config = WorkerConfig(
            rank=self.groups.dp.rank(),
            world_size=self.groups.dp.size(),
            num_workers=0,
            data_parallel_group=self.groups.dp,
            worker_debug_path=None,
            worker_log_level=0,
        )
        dataset = get_train_dataset(
            self.path,
            batch_size=1,
            task_encoder=Encoder(),
            worker_config=config,
            packing_buffer_size=5,
            split_part=split,
            shuffle_buffer_size=100,
            max_samples_per_sequence=None,
            **self.options,
        )
        return Restored(get_savable_loader(dataset, worker_config=config))


class Stream:
    """The batches of this rank: each tensor-parallel rank has a loader, and one of them saves."""

    def __init__(self, step: int) -> None:
        self.groups = ProcessGroupCollection(
            dp=parallel_state.get_data_parallel_group(),
            tp=parallel_state.get_tensor_model_parallel_group(),
        )
        module = DataModule("chats", self.groups)
        self.train, val = module.loader("train"), module.loader("val")
        assert next(val)["x"].numel()
        if step:
            saved = json.loads(self.file(step).read_text())
            self.train.restore_state(saved["dataloader_state_dict"])

    def file(self, step: int) -> Path:
        folder = Path("energon", f"iter_{step:07d}")
        return folder / f"train_dataloader_dprank{self.groups.dp.rank():03d}.pt"

    def next_batch(self) -> torch.Tensor:
        return next(self.train)["x"]

    def save(self, step: int) -> None:
        if self.groups.tp.rank():
            return
        state = self.train.save_state()
        distributed.barrier(group=self.groups.dp)
        self.file(step).parent.mkdir(parents=True, exist_ok=True)
        self.file(step).write_text(json.dumps({"dataloader_state_dict": state}))
