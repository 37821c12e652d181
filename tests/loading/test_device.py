"""Batches on a device, with a fake in place of CUDA."""

from __future__ import annotations

import gc
import json
import mmap
from dataclasses import dataclass
from typing import NamedTuple

import attrs
import pytest
import torch
from trees import B, finite, leaf, numbers, samples

from energy_data.core.worker_config import WorkerConfig
from energy_data.errors import SkipSample
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.lanes import InProcess
from energy_data.loading.loader import Loader
from energy_data.loading.transport.device import Cuda, OnDevice, with_tensors
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.passes import LimitSpec
from loading.runs import in_order

DEVICE = torch.device("cpu")


class Event:
    def query(self):
        return True


class FakeCuda(Cuda):
    def __init__(self):
        self.copies = 0
        self.awaited = 0

    def stream(self, device):
        return "side"

    def copied(self, tensor, device, stream):
        assert stream == "side"
        self.copies += 1
        return tensor.clone()

    def mark(self, stream):
        return Event()

    def await_copies(self, event, tensors, device):
        self.awaited += len(tensors)


def tensors(batch):
    if batch[0]["number"] == 3:
        raise SkipSample
    return {"number": torch.tensor([sample["number"] for sample in batch]), "keys": numbers(batch)}


def stream(batch_size=2):
    return BatchSpec(of=samples(leaf("x", 40)), batch_size=batch_size, collate=tensors)


def loader_on(spec, cuda=None, *, lanes=4, rank=0, ranks=1, **facts):
    run = SavableDataset(spec=spec, worker_config=WorkerConfig(rank, ranks, lanes=lanes), **facts)
    host = InProcess(run)
    host = host if cuda is None else OnDevice(host, DEVICE, ranks, cuda)
    return Loader(run, host)


def same(ours, theirs):
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one["keys"] == other["keys"]
        assert torch.equal(one["number"], other["number"])


@pytest.mark.parametrize("rank", [0, 1])
def test_batches_on_a_device_are_those_of_the_host_each_copied_once(rank):
    cuda = FakeCuda()
    loader = loader_on(stream(), cuda, rank=rank, ranks=2)
    given = in_order([loader], 20)
    same(given, in_order([loader_on(stream(), rank=rank, ranks=2)], 20))
    assert cuda.awaited == 20
    assert cuda.copies == 21  # one ahead


@pytest.mark.parametrize("steps", range(8))
def test_the_state_is_that_of_the_batch_handed_over_and_not_of_the_one_copied_ahead(steps):
    ahead, plain = loader_on(stream(), FakeCuda()), loader_on(stream())
    in_order([ahead], steps)
    in_order([plain], steps)
    assert ahead.state_dict() == plain.state_dict()
    restored = loader_on(stream(), FakeCuda())
    restored.load_state_dict(json.loads(json.dumps(ahead.state_dict())))
    same(in_order([restored], 9), in_order([plain], 9))
    same(in_order([ahead], 9), in_order([loader_on(stream())], steps + 9)[steps:])


def test_a_finite_stream_ends_and_its_next_pass_follows():
    spec = finite(leaf("x", 11), 2)
    ahead, plain = loader_on(spec, FakeCuda()), loader_on(spec)
    for _ in range(3):
        assert in_order([ahead]) == in_order([plain])
        assert ahead.state_dict() == plain.state_dict()


def test_a_virtual_epoch_keeps_the_batch_copied_ahead():
    ahead = loader_on(stream(), FakeCuda(), virtual_epoch_length=3)
    plain = loader_on(stream())
    same(in_order([ahead]) + in_order([ahead]), in_order([plain], 6))


def test_lanes_that_end_apart_are_no_special_case():
    spec = LimitSpec(of=stream(), length=7)
    same(in_order([loader_on(spec, FakeCuda())]), in_order([loader_on(spec)]))


def test_an_error_comes_when_its_batch_is_asked_for():
    def fails(batch):
        if batch[0]["__key__"] == "b/0":
            raise ValueError("as told")
        return numbers(batch)

    spec = BatchSpec(of=samples(B), batch_size=1, collate=fails)
    ahead, plain = iter(loader_on(spec, FakeCuda(), lanes=1)), iter(loader_on(spec, lanes=1))
    for _ in range(20):
        try:
            expected = next(plain)
        except ValueError:
            with pytest.raises(ValueError, match="as told"):
                next(ahead)
            assert ahead.state_dict() == plain.state_dict()
            break
        assert next(ahead) == expected


class Runtime:
    """CUDA's, as far as pinning goes; `error` is what it says."""

    def __init__(self, error: int) -> None:
        self.error, self.pinned = error, []

    def cudaHostRegister(self, address, size, flags):  # noqa: N802 - its name
        self.pinned += [] if self.error else [(address, size)]
        return self.error

    def cudaHostUnregister(self, address):  # noqa: N802 - as above
        self.pinned = [one for one in self.pinned if one[0] != address]


@pytest.mark.parametrize("error", [0, 2])
def test_memory_is_pinned_while_it_lives_or_a_warning_says_why_not(error, monkeypatch, caplog):
    runtime = Runtime(error)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    memory = mmap.mmap(-1, 1 << 20)
    Cuda().pin(memory)
    assert [size for _, size in runtime.pinned] == ([] if error else [1 << 20])
    del memory
    gc.collect()
    assert runtime.pinned == []
    assert caplog.messages == (
        [
            "pinning 1 MiB failed with CUDA error 2: batches are not pinned, and copies to the GPU "
            "are slower. Is `ulimit -l` too small?"
        ]
        if error
        else []
    )


class Named(NamedTuple):
    x: torch.Tensor
    name: str


@dataclass
class Data:
    x: torch.Tensor
    inner: list


@attrs.frozen
class Attrs:
    _x: torch.Tensor
    n: int = 3


def test_containers_keep_their_types():
    one = torch.zeros(2)
    batch = {"a": [one, (one, "s")], "n": Named(one, "n"), "d": Data(one, [one]), "t": Attrs(one)}
    changed = with_tensors(batch, lambda tensor: tensor + 1)
    assert isinstance(changed["n"], Named)
    assert isinstance(changed["d"], Data)
    assert isinstance(changed["t"], Attrs)
    found = []
    with_tensors(changed, lambda tensor: found.append(tensor) or tensor)
    assert len(found) == 6
    assert all(torch.equal(tensor, torch.ones(2)) for tensor in found)
    assert torch.equal(one, torch.zeros(2))
