"""What entering a stage costs: counted, not timed."""

from __future__ import annotations

import json

import pytest
from trees import batches, leaf, packs, samples, staged

from energy_data.core.context import Context
from energy_data.core.cursor import restore, save
from energy_data.nodes import plan_cache
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.testing import next_item

MIXED = BlendSpec(tuple(Part(leaf(f"l{n}", 50), n + 1) for n in range(5)))
MANY = staged(*(batches(packs(samples(MIXED))) for _ in range(20)), steps=[3] * 20)


@pytest.fixture
def plans(monkeypatch):
    """The order trees whose plans are made, which is what entering costs."""
    made = []
    whole = plan_cache.LanePlan.__init__

    def counted(plan, *args, **facts):
        made.append(plan)
        whole(plan, *args, **facts)

    monkeypatch.setattr(plan_cache.LanePlan, "__init__", counted)
    return made


def test_entering_a_stage_looks_at_the_one_before_and_at_no_others(plans):
    node = MANY.build(Context())
    per_stage = []
    for _ in range(20):
        before = len(plans)
        for _ in range(3):
            next_item(node)
        per_stage.append(len(plans) - before)
    assert per_stage == [1] * 20


def test_restored_it_looks_at_all_stages_before_once(plans):
    node = MANY.build(Context())
    for _ in range(40):
        next_item(node)
    state = json.loads(json.dumps(save(node)))
    after = MANY.build(Context())
    restore(after, state)
    plans.clear()
    following = [next_item(after) for _ in range(10)]
    assert len(plans) == 14 + 3  # those before, its own, and those that are entered then
    assert following == [next_item(node) for _ in range(10)]


def test_a_lane_that_went_back_does_not_go_on_from_what_it_knew():
    node, states, given = MANY.build(Context()), [], []
    for _ in range(30):
        states.append(node.snapshot())
        given.append(next_item(node))
    for at in (29, 7, 16, 3, 28, 0):
        node.rollback(states[at])
        assert [next_item(node) for _ in range(30 - at)] == given[at:]
