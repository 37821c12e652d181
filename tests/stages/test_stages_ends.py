"""Where a run with stages has ended, and what was prefetched and never given."""

from __future__ import annotations

import json
import time

import pytest
from loading.runs import in_order, loader_of, loaders_of
from loading.workers import worker_loader
from trees import batches, leaf, numbers, samples

from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.passes import LimitSpec
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec

X, Y = leaf("x", 200), leaf("y", 60)
BODY = {"x": batches(samples(X)), "y": batches(samples(Y), 2)}


def plan(*stages, **facts):
    """Stages as (name, end), each of the leaf its name begins with."""
    begins = [0, *(end for _, end, *_ in stages)]
    return StagedSpec(
        stages=tuple(
            Stage(name=name, of=body[0] if body else BODY[name[0]], begin=begin, end=end)
            for (name, end, *body), begin in zip(stages, begins, strict=False)
        ),
        **facts,
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_limit_before_the_last_stage_ends_the_run_and_its_place_stays(ranks):
    stages = plan(("x", 8), ("y", 16), ("x2", None))
    spec = LimitSpec(of=stages, length=12)
    loaders = loaders_of(spec, ranks, lanes=4)
    assert in_order(loaders) == in_order([loader_of(stages, lanes=4)], 12)
    states = json.loads(json.dumps([loader.state_dict() for loader in loaders]))
    assert [list(loader) for loader in loaders] == [[]] * ranks
    assert [loader.state_dict() for loader in loaders] == states
    assert {loader.stage for loader in loaders} == {(1, "y")}
    again = loader_of(spec, lanes=4)
    again.restore_state_global(states)
    assert (list(again), again.last_batch) == ([], 11)


def test_what_a_left_stage_had_prefetched_and_never_gave_comes_first_when_it_is_read_again(
    tmp_path,
):
    made = tmp_path / "made"

    def noted(batch):
        with made.open("a") as file:
            file.write("batch\n")
        return numbers(batch)

    body = BatchSpec(of=samples(X), batch_size=3, collate=noted)
    expected = in_order([loader_of(BODY["x"], lanes=8)], 40)
    loader = worker_loader(plan(("x", None, body)), 2, prefetch=5, start_method="fork")
    try:
        stream = iter(loader)
        for _ in range(8):
            next(stream)
        waited = time.monotonic() + 60
        while made.read_text().count("batch") < 16 and time.monotonic() < waited:
            time.sleep(0.01)
        assert made.read_text().count("batch") >= 16  # of which 8 were never given
        state = json.loads(json.dumps(loader.state_dict()))
    finally:
        loader.close()
    # The stage is left where the state was saved, and its dataset read again after another one.
    after = plan(("x", 8, body), ("y", 16), ("x2", None), resume="ablation")
    other = worker_loader(after, 2, prefetch=5, start_method="fork")
    try:
        other.load_state_dict(state)
        stream = iter(other)
        given = [next(stream) for _ in range(24)]
    finally:
        other.close()
    assert given[:8] == in_order([loader_of(BODY["y"], lanes=8)], 8)
    assert given[8:] == expected[8:24]
