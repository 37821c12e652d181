"""Tars of raw tensors for the tests, and what streams of them give."""

from __future__ import annotations

import io
import tarfile

import torch

from energy_data import (
    RawTensor,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energy_data.data.prepare import prepare

SHAPE = (8, 16, 16)
RAW = RawTensor("float32", SHAPE)
BEFORE, AFTER = [("txt", b"before")], [("json", b"[1]"), ("txt", b"after")]
LAYOUTS = {"alone": ([], []), "first": ([], AFTER), "last": (BEFORE, [])}
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "pax with times": tarfile.PAX_FORMAT}


def values(number, dtype=torch.float32, shape=SHAPE):
    return torch.full(shape, number).to(dtype)


def payload(number, dtype=torch.float32, shape=SHAPE):
    return values(number, dtype, shape).contiguous().view(torch.uint8).numpy().tobytes()


def parts(number, layout="alone"):
    before, after = LAYOUTS[layout]
    return [(f"{number:04d}.{e}", d) for e, d in (*before, ("bin", payload(number)), *after)]


def tensors(folder, numbers=range(40), layout="alone", kind=tarfile.USTAR_FORMAT):
    with tarfile.open(make(folder) / "a.tar", "w", format=kind) as tar:
        for name, data in (file for number in numbers for file in parts(number, layout)):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mtime = 1.5 if kind == tarfile.PAX_FORMAT else 1  # as webdataset writes them
            tar.addfile(member, io.BytesIO(data))
    prepare(folder, workers=1)
    return folder


def make(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def as_function(data):
    """What `RAW` does, but nobody can know that: such tensors are stacked."""
    return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(SHAPE)


def stream(path, decoder=RAW, workers=0, method="fork", **options):
    options = {"batch_size": 4, "repeat": False, **options}
    config = WorkerConfig(num_workers=workers, lanes=2)
    dataset = get_train_dataset(path, worker_config=config, decoders={"bin": decoder}, **options)
    return get_loader(dataset, start_method=method)


def plain(batches):
    return [
        {name: value.tolist() if torch.is_tensor(value) else value for name, value in batch.items()}
        for batch in batches
    ]
