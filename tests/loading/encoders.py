"""Task encoders that misbehave; in a module, as workers import them."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch
from trees import batches, leaf, samples

from energy_data import new_batch_tensor
from energy_data.errors import SampleError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.encode import EncodeSpec
from energy_data.testing import NumberSource

POISON = "x/17"


def is_poison(sample) -> bool:
    return sample["__key__"] == POISON


def plain(sample):
    return sample


def ends_at_once(setup):
    os._exit(3)


def exits(sample):
    if is_poison(sample):
        os._exit(3)
    return sample


def killed(sample):
    if is_poison(sample):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def segfaults(sample):
    if is_poison(sample):
        ctypes.string_at(0)
    return sample


def leaves(sample):
    if is_poison(sample):
        raise SystemExit(5)
    return sample


def dawdles(sample):
    time.sleep(0.001)
    return sample


def sleeps(sample):
    if is_poison(sample):
        time.sleep(1000)
    return sample


def sleeps_over_batch(batch):
    if is_poison(batch[0]):
        time.sleep(1000)
    return [sample["__key__"] for sample in batch]


def sleeps_in_c(sample):
    if is_poison(sample):
        ctypes.PyDLL(None).sleep(1000)  # keeps the GIL
    return sample


def waits(sample):
    """The poison, once, until a file is there; what was encoded is told in another."""
    gate = Path(os.environ["GATE"])
    if is_poison(sample):
        with suppress(FileExistsError):
            gate.with_suffix(".met").touch(exist_ok=False)
            while not gate.exists():
                time.sleep(0.005)
    with gate.with_suffix(".log").open("a") as told:
        told.write("encoded\n")
    return sample


def raises(sample):
    if is_poison(sample):
        value = {"wanted": 1}
        return value["missing"]
    return sample


class UnpicklableError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.lock = threading.Lock()


class UnmakableError(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")


def raises_unpicklable(sample):
    if is_poison(sample):
        raise UnpicklableError(1, 2)
    return sample


def raises_unmakable(sample):
    if is_poison(sample):
        raise UnmakableError(1, 2)
    return sample


def gives_lambda(batch):
    return lambda: batch


def gives_generator(batch):
    return (sample for sample in batch)


def gives_file(batch):
    return Path(os.devnull).open()


class OnlyInWorkers:
    """Pickles in a worker; raises when it is made again elsewhere."""

    def __init__(self, process: int) -> None:
        if os.getpid() != process:
            raise ValueError("cannot be made here")
        self.process = process

    def __reduce__(self):
        return OnlyInWorkers, (self.process,)


def only_in_workers(batch):
    return OnlyInWorkers(os.getpid())


def threads(batch):
    return torch.get_num_threads(), torch.cuda.is_initialized()


def private_mb() -> float:
    """What this process has written to of its memory, and shares with nobody."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty")) / 1024


def collects(batch):
    """How much less is shared after a collection."""
    before = private_mb()
    gc.collect()
    return private_mb() - before


def tasks(batch):
    """How many threads the worker has, those of C too."""
    return len(list(Path("/proc/self/task").iterdir()))


def stacked(rows):
    return torch.stack(rows)


def zeros_then_rows(rows):
    batch = torch.zeros(len(rows), *rows[0].shape, dtype=rows[0].dtype)
    for place, row in zip(batch, rows, strict=True):
        place[:] = row
    return batch


def stacked_in_place(rows):
    return torch.stack(rows, out=new_batch_tensor((len(rows), *rows[0].shape), rows[0].dtype))


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class Large:
    """Makes batches of 40 MiB, and counts the page faults of its process."""

    def __init__(self, make) -> None:
        self.make = make
        self.row = torch.ones(20 << 20, dtype=torch.uint8)

    def __call__(self, samples):
        return {"rows": self.make([self.row] * len(samples)), "page_faults": page_faults()}


def reads_environment(batch):
    return os.environ.get("SOME_SETTING")


class DyingSource(NumberSource):
    """Its decoder takes the process down."""

    def _sample(self, index: int) -> dict | SampleError:
        if index == 17:
            ctypes.string_at(0)
        return super()._sample(index)


def encoding(encode, num_samples: int = 40, batch_size: int = 2, **options):
    read = samples(leaf("x", num_samples))
    return batches(EncodeSpec(of=read, encode=encode, **options), batch_size)


def collating(collate, batch_size: int = 2):
    return BatchSpec(of=samples(leaf("x", 40)), batch_size=batch_size, collate=collate)


def slow_to_encode(sample):
    time.sleep(0.002)
    return sample


def slow_to_collate(samples):
    time.sleep(0.01)
    return [sample["__key__"] for sample in samples]


class SlowSource(NumberSource):
    """Takes time to read, and counts bytes and tokens."""

    bytes_read = tokens_read = 0

    def read(self, indices):
        time.sleep(0.004)
        self.bytes_read += 10 * len(indices)
        self.tokens_read += 3 * len(indices)
        return super().read(indices)


def tensors(batch):
    return {"n": torch.tensor([sample["number"] for sample in batch]), "keys": [1]}


class SlowToUnpickle:
    """Encodes; a process that gets it hangs before it is a worker."""

    def __call__(self, sample):
        return sample

    def __reduce__(self):
        return _slowly, ()


def _slowly():
    time.sleep(60)
    return SlowToUnpickle()
