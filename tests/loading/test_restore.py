"""A restored loader reads what comes next and nothing else, however far the run has come."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from trees import batches, samples

from energy_data.loading.checkpoint.run_state import RunState
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import LeafSpec
from energy_data.testing import NumberSource
from loading.runs import loader_of, run

LANES, SIZE = 8, 4


class Counting:
    """A tree that counts what is read and encoded."""

    def __init__(self) -> None:
        self.sources = [NumberSource(1000, "a"), NumberSource(37, "b")]
        parts = [Part(LeafSpec(Leaf(id=source.name, source=source)), 3) for source in self.sources]
        self.encoded = 0
        tree = EncodeSpec(of=samples(BlendSpec(tuple(parts))), encode=self.encode)
        self.loader = loader_of(batches(tree, SIZE), lanes=LANES)

    def encode(self, sample: Any) -> Any:
        self.encoded += 1
        return sample

    @property
    def read(self) -> int:
        return sum(source.num_read for source in self.sources)


def later(first: RunState, second: RunState, rounds: int) -> RunState:
    """The state as far behind `first` as so many times the way to `second`: places are linear."""

    def line(a: Any, b: Any) -> Any:
        return a + (b - a) * rounds if type(a) is int else a

    places = {
        lane: {
            path: {name: line(value, second.places[lane][path][name]) for name, value in at.items()}
            for path, at in place.items()
        }
        for lane, place in first.places.items()
    }
    nexts = {lane: line(batch, second.nexts[lane]) for lane, batch in first.nexts.items()}
    return evolve(first, nexts=nexts, clock=min(nexts.values()), places=places)


def state_at(batch: int) -> dict[str, Any]:
    """The state before a micro-batch of the run, one of lane 0."""
    loader, states = Counting().loader, []
    for _ in range(2):
        states.append(RunState.from_dict(loader.state_dict()))
        run([loader], LANES)
    return later(*states, batch // LANES).to_dict()


def test_states_are_computed_as_they_would_be_reached():
    loader = Counting().loader
    run([loader], 96)
    assert state_at(96) == loader.state_dict()


@pytest.mark.parametrize("batch", [0, 96, 10**8])
@pytest.mark.parametrize("rounds", [1, LANES])
def test_after_a_restore_no_sample_is_read_that_is_not_given(batch, rounds):
    counting = Counting()
    counting.loader.load_state_dict(state_at(batch))
    given = run([counting.loader], rounds)
    assert list(given) == list(range(batch, batch + rounds))
    assert counting.encoded == counting.read == rounds * SIZE
