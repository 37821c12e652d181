"""Writes datasets with the writers of Streaming, litdata and WIDS; runs in their environment.

Usage: chunk_writer.py FOLDER. Next to the datasets, it writes what is in them: mds.json and
litdata.json.
"""

# ruff: noqa: PLC0415 - the writers are imported when torchvision is replaced
from __future__ import annotations

import io
import json
import subprocess
import sys
from decimal import Decimal
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from PIL import Image

ENCODINGS = {
    "bytes": "bytes", "str": "str", "int": "int", "json": "json",
    "array": "ndarray", "typed": "ndarray:uint16", "shaped": "ndarray:int32:2,3",
    "half": "float16", "double": "float64", "large": "uint64", "small": "int8",
    "str_int": "str_int", "str_float": "str_float", "str_decimal": "str_decimal",
    "pil": "pil", "jpeg": "jpeg", "png": "png",
    "list_pil": "list[pil]", "list_jpeg": "list[jpeg]", "list_png": "list[png]",
    "jpeg_array": "jpeg_array",
}  # fmt: skip


def replace_torchvision() -> None:
    """Put empty modules in its place: Streaming imports it, and a build for CUDA may not load."""
    for name in ("", ".transforms", ".transforms.functional", ".datasets"):
        module = ModuleType(f"torchvision{name}")
        module.__spec__, module.__path__ = ModuleSpec(module.__name__, None), []
        sys.modules[module.__name__] = module
    sys.modules["torchvision.transforms.functional"].to_tensor = None
    sys.modules["torchvision.datasets"].VisionDataset = object


def picture(number: int, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(number).integers(0, 256, (8, 16, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def jpeg(image: Image.Image) -> bytes:
    """The bytes that the writers store of a picture as a JPEG."""
    stream = io.BytesIO()
    image.save(stream, "JPEG")
    return stream.getvalue()


def plain(value):
    """A value as JSON; pictures as their pixels."""
    if isinstance(value, Image.Image):
        return np.asarray(value.convert("RGB")).transpose(2, 0, 1).tolist()
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, (np.ndarray, np.generic, torch.Tensor)):
        return value.tolist()
    if isinstance(value, bytes) and value[:2] == b"\xff\xd8":
        return plain(Image.open(io.BytesIO(value)))
    return str(value) if isinstance(value, (bytes, Decimal)) else value


def mds_sample(n: int) -> dict[str, object]:
    return {
        "bytes": bytes([n]), "str": f"é{n}", "int": n - 20, "json": {"n": [n, None]},
        "array": np.arange(n + 1, dtype=np.float32).reshape(1, -1),
        "typed": np.array([n, 65535], np.uint16),
        "shaped": np.full((2, 3), n, np.int32),
        "half": np.float16(n / 8), "double": n / 10, "large": 2**64 - 1 - n, "small": -n,
        "str_int": 10**30 + n, "str_float": n / 10, "str_decimal": Decimal("1.10") + n,
        "pil": picture(n, ("RGB", "L", "1", "RGBA")[n % 4]), "jpeg": picture(n), "png": picture(n),
        "list_pil": [picture(n, "L")] * 2, "list_jpeg": [picture(n)],
        "list_png": [picture(n)] * (n % 3), "jpeg_array": [jpeg(picture(n))] * 2,
    }  # fmt: skip


def write_mds(folder: Path) -> None:
    from streaming import MDSWriter
    from streaming.base.util import merge_index

    samples = [mds_sample(n) for n in range(40)]

    def write(name: str, rows: list[dict[str, object]], compression: str | None = None) -> None:
        with MDSWriter(
            out=str(folder / name), columns=ENCODINGS, compression=compression,
            hashes=["sha1", "xxh64"], size_limit="50kb",
        ) as writer:  # fmt: skip
            for one in rows:
                writer.write(one)

    for compression in (None, "zstd:7", "gz", "bz2"):
        write(f"mds_{compression}", samples, compression)
    write("mds_merged/0", samples[:15])
    write("mds_merged/1", samples[15:])
    merge_index(
        [str(folder / "mds_merged" / part / "index.json") for part in "01"],
        str(folder / "mds_merged"),
    )
    for one in samples:
        one |= {"jpeg": jpeg(one["jpeg"]), "list_jpeg": [jpeg(one["jpeg"])]}
    (folder / "mds.json").write_text(json.dumps([plain(one) for one in samples]))


def litdata_item(n: int) -> dict[str, object]:
    return {
        "str": f"é{n}", "int": n - 3, "float": n / 4, "bool": n % 2 == 0, "bytes": bytes([n]),
        "numpy": np.full((2, 3), n, np.int16), "numpy1": np.arange(n + 1, dtype=np.uint16),
        "tensor": torch.full((2, 2), n / 2), "tensor1": torch.arange(n + 2), "pil": picture(n),
        "jpeg": Image.open(io.BytesIO(jpeg(picture(n)))),
    }  # fmt: skip


def write_litdata(folder: Path) -> None:
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    def write(name: str, items: list[object], **options: object) -> None:
        writer = BinaryWriter(str(folder / name), **{"chunk_size": 7, **options})
        for number, item in enumerate(items):
            writer.add_item(number, item)
        writer.done()
        writer.merge()

    items = [litdata_item(n) for n in range(20)]
    write("litdata", items)
    write("litdata_zstd", items, compression="zstd", compression_level="chunk")
    write("litdata_batch", items, compression="zstd", compression_level="batch")
    write("litdata_tuple", [(n, [f"é{n}", {"k": n}]) for n in range(20)])
    write("litdata_pickle", [(n, {1, 2}) for n in range(20)])
    documents = [torch.arange(n + 1) for n in range(20)]
    write("litdata_tokens", documents, chunk_size=50, item_loader=TokensLoader(block_size=10))
    for one in items:
        one["jpeg"] = jpeg(one["jpeg"])
    (folder / "litdata.json").write_text(json.dumps([plain(one) for one in items]))


def write_wids(folder: Path) -> None:
    from webdataset import TarWriter

    for shard in range(3):
        with TarWriter(str(folder / f"wids-{shard}.tar")) as tar:
            for n in range(4):
                tar.write({"__key__": f"{shard}-{n}", "txt": f"{shard}-{n}"})
    command = [sys.executable, "-m", "wids.wids_index", "create", "--output", "wids.json"]
    names = [f"wids-{shard}.tar" for shard in range(3)]
    subprocess.run([*command, *names], cwd=folder, check=True)


if __name__ == "__main__":
    replace_torchvision()
    for write in (write_mds, write_litdata, write_wids):
        write(Path(sys.argv[1]))
