"""Measures packing: how full packs are, documents per CPU second, bytes per pending reference.

    python -m benchmarks.measure_packing

Lengths are log-normal (median 403 tokens, mean 665), those above the limit left out. Three costs
per document, in CPU microseconds: the choice alone; a whole `PackSpec` over samples in memory
against the same samples without packing; and the state that goes with each pack to the trainer.
"""

import json
import pickle
import time
from collections.abc import Iterator
from itertools import chain, islice, product, repeat
from typing import Any

import numpy as np

from energy_data.core.context import Context
from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.loader import Loader
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.leaf import Leaf, Shuffle
from energy_data.nodes.pack import LARGEST_BLOCK, PackSpec
from energy_data.nodes.packing import Document, PackBuffer, Packing
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.testing import NumberSource

LENGTHS = np.random.default_rng(0).lognormal(6, 1, 200_000).astype(int) + 1
NUM_DOCS, LEAF_SIZE = 100_000, 50_000_000


def tokens(sample: dict[str, Any]) -> dict[str, int]:
    return {"tokens": int(LENGTHS[sample["number"] % len(LENGTHS)])}


def keys(samples: list[Any]) -> dict[str, Any]:
    return {"keys": [sample["__key__"] for sample in samples]}


def main() -> None:
    print(f"{'limit':>6} {'buffer':>6}   fill  docs/pack  choice us/doc  docs/CPU s")
    for limit, size in product((2048, 8192), (32, 128, 1000)):
        fill, per_pack, cost = choice(limit, size)
        print(f"{limit:6} {size:6}  {fill:.4f}  {per_pack:8.1f}  {cost:12.2f}  {1e6 / cost:10,.0f}")
    alone = per_document(read())
    print(f"\nreading samples in memory: {alone:.1f} us per document")
    for size in (128, 1000):
        print(f"packing them, buffer {size}: {per_document(packed(size)) - alone:+.1f} us more")
    for size in (128, 1000):
        told = state(size)
        print(f"state, buffer {size}: {', '.join(f'{fact:.1f} {what}' for what, fact in told)}")


def choice(limit: int, size: int) -> tuple[float, float, float]:
    """Return fill, documents per pack, and CPU microseconds per document, of the choice alone."""
    lengths = [length for length in LENGTHS.tolist() if length <= limit][:NUM_DOCS]
    waiting: Iterator[Document] = (Document((0, 0, 0), None, (length,), 1) for length in lengths)
    buffer = PackBuffer([limit])
    docs = packs = filled = 0
    began = time.process_time()
    while True:
        if len(buffer) < size:
            buffer.add(
                list(islice(waiting, max(size - len(buffer), min(size // 2, LARGEST_BLOCK))))
            )
        if len(buffer) < size:
            break
        pack = buffer.take()
        packs, docs = packs + 1, docs + len(pack)
        filled += sum(document.sizes[0] for document in pack)
    spent = time.process_time() - began
    return filled / packs / limit, docs / packs, spent / docs * 1e6


def read() -> ReadSpec:
    leaf = LeafSpec(Leaf(id="x", source=NumberSource(LEAF_SIZE, "x")))
    shuffle = Shuffle(buffer_size=1000, sequence_length=100)
    return ReadSpec(of=ReferencesSpec(of=leaf, shuffle=shuffle))


def packed(size: int) -> PackSpec:
    rule = Packing(limits={"tokens": 2048}, lengths=tokens, pack=keys, over_long="skip")
    return PackSpec(of=read(), packing=rule, buffer_size=size)


def per_document(spec: Any) -> float:
    """Return CPU microseconds per document of a tree, after its buffer is full."""
    node = spec.build(Context())
    node.take(1)
    docs, began = 0, time.process_time()
    while docs < NUM_DOCS:
        items = (
            node.take(64)
            if spec.item_kind == "samples" and isinstance(spec, ReadSpec)
            else node.take(1)
        )
        docs += sum(item.get("__docs__", 1) for item in items)
    return (time.process_time() - began) / docs * 1e6


def state(size: int) -> list[tuple[str, float]]:
    """Return what states cost, by what it is."""
    spec = BatchSpec(of=packed(size), batch_size=1, collate=list)
    loader = Loader(SavableDataset(spec=spec, worker_config=WorkerConfig(lanes=16)))
    empty = len(json.dumps(loader.state_dict()))
    for _ in islice(loader, 200):
        pass
    began = time.process_time()
    for _ in range(10):
        saved = loader.state_dict()
    save_ms = (time.process_time() - began) * 100
    places = loader._host.states(200)
    pending = sum(len(place["root/of"]["pending"]) for place in places.values())
    began = time.process_time()
    for place in chain.from_iterable(repeat(list(places.values()), 10)):
        pickle.loads(pickle.dumps(place, 5))
    sent_us = (time.process_time() - began) / 160 * 1e6
    return [
        ("bytes per pending reference", (len(json.dumps(saved)) - empty) / pending),
        ("ms to save 16 lanes", save_ms),
        ("us to send with a batch", sent_us),
    ]


if __name__ == "__main__":
    main()
