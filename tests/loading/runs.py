"""Runs of a tree on several ranks, in one process, for tests."""

from __future__ import annotations

from itertools import islice

from energy_data.core.spec import Spec
from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.loader import Loader


def loader_of(spec: Spec, rank: int = 0, ranks: int = 1, lanes: int | None = 24, **facts) -> Loader:
    config = WorkerConfig(rank, ranks, lanes=lanes)
    return Loader(SavableDataset(spec=spec, worker_config=config, **facts))


def loaders_of(spec: Spec, ranks: int, lanes: int | None = 24, **facts) -> list[Loader]:
    return [loader_of(spec, rank, ranks, lanes, **facts) for rank in range(ranks)]


def run(loaders: list[Loader], rounds: int | None = None) -> dict:
    """Return the batches of all ranks by their number in the run, `rounds` of each rank."""
    return dict(
        sorted(
            (loader.last_batch, batch)
            for loader in loaders
            for batch in islice(iter(loader), rounds)
        )
    )


def in_order(loaders: list[Loader], rounds: int | None = None) -> list:
    """Return the batches of all ranks in the order of the run, without their numbers."""
    return list(run(loaders, rounds).values())


def run_in_step(loaders: list[Loader], rounds: int) -> dict:
    """Return as `run`, but stop before the first round in which some rank has no batch."""
    given: dict = {}
    streams = [iter(loader) for loader in loaders]
    for _ in range(rounds):
        before = [loader.state_dict() for loader in loaders]
        drawn = {}
        for loader, stream in zip(loaders, streams, strict=True):
            for batch in islice(stream, 1):
                drawn[loader.last_batch] = batch
        if len(drawn) < len(loaders):
            for loader, state in zip(loaders, before, strict=True):
                loader.load_state_dict(state)
            break
        given |= drawn
    return dict(sorted(given.items()))


def next_batch(state):
    """The micro-batch a state goes on with: the next of its lanes that comes first."""
    return min(batch for batch, *_ in state["places"].values())


def flat(keys):
    """The keys of samples, those in packs too; of pieces of samples without their bounds."""
    for key in keys:
        if isinstance(key, str):
            yield key
        elif not isinstance(key, int):
            yield from flat(key)
