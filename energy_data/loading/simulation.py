"""What a run would ask of an object store, and how long it would wait: from the order alone.

The trees of the lanes of one node run without reading samples. They say what they will need, as in
a run, to a fetcher whose store and clock are models (`remote/model.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from math import ceil, inf
from typing import Any

from attrs import evolve, field, frozen

from energy_data.core.arrays import Int64s
from energy_data.core.cut import Cut
from energy_data.core.node import Node
from energy_data.core.profiler import Fetched
from energy_data.core.sample import Sample
from energy_data.core.spec import Spec
from energy_data.core.worker_config import WorkerConfig
from energy_data.data.runs import RunOrder
from energy_data.data.source import Source, Unit
from energy_data.errors import SampleError
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.leaf import Leaf, distinct_leaves
from energy_data.nodes.read_ahead import look_ahead
from energy_data.nodes.references import LeafSpec
from energy_data.remote.cache_space import Range, merged
from energy_data.remote.client import use_client
from energy_data.remote.fetcher import REQUESTS
from energy_data.remote.model import Link, ModelClient, ModelFetcher, ModelLoop, model_path
from energy_data.remote.object_store import RemoteError

ANY_SIZE = 2**63
"""Bytes of a cache that is never full."""

_LOOKS = 20  # times that the bytes in the cache are summed

_Cost = tuple[Range, Fetched]


class UnreadSource(Source):
    """A source as if its files were in a store; its samples are empty, and nothing is read."""

    def __init__(self, inner: Source) -> None:
        self.inner = inner
        self.drawn = 0  # samples
        self.needed: set[Range] = set()
        self.is_ahead = True  # False: ranges of its samples are not known

    def __len__(self) -> int:
        return len(self.inner)

    @property
    def fingerprint(self) -> str:
        """That of the source."""
        return self.inner.fingerprint

    @property
    def cut(self) -> Cut:
        """That of the source."""
        return self.inner.cut

    @property
    def run_length(self) -> int | None:
        """That of the source."""
        return self.inner.run_length

    @property
    def piece_length(self) -> int | None:
        """That of the source."""
        return self.inner.piece_length

    @property
    def run_order(self) -> RunOrder | None:
        """That of the source."""
        return self.inner.run_order

    @property
    def is_remote(self) -> bool:
        """Whether it is read ahead: as in a store."""
        return True

    def costs(self, indices: Int64s, unit: Unit) -> Int64s | None:
        """Return those of the source."""
        return self.inner.costs(indices, unit)

    def ranges(self, first: int, count: int) -> Sequence[Range] | None:
        """Return those of the source, in the model of a store."""
        found = self.inner.ranges(first, count)
        if found is None:
            self.is_ahead = False
            return None
        known = [(model_path(path), begin, end) for path, begin, end in found]
        self.needed.update(known)
        return known

    def read(self, indices: Int64s) -> list[Sample | SampleError]:
        """Return empty samples."""
        self.drawn += len(indices)
        return [{"__key__": ""} for _ in range(len(indices))]

    @property
    def epoch_bytes(self) -> int:
        """The bytes of all samples; 0: not known. Reads indices."""
        found = self.inner.ranges(0, len(self))
        return sum(end - begin for _, begin, end in merged(found or ()))


@frozen(kw_only=True)
class LeafLoad:
    """What the ranks of a node need of a leaf; see `LeafStats`."""

    id: str
    drawn: int  # samples
    fetched_bytes: int
    cached_bytes: int
    requests: int
    wait_s: float  # of all ranks together
    epoch_bytes: int  # of all its samples; 0: not known
    is_ahead: bool  # False: it is read when it is needed, which is not counted here
    in_runs: bool  # its samples are read in groups of the file


@frozen(kw_only=True)
class Simulation:
    """What a run asks of a store; of one node."""

    batches: int  # micro-batches of each rank
    start_batches: int  # of those, the first ones of each lane
    start_wait_s: float  # that the ranks waited for these
    wait_s: float  # that they waited afterwards
    seconds: float  # afterwards, all together
    bytes_per_batch: float  # that are fetched for a micro-batch of each rank, in the second half
    requests_per_batch: float
    # Of a cache of any size:
    window_bytes: int  # the most that is held at a time: the least that a cache must have
    ahead_bytes: int  # the most that is held or will be needed, as far as lanes look ahead
    leaves: list[LeafLoad]
    refused: str | None  # why the run ends: the cache is too small

    @property
    def wait_share(self) -> float:
        """The part of the time after the start that ranks wait."""
        return self.wait_s / self.seconds if self.seconds else 0.0

    def most_batches_per_second(self, link: Link) -> float:
        """Return how many micro-batches of each rank a link feeds per second in the long run."""
        requests_per_s = REQUESTS / link.latency if link.latency else inf
        most = [
            limit / amount
            for limit, amount in (
                (link.bandwidth, self.bytes_per_batch),
                (requests_per_s, self.requests_per_batch),
            )
            if amount
        ]
        return min(most, default=inf)


@frozen(kw_only=True)
class SimulatedRun:
    """A run of training on nodes that read a store.

    Args:
        spec: The tree of batches.
        ranks: Of all nodes. A node has `ranks_per_node`.
        batch_seconds: How long a rank uses a micro-batch. All ranks use theirs at a time.
        batches: Micro-batches of each rank.
        cache: Bytes that the cache of a node may hold.
    """

    spec: Spec
    seed: int = 0
    lanes: int
    ranks: int = 1
    ranks_per_node: int = 1
    batch_seconds: float = 0.0
    batches: int
    link: Link
    cache: int
    _sources: dict[str, UnreadSource] = field(factory=dict, init=False)

    def simulate(self) -> Simulation:
        """Return what the first node asks for. Reads indices, no samples.

        Costs about as much as the order of its samples, and some 100 us for each request.
        """
        with asyncio.Runner(loop_factory=ModelLoop) as runner:
            found = runner.run(self._run())
        if found.refused is None:
            return found
        # It has ended before all windows were held.
        enough = evolve(self, cache=ANY_SIZE).simulate()
        return evolve(found, window_bytes=enough.window_bytes, ahead_bytes=enough.ahead_bytes)

    async def _run(self) -> Simulation:
        fetcher = ModelFetcher(self.cache, self.link)
        client = ModelClient(fetcher)
        use_client(client)
        nodes, loop = self._nodes(), asyncio.get_running_loop()
        look_ahead(nodes.values())
        waits, sizes, took, refused = list[float](), [(0, 0)], list[list[_Cost]](), None
        try:
            for number in range(self.batches):
                began = loop.time()
                needed = list(self._needed(nodes, client, number))
                if not needed:
                    break
                found = await asyncio.gather(*map(client.arrived, needed))
                took.append([cost for of_rank in found for cost in of_rank])
                waits.append(loop.time() - began)
                if number % max(self.batches // _LOOKS, 1) == 0:
                    sizes.append((fetcher.space.held_bytes, client.wanted_bytes))
                await asyncio.sleep(self.batch_seconds)
        except RemoteError as error:
            refused = str(error)
            sizes.append((fetcher.space.held_bytes, client.wanted_bytes))
        finally:
            fetcher.stop()
        done, start = len(waits), min(len(waits), self.lanes // self.ranks)
        late = [cost for batch in took[done // 2 :] for _, cost in batch]
        each = max(done - done // 2, 1)
        return Simulation(
            batches=done,
            start_batches=start,
            start_wait_s=sum(waits[:start]),
            wait_s=sum(waits[start:]),
            seconds=sum(waits[start:]) + (done - start) * self.batch_seconds,
            bytes_per_batch=sum(cost.fetched_bytes for cost in late) / each,
            requests_per_batch=sum(cost.requests for cost in late) / each,
            window_bytes=max(held for held, _ in sizes),
            ahead_bytes=max(wanted for _, wanted in sizes),
            leaves=self._loads(chain.from_iterable(took)),
            refused=refused,
        )

    def _nodes(self) -> dict[int, Node[Any]]:
        """Return the trees of the lanes that the node hosts."""
        self._sources.clear()
        dataset = SavableDataset[Any](
            spec=self._unread(self.spec),
            worker_config=WorkerConfig(0, self.ranks, lanes=self.lanes),
            seed=self.seed,
        )
        hosted = [lane for lane in range(self.lanes) if lane % self.ranks < self.ranks_per_node]
        return dataset.build(dict.fromkeys(hosted, dataset.start()), self.lanes)

    def _unread(self, spec: Spec) -> Spec:
        """Return a tree with the same order, whose samples are not read."""
        if isinstance(spec, LeafSpec):
            return evolve(spec, leaf=evolve(spec.leaf, source=self._source(spec.leaf)))
        return spec.with_children(map(self._unread, spec.children.values()))

    def _source(self, leaf: Leaf) -> UnreadSource:
        return self._sources.setdefault(leaf.id, UnreadSource(leaf.source))

    def _needed(
        self, nodes: dict[int, Node[Any]], client: ModelClient, number: int
    ) -> Iterable[list[tuple[str, list[Range]]]]:
        """Yield what each rank waits for in a micro-batch of each; nothing after the end."""
        for rank in range(self.ranks_per_node):
            node = nodes.get((number * self.ranks + rank) % self.lanes)
            try:
                if node is not None:
                    node.take(1)
                    yield client.waits()
            except StopIteration:
                continue

    def _loads(self, took: Iterable[_Cost]) -> list[LeafLoad]:
        """Return what each leaf took."""
        amounts, waits = Counter[tuple[str, str]](), defaultdict[str, float](float)
        leaf_of = {one: leaf for leaf, source in self._sources.items() for one in source.needed}
        for one, cost in took:
            leaf = leaf_of[one]
            for name in ("fetched_bytes", "cached_bytes", "requests"):
                amounts[leaf, name] += getattr(cost, name)
            waits[leaf] += cost.seconds
        return [
            LeafLoad(
                id=leaf,
                drawn=source.drawn,
                fetched_bytes=amounts[leaf, "fetched_bytes"],
                cached_bytes=amounts[leaf, "cached_bytes"],
                requests=amounts[leaf, "requests"],
                wait_s=waits[leaf],
                epoch_bytes=source.epoch_bytes,
                is_ahead=source.is_ahead,
                in_runs=source.run_length is not None,
            )
            for leaf, source in sorted(self._sources.items())
        ]


def batches_of_epoch(spec: Spec, batch_size: int, ranks: int) -> int:
    """Return how many micro-batches of each rank have as many samples as all leaves."""
    samples = sum(leaf.num_samples for leaf in distinct_leaves(spec))
    return ceil(samples / (batch_size * ranks))
