"""Packing images with text for a vision-language model, for variable-length attention."""

import io
from itertools import islice
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from webdataset import TarWriter

from energy_data import DefaultTaskEncoder, get_train_dataset
from energy_data.nodes.packing import Joined

LENGTH, IMAGE, PATCHES = 512, 256, 16  # tokens of a pack; token of a patch; patches of an image


class Captions(DefaultTaskEncoder[dict[str, Any], dict[str, Any], Any, dict[str, Any]]):
    """A sample is the patches of its image, then its text, a byte a token."""

    decoder = None  # images of samples that only wait for their pack are not decoded

    def preencode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return tokens, int64 [length], and the file of the image."""
        tokens = [IMAGE] * PATCHES + list(sample["txt"])
        return {"tokens": torch.tensor(tokens), "image": sample["jpg"]}

    def select_samples_to_pack(self, samples: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Return packs: two samples each, which always fit."""
        return [samples[at : at + 2] for at in range(0, len(samples), 2)]

    def postencode_sample(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Decode the image, uint8 [H, W, 3]."""
        return sample | {"image": torch.tensor(np.array(Image.open(io.BytesIO(sample["image"]))))}

    def pack_selected_samples(self, samples: list[dict[str, Any]]) -> dict[str, Any]:
        """Return tokens and position_ids, int64 [512], cu_seqlens, and a list of images."""
        return Joined("tokens", LENGTH)(samples)


with TemporaryDirectory() as folder:
    with TarWriter(f"{folder}/shard-0.tar") as tar:
        for n in range(200):
            image = np.full((32, 32, 3), n, np.uint8)
            tar.write({"__key__": f"{n:03d}", "jpg": image, "txt": "word " * (n % 48 + 1)})

    dataset = get_train_dataset(
        folder, batch_size=4, task_encoder=Captions(), packing_buffer_size=32
    )
    for batch in islice(dataset, 5):
        images = torch.stack([image for pack in batch["image"] for image in pack])
        assert (batch["tokens"] == IMAGE).sum() == PATCHES * len(images)
        # For flash_attn_varlen_func: the packs end to end, the padding of each a sequence too.
        starts = LENGTH * torch.arange(len(batch["tokens"]), dtype=torch.int32)
        ends = (batch["cu_seqlens"] + starts[:, None]).flatten()
        ends = torch.cat([ends, torch.tensor([batch["tokens"].numel()], dtype=torch.int32)])
        assert (ends.diff() >= 0).all()
    print(f"{len(images)} images in a batch of {tuple(batch['tokens'].shape)} tokens")
