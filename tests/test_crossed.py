"""Leaves that several order trees draw from at the same time."""

from __future__ import annotations

import sys
from functools import partial

from trees import leaf, samples

from energy_data import MapDataset, get_loader
from energy_data.loading.dataset import SavableDataset
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.leaf import shared_leaf_ids


def blended(ids) -> BlendSpec:
    return BlendSpec(tuple(Part(samples(leaf(f"x{n}", 5)), 1) for n in ids))


def instructions(work) -> int:
    """How many bytecodes a call takes."""
    count = 0

    def each(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return each

    before = sys.gettrace()
    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def test_leaves_under_two_trees_that_run_at_the_same_time_cross():
    assert shared_leaf_ids(blended([0, 1, 2, 1])) == {"x1"}
    assert not shared_leaf_ids(blended([0, 1, 2]))


def test_to_find_them_takes_time_linear_in_the_leaves():
    trees = [blended(range(count)) for count in (50, 200, 800)]
    few, more, most = (instructions(partial(shared_leaf_ids, tree)) for tree in trees)
    assert most - more < 4.2 * (more - few)


def test_a_loader_warns_once_of_leaves_under_two_trees(caplog):
    dataset = SavableDataset(spec=blended([0, 1, 1]))
    get_loader(MapDataset(MapDataset(dataset, str), len))
    assert caplog.text.count("several pipelines read x1, each in its own order") == 1
