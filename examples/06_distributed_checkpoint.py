"""torch.distributed.checkpoint: saved by two ranks, beside the model, and loaded by one."""

import multiprocessing
from itertools import islice
from tempfile import TemporaryDirectory

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed
from webdataset import TarWriter

from energy_data import Loader, WorkerConfig, get_loader, get_train_dataset, read_state


def loader_of(folder: str, number: int, of: int) -> Loader:
    """Return the loader of one rank."""
    config = WorkerConfig(number, of)
    return get_loader(get_train_dataset(folder, batch_size=4, worker_config=config))


def train_and_save(folder: str, number: int, ranks: int) -> None:
    """Train and save, on one of the two ranks."""
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=number, world_size=ranks)
    model, loader = torch.nn.Linear(2, 2), loader_of(folder, number, ranks)
    for _ in islice(loader, 10):
        pass
    dcp.save({"model": model.state_dict(), "loader": loader}, checkpoint_id=f"{folder}/saved")
    distributed.destroy_process_group()


with TemporaryDirectory() as folder:
    with TarWriter(f"{folder}/shard-0.tar") as tar:
        for number in range(1000):
            tar.write({"__key__": f"{number}", "txt": f"text {number}"})
    context = multiprocessing.get_context("fork")  # as torchrun would start them
    ranks = [context.Process(target=train_and_save, args=(folder, n, 2)) for n in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()

    store = f"file://{folder}/store-of-one"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    alone, model = loader_of(folder, 0, 1), torch.nn.Linear(2, 2)
    dcp.load({"model": model.state_dict()}, checkpoint_id=f"{folder}/saved")
    alone.load_state_dict(read_state(f"{folder}/saved", key="loader"))
    distributed.destroy_process_group()
    ranks_again = [iter(loader_of(folder, number, 2)) for number in range(2)]
    expected = [next(rank)["__key__"] for _ in range(20) for rank in ranks_again]
    assert [batch["__key__"] for batch in islice(alone, 20)] == expected[20:]
    print("2 ranks saved after 10 batches each, 1 rank continues with batch 20")
