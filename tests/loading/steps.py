"""Ranks that group micro-batches into steps, in threads of one process, for tests."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

from attrs import evolve
from trees import leaf, samples

from energy_data.core.context import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.loader import Loader
from energy_data.loading.steps.exchange import Exchange, RankRows, StepsError, answer, failed
from energy_data.loading.steps.grouper import StepGrouper
from energy_data.loading.steps.stages import for_steps
from energy_data.nodes.batch import BatchSpec
from energy_data.order.step_rules import DocsPerStep
from energy_data.tasks import collate as collation

WAIT_S = 20


class Hub:
    """Where the messages of ranks meet."""

    def __init__(self, ranks: int, wait_s: float = WAIT_S) -> None:
        self.ranks, self.wait_s = ranks, wait_s
        self.changed = threading.Condition()
        self.tables: list[dict[int, RankRows]] = []
        self.failure: StepsError | None = None

    def put(self, place: int, rank: int, message: RankRows) -> None:
        with self.changed:
            while len(self.tables) <= place:
                self.tables.append({})
            self.tables[place][rank] = message
            self.changed.notify_all()

    def is_full(self, place: int) -> bool:
        return len(self.tables[place]) == self.ranks

    def get(self, place: int) -> list[RankRows] | None:
        with self.changed:
            self.changed.wait_for(lambda: self.is_full(place) or self.failure, self.wait_s)
            table = self.tables[place]
            return [table[rank] for rank in range(self.ranks)] if self.is_full(place) else None


class HubExchange(Exchange):
    """Exchanges between threads, one gather after another as a group does them."""

    def __init__(self, hub: Hub, rank: int) -> None:
        super().__init__()
        self.hub, self.rank, self.sent = hub, rank, 0
        self.waiting: deque = deque()

    def _post(self, message):
        self.hub.put(self.sent, self.rank, message)
        self.waiting.append((self.sent, message))
        self.sent += 1

    def _announce(self, problem, shape):
        with self.hub.changed:
            self.hub.failure = self.hub.failure or failed(self.rank, problem)
            self.hub.changed.notify_all()

    def _next(self):
        place, message = self.waiting.popleft()
        messages = self.hub.get(place)
        if messages is None:
            return 1 << 62, self.hub.failure or StepsError("nobody answers")
        found = answer(messages)
        newest = max(other.place[0] for other in messages)
        if found is None and message.place[0] == newest:
            self._post(message)
            return self._next()
        return message.place[0], found or StepsError("went to another place")


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


def ranks_of(spec, ranks=1, *, lanes=12, hub=None, facts=None, **rules) -> list[StepGrouper]:
    """The loaders of some ranks; `rules` are of the steps, `facts` of the dataset."""
    hub = hub or Hub(ranks)
    rule = DocsPerStep(**{"target": 10, "timeout_s": WAIT_S, **rules})
    loaders = []
    for rank in range(ranks):
        config = WorkerConfig(rank, ranks, lanes=lanes)
        dataset = SavableDataset(spec=spec, worker_config=config, **(facts or {}))
        loader = Loader(for_steps(dataset, rule), in_steps=True)
        loaders.append(StepGrouper(loader, rule, HubExchange(hub, rank)))
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
