"""Ranks that group micro-batches into steps, in threads of one process, for tests."""

from __future__ import annotations

import threading
from itertools import islice

from attrs import evolve
from torch.distributed import HashStore
from trees import leaf, samples

from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.loader import Loader
from energy_data.loading.steps.exchange import Exchange
from energy_data.loading.steps.grouper import StepGrouper, for_steps
from energy_data.nodes.batch import BatchSpec
from energy_data.order.step_rules import DocsPerStep
from energy_data.tasks import collate as collation

WAIT_S = 20


def numbered(batch: list) -> dict:
    return {"__key__": [sample["__key__"] for sample in batch]}


def varying(batch: list) -> dict:
    """Batches that hold between 0 and 6 documents, and say so."""
    keys = [sample["__key__"] for sample in batch]
    count = sum(sample["number"] for sample in batch) % 7
    return {
        "__key__": keys,
        "__docs__": {"documents": count, "tokens": 10 * count + 1, "labels": 3},
    }


def stream(collate=varying, batch_size=3, size=1000) -> BatchSpec:
    return BatchSpec(of=samples(leaf("x", size)), batch_size=batch_size, collate=collate)


STREAM = stream()


def known_stream(batch_size=3, size=1000) -> BatchSpec:
    """A stream whose batches are full, and made by no user code: all ranks know what is in them."""
    spec = stream(numbered, batch_size, size)
    return evolve(spec, collate=collation.collate, shows_none=True)


def ranks_of(spec, ranks=1, *, lanes=12, store=None, facts=None, **rules) -> list[StepGrouper]:
    """The loaders of some ranks; `rules` are of the steps, `facts` of the dataset."""
    store = HashStore() if store is None else store
    rule = DocsPerStep(**{"target": 10, "timeout_s": WAIT_S, **rules})
    loaders = []
    for rank in range(ranks):
        config = WorkerConfig(rank, ranks, lanes=lanes)
        dataset = SavableDataset(spec=spec, worker_config=config, **(facts or {}))
        loader = Loader(for_steps(dataset, rule), in_steps=True)
        loaders.append(StepGrouper(loader, rule, Exchange(config, rule.timeout_s, store)))
    return loaders


def together(loaders, work) -> list:
    """Return `work(loader)` of each rank, run at the same time; raise what one raises."""
    found: list = [None] * len(loaders)

    def run(rank):
        try:
            found[rank] = work(loaders[rank])
        except BaseException as error:  # noqa: BLE001 - raised below
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * WAIT_S)
        assert not thread.is_alive(), "a rank hangs"
    for error in found:
        if isinstance(error, Exception):
            raise error
    return found


def take(loaders, count=None) -> list[list]:
    """The next micro-batches of each rank, as (keys, step)."""
    return together(
        loaders,
        lambda loader: [(tuple(b["__key__"]), b["__step__"]) for b in islice(loader, count)],
    )


def take_steps(loaders, count) -> list[list]:
    """The next whole steps of each rank: per step, the micro-batches."""

    def work(loader):
        steps = []
        for batch in loader:
            if batch["__step__"].is_first or not steps:
                steps.append([])
            steps[-1].append((tuple(batch["__key__"]), batch["__step__"]))
            if batch["__step__"].is_last and len(steps) == count:
                break
        return steps

    return together(loaders, work)


def plain(batches) -> list:
    """Micro-batches as plain data."""
    said = [(batch["__key__"], batch["__step__"]) for batch in batches]
    return [
        [list(keys), step.step, step.index, step.step_docs, step.is_empty] for keys, step in said
    ]
