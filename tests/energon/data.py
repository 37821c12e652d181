"""Small datasets of typed and of crude samples for the tests."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from energy_data.data.prepare import prepare

CAPTIONS = """
__module__: megatron.energon
__class__: StandardWebdatasetFactory
sample_type: {__module__: megatron.energon, __class__: CaptioningSample}
field_map: {image: png, caption: txt}
"""
IMAGES = """
sample_type: {__module__: megatron.energon, __class__: ImageSample}
field_map: {image: png}
"""
TEXTS = """
sample_type: {__module__: megatron.energon, __class__: TextSample}
field_map: {text: txt}
"""
CRUDE = "{__module__: megatron.energon, __class__: CrudeWebdataset}\n"


def png(number: int, size: int = 8) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), number % 256, np.uint8)).save(file, "png")
    return file.getvalue()


def make_dataset(
    folder: Path,
    said: str | None,
    *,
    count: int = 20,
    shards: int = 2,
    images: bool = True,
    name: str | None = None,
) -> Path:
    """Write `count` samples `name-number` in some tars, prepare them, and type them.

    name: by default that of the folder.
    """
    folder.mkdir(parents=True)
    name = name or folder.name
    for shard in range(shards):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
            for number in range(shard, count, shards):
                parts = {"txt": f"{name} {number}".encode()}
                if images:
                    parts["png"] = png(number)
                for extension, data in parts.items():
                    member = tarfile.TarInfo(f"{name}-{number:04d}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    if said is not None:
        prepare(folder, split={"train": ["shard-.*"]}, sqlite=True)
        use_train_everywhere(folder)
        (folder / ".nv-meta" / "dataset.yaml").write_text(said)
    return folder


def use_train_everywhere(folder: Path) -> None:
    """Edit the split of a prepared dataset: all parts have the shards of train."""
    split = folder / ".nv-meta" / "split.yaml"
    written = yaml.safe_load(split.read_text())
    train = written["split_parts"]["train"]
    written["split_parts"] = dict.fromkeys(("train", "val", "test"), train)
    split.write_text(json.dumps(written))
