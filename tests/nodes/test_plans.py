"""Draws are computed ahead in blocks, which change nothing of what a lane draws."""

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


def nodes(of):
    spec = ReferencesSpec(of=of, shuffle=Shuffle(buffer_size=5, sequence_length=3))
    context = Context(seed=3, lanes=LANES)
    return [spec.build(context.in_lane(lane)) for lane in range(LANES)]


@pytest.mark.parametrize("order", sorted(ORDERS))
@given(taken=st.lists(draws, max_size=30), gone=st.lists(st.integers(0, 9), min_size=LANES))
def test_draws_do_not_depend_on_the_blocks_they_are_computed_in(order, taken, gone):
    lanes = nodes(ORDERS[order])
    for lane, count in taken:
        node = lanes[lane]
        num_leaves = len(node.leaves)
        drawn = gone[lane] if node.cursor.draws % 3 else 0  # others draw from the leaves
        fresh = nodes(ORDERS[order])[lane]
        fresh.cursor.draws = node.cursor.draws
        for one in (node, fresh):
            one.continue_from(LeafOffsets((drawn,) * num_leaves if drawn > 4 else ()))
        assert list(node.take(count)) == list(fresh.take(count))


def test_blocks_grow_while_nobody_else_draws_from_the_leaves(monkeypatch):
    located = []

    def locate(self, leaves, numbers, locate=Shares.locate):
        located.append(len(numbers))
        return locate(self, leaves, numbers)

    monkeypatch.setattr(Shares, "locate", locate)
    node = nodes(ORDERS["blend"])[0]
    for _ in range(200):
        node.draw(32)
    assert located == [128, 2048, 16384]
    located.clear()
    for turn in range(1, 4):
        node.continue_from(LeafOffsets((turn,) * 3))
        node.draw(32)
    assert located == [32] * 3


def test_lanes_share_the_tables_of_a_choice(monkeypatch):
    made = []
    monkeypatch.setattr(weighted, "Splits", lambda *of: made.append(of) or Splits(*of))
    for node in nodes(ORDERS["blend"]):
        node.draw(32)
    assert len(made) == 1
