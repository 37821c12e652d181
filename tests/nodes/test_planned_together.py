"""Lanes of a process plan their draws together, and each draws what it would draw alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import leaf

from energy_data.core.context import Context
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec, Part, Repeated
from energy_data.nodes.leaf import Shuffle
from energy_data.nodes.plan_cache import LeafOffsets
from energy_data.nodes.references import ReferencesSpec
from energy_data.order import weighted
from energy_data.order.shares import Shares
from energy_data.order.splits import Splits

LANES = 4
A, B, C = leaf("a", 50), leaf("b", 9), leaf("c", 1)
INNER = BlendSpec((Part(A, 2), Part(C)))
ORDERS = {
    "leaf": A,
    "blend": BlendSpec((Part(A, 5), Part(B, 2), Part(C, 0.1))),
    "blend of blends": BlendSpec((Part(INNER, 3), Part(B))),
    "blend of epochs": BlendSpec(
        (Part(BlendEpochizedSpec((Repeated(A), Repeated(B, 2)))), Part(C))
    ),
}
draws = st.tuples(st.integers(0, LANES - 1), st.integers(1, 90))


def nodes(of, hosted):
    spec = ReferencesSpec(of=of, shuffle=Shuffle(buffer_size=5, sequence_length=3))
    context = Context(seed=3, lanes=LANES, hosted=hosted)
    return [spec.build(context.in_lane(lane)) for lane in range(LANES)]


@pytest.mark.parametrize("order", sorted(ORDERS))
@given(taken=st.lists(draws, max_size=30), gone=st.lists(st.integers(0, 9), min_size=LANES))
def test_a_lane_draws_the_same_whatever_other_lanes_of_its_process_do(order, taken, gone):
    together, alone = (nodes(ORDERS[order], hosted) for hosted in (tuple(range(LANES)), ()))
    num_leaves = len(alone[0].leaves)
    for drawing in (together, alone):
        for node, drawn in zip(drawing, gone, strict=False):
            node.continue_from(LeafOffsets((drawn,) * num_leaves if drawn > 4 else ()))
    for lane, count in taken:
        assert list(together[lane].take(count)) == list(alone[lane].take(count))


def test_the_first_blocks_of_all_lanes_are_one_plan(monkeypatch):
    located = []

    def locate(self, leaves, numbers, locate=Shares.locate):
        located.append(len(numbers))
        return locate(self, leaves, numbers)

    monkeypatch.setattr(Shares, "locate", locate)
    for node in nodes(ORDERS["blend"], tuple(range(LANES))):
        node.draw(32)
    assert located == [LANES * 128]


def test_lanes_share_the_tables_of_a_choice(monkeypatch):
    made = []
    monkeypatch.setattr(weighted, "Splits", lambda *of: made.append(of) or Splits(*of))
    for node in nodes(ORDERS["blend"], tuple(range(LANES))):
        node.draw(32)
    assert len(made) == 1
