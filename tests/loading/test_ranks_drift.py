"""Micro-batches that are left out let ranks drift apart: a state then has a place for each rank."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from attrs import evolve
from trees import A, B, batches, finite, leaf, not_third, packs, samples

from energy_data import merge_states
from energy_data.errors import SkipSample, StateMismatchError
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.encode import EncodeSpec
from energy_data.nodes.filter import FilterSpec
from energy_data.nodes.passes import RepeatSpec
from energy_data.nodes.read import ReadSpec
from energy_data.nodes.references import ReferencesSpec
from loading.runs import loaders_of, run
from loading.workers import worker_loader

# Three micro-batches of four samples of rank 0 of 2 are bad, and one of rank 1.
BAD = leaf("bad", 240, frozenset([*range(8, 12), *range(16, 20), *range(24, 28), *range(44, 48)]))


def not_first_lanes(batch):
    if int(batch[0].rpartition("/")[2]) % 5 < 2:
        raise SkipSample
    return batch


IN_ORDER = evolve(finite(BAD, 4), of=ReadSpec(of=ReferencesSpec(of=BAD, deal=4)))
STREAMS = {
    "bad samples": IN_ORDER,
    "filter": evolve(
        finite(A, 1), of=FilterSpec(of=finite(leaf("x", 150), 1).of, predicate=not_third)
    ),
    "skipped batches": EncodeSpec(of=finite(leaf("x", 240), 2), encode=not_first_lanes),
    "skipped batches of training": EncodeSpec(
        of=batches(samples(BlendSpec((Part(A), Part(B)))), 2), encode=not_first_lanes
    ),
    "lanes that end apart": batches(packs(samples(leaf("x", 300), deal=8)), 2),
    "passes repeated in lanes": RepeatSpec(of=IN_ORDER, times=3),
}


def saved_after(loaders, rounds):
    run(loaders, rounds)
    return saved(loaders)


def saved(loaders):
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


def restored(spec, ranks, states, **facts):
    loaders = loaders_of(spec, ranks, lanes=12, **facts)
    for loader in loaders:
        loader.restore_state_global(states)
    return loaders


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("later", [1, 2, 3])
def test_saved_after_equally_many_batches_it_goes_on_exactly_on_any_ranks(stream, later):
    spec = STREAMS[stream]
    whole = run(loaders_of(spec, 1, lanes=12), 100)
    first = loaders_of(spec, 2, lanes=12)
    given = run(first, 5)
    others = restored(spec, later, saved(first))
    given |= (then := run(others, 3))
    last = restored(spec, 2, saved(others))
    given |= run(last, 4)
    assert len(given) == 2 * 5 + 3 * later + 2 * 4
    assert then == firsts(whole, later, 3, without=run(loaders_of(spec, 2, lanes=12), 5))
    assert given == {g: whole[g] for g in given}
    rest = firsts(whole, 2, 3, without=given)
    assert run(last, 3) == rest


def firsts(whole, ranks, rounds, without):
    """The first batches of each rank that are not in `without`."""
    numbers = [g for g in whole if g not in without]
    return {
        g: whole[g]
        for rank in range(ranks)
        for g in [g for g in numbers if g % ranks == rank][:rounds]
    }


@pytest.mark.parametrize("stream", STREAMS)
def test_restored_on_as_many_ranks_each_goes_on_to_the_same_end(stream):
    loaders = loaders_of(STREAMS[stream], 3, lanes=12)
    again = restored(STREAMS[stream], 3, saved_after(loaders, 7))
    for loader, other in zip(loaders, again, strict=True):
        assert list(islice(loader, 30)) == list(islice(other, 30))
        assert loader.last_batch == other.last_batch


RANK = """
import json
from itertools import islice
from attrs import evolve
from torch import distributed
from energy_data.core.worker_config import WorkerConfig
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.loader import Loader
from loading.test_ranks_drift import IN_ORDER

distributed.init_process_group("gloo")
config = evolve(WorkerConfig.default_worker_config(0), lanes=12)
dataset = SavableDataset(spec=IN_ORDER, worker_config=config)
loader, again = Loader(dataset), Loader(dataset)
assert len(list(islice(loader, 4))) == 4
assert loader.last_batch == (12, 7)[config.rank]  # rank 0 has left out three, rank 1 none
state = json.loads(json.dumps(loader.save_state_global()))
again.restore_state_global(state, src_rank=0)
rest = list(loader)
assert list(again) == rest and len(rest) > 20
distributed.destroy_process_group()
"""


def test_gloo_ranks_that_have_drifted_go_on_exactly(tmp_path, gloo_ranks):
    gloo_ranks.run_well(RANK, tmp_path, 2)


@pytest.mark.parametrize("method", ["fork", "thread"])
def test_workers_go_on_after_a_drift(method):
    states = saved_after(loaders_of(IN_ORDER, 2, lanes=12), 4)
    for ranks in (1, 3):
        expected = [list(loader) for loader in restored(IN_ORDER, ranks, states)]
        for rank, batches_of_rank in enumerate(expected):
            facts = {"rank": rank, "ranks": ranks, "lanes": 12}
            with worker_loader(IN_ORDER, start_method=method, **facts) as loader:
                loader.restore_state_global(states)
                assert list(loader) == batches_of_rank


@pytest.mark.parametrize("even_batches", ["short", "pad"])
def test_ranks_that_have_drifted_are_evened_once_asked(even_batches):
    states = saved_after(loaders_of(IN_ORDER, 2, lanes=12), 4)
    expected = [batch for loader in restored(IN_ORDER, 1, states) for batch in loader]
    loaders = restored(IN_ORDER, 3, states, even_batches=even_batches)
    drawn = [[(batch, loader.last_is_padding) for batch in loader] for loader in loaders]
    assert len({len(of_rank) for of_rank in drawn}) == 1
    real = [batch for rounds in zip(*drawn, strict=True) for batch, pads in rounds if not pads]
    assert sorted(real) == sorted(expected)


def test_a_rank_that_has_ended_its_pass_alone_is_named():
    loaders = loaders_of(finite(leaf("x", 10), 2), 2, lanes=4)
    states = saved_after(loaders, 3)  # rank 1 has two batches
    with pytest.raises(StateMismatchError, match=r"rank 0 is in iteration 0 .* rank 1 in iter"):
        merge_states(states)


def test_ranks_that_saved_at_different_batches_are_named_whatever_they_have_left_out():
    loaders = loaders_of(IN_ORDER, 2, lanes=12)
    run(loaders[:1], 4), run(loaders[1:], 8)
    with pytest.raises(StateMismatchError, match="rank 1 had returned 4 batches more than rank 0"):
        merge_states([loader.state_dict() for loader in loaders])
