"""Checks of the node contract, for our own kinds and for those of users.

assert_resumes_exactly(spec)     restored at every step, twice, through JSON
NumberSource(n)                  n samples that say their own index
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from energy_data.core.context import Context
from energy_data.core.cursor import State, restore, save
from energy_data.core.keys import key
from energy_data.core.node import EmptyGuard, Node
from energy_data.core.sample import Sample, SampleSource
from energy_data.core.spec import Spec
from energy_data.data.source import Source
from energy_data.errors import SampleError


class NumberSource(Source):
    """Samples `{"__key__": "name/index", "number": index}`; those in `bad` are bad samples."""

    def __init__(
        self, num_samples: int, name: str = "numbers", bad: frozenset[int] = frozenset()
    ) -> None:
        self.num_samples, self.name, self.bad = num_samples, name, bad
        self.num_read = 0  # samples read so far, for tests that count

    def __len__(self) -> int:
        return self.num_samples

    @property
    def fingerprint(self) -> str:
        return f"{key(self.name, self.num_samples):016x}"

    def read(self, indices: npt.NDArray[np.int64]) -> list[Sample | SampleError]:
        self.num_read += len(indices)
        return [self._sample(index) for index in indices.tolist()]

    def _sample(self, index: int) -> Sample | SampleError:
        if not 0 <= index < self.num_samples:
            raise IndexError(f"{self.name}: sample {index} of {self.num_samples} was asked for")
        if index in self.bad:
            return SampleError("bad on purpose", dataset=self.name, index=index)
        return {
            "__key__": f"{self.name}/{index}",
            "__subflavors__": {},
            "__sources__": (SampleSource(self.name, "memory", index),),
            "number": index,
        }


def assert_resumes_exactly(spec: Spec, *, lane: int = 0, lanes: int = 1, steps: int = 20) -> None:
    """Assert that a tree restored at each of its first `steps` steps goes on identically.

    Each state goes through JSON, is loaded into two fresh trees from one dict, and is saved again.
    Also: the fields of the state never change, taking it changes nothing, and an ended tree stays
    ended.
    """
    items, states = record(spec, lane=lane, lanes=lanes, steps=steps)
    assert len({_shape(state) for state in states}) == 1, "the fields of the state changed"
    for step, state in enumerate(states):
        saved = json.dumps(state)
        loaded = json.loads(saved)
        for _ in range(2):
            node = spec.build(Context(lane=lane, lanes=lanes))
            restore(node, loaded)
            assert json.dumps(save(node)) == saved, f"step {step}: saved again, it differs"
            rest = take(node, steps - step)
            assert rest == items[step:], f"step {step}: restored, it goes on differently"
        assert json.dumps(loaded) == saved, f"step {step}: loading changed the state"


def record(
    spec: Spec, *, lane: int = 0, lanes: int = 1, steps: int = 20
) -> tuple[list[Any], list[State]]:
    """Return the first items of a tree, and the state before each and after the last."""
    node = spec.build(Context(lane=lane, lanes=lanes))
    items: list[Any] = []
    states = [save(node)]
    while len(items) < steps and (drawn := take(node, 1)):
        items += drawn
        states.append(save(node))
        assert save(node) == states[-1], "taking the state changed it"
    if len(items) < steps:
        assert not take(node, 1), "an ended tree gave another item"
    return items, states


def take(node: Node[Any], count: int) -> list[Any]:
    """Return the next `count` items of a node, fewer at its end."""
    items: list[Any] = []
    with suppress(StopIteration):
        while len(items) < count:
            items.append(next_item(node))
    return items


def next_item(node: Node[Any]) -> Any:
    """Return the next item of a node. StopIteration at its end."""
    guard = EmptyGuard()
    while not (items := node.take(1)):
        guard.count(items)
    return items[0]


def _shape(state: State) -> str:
    return json.dumps({path: sorted(cursor) for path, cursor in state.items()})
