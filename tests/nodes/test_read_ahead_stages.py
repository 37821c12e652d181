"""Before a run switches to another stage, its lanes say what they will read there."""

from __future__ import annotations

from itertools import islice

import pytest
from loading.runs import loaders_of, run
from test_read_ahead import BATCH, LANES, LENGTH, cache, keys_of, lines

from energy_data.data.registry import open_source
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.leaf import Leaf, Shuffle
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import LeafSpec, ReferencesSpec
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec

__all__ = ["cache", "lines"]  # fixtures

SWITCH = 40 * LANES  # micro-batches


def staged(path, on_enter):
    """A stage of one half of a file, and one of both halves."""
    first, second = (
        LeafSpec(Leaf(id=name, source=open_source(path, subset=part)))
        for name, part in (("first", (0, 2400)), ("second", (2400, 4800)))
    )
    both = BlendSpec((Part(first, 1), Part(second, 2)))
    then = Stage(name="then", of=batches_of(both), begin=SWITCH, on_enter=on_enter)
    return StagedSpec(stages=(Stage(name="one", of=batches_of(first), begin=0, end=SWITCH), then))


def batches_of(order):
    shuffle = Shuffle(buffer_size=100, sequence_length=LENGTH, parallel_sequences=4)
    read = ReadSpec(of=ReferencesSpec(of=order, shuffle=shuffle, batch=BATCH))
    return BatchSpec(of=read, batch_size=BATCH, collate=keys_of)


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("on_enter", ["continue", "restart"])
def test_what_a_stage_reads_first_was_wanted_before_the_last_batch_of_the_one_before(
    on_enter, restores, lines, cache
):
    (loader,) = loaders_of(staged(lines[0], on_enter), 1, LANES)
    found = list(islice(loader, SWITCH - LANES))
    if restores:
        state = loader.state_dict()
        (loader,) = loaders_of(staged(lines[0], on_enter), 1, LANES)
        loader.load_state_dict(state)
    found += islice(loader, LANES)
    wanted = last_wants(cache, "then")
    cache.waits.clear()
    found += islice(loader, 4 * LANES)
    first = {(owner, one) for owner, ranges in cache.of_lanes() for one in ranges}
    assert len(first) > LANES
    assert first <= wanted
    local = run(loaders_of(staged(lines[1], on_enter), 1, LANES), SWITCH + 4 * LANES)
    assert found == list(local.values())


def last_wants(cache, stage):
    """What the lanes of a stage wanted last."""
    last = {owner: ranges for owner, ranges, _ in cache.wants if stage in owner and ranges}
    return {(owner, one) for owner, ranges in last.items() for one in ranges}


def test_what_comes_after_the_end_of_a_stage_is_not_wanted_for_it(lines, cache):
    (loader,) = loaders_of(staged(lines[0], "restart"), 1, LANES)
    for _ in islice(loader, SWITCH):
        pass
    waits = {(owner, one) for owner, ranges in cache.of_lanes() for one in ranges}
    assert last_wants(cache, "one") <= waits


def test_stages_count_in_the_same_micro_batches_when_they_need_what(lines, cache):
    (loader,) = loaders_of(staged(lines[0], "continue"), 1, LANES)
    for _ in islice(loader, SWITCH + 1):
        pass
    firsts = [when[0] for owner, ranges, when in cache.wants if "then" in owner and ranges]
    assert firsts
    assert set(firsts) == {SWITCH // LANES}
