"""States inside steps and between them, and what becomes of them on other ranks."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from torch.distributed import HashStore
from trees import finite, leaf

from energy_data.core.worker_config import WorkerConfig
from energy_data.errors import StateError, StateMismatchError
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.factory import host_of
from energy_data.loading.loader import Loader
from energy_data.loading.steps.exchange import StepsError
from energy_data.loading.steps.grouper import StepGrouper
from energy_data.loading.workers.pool import PoolOptions
from energy_data.order.step_rules import DocsPerStep
from loading.runs import loader_of
from loading.steps import (
    STREAM,
    known_stream,
    numbered,
    plain,
    ranks_of,
    stream,
    take,
    take_steps,
    together,
)
from loading.workers import QUICK


def states(loaders):
    """The states of the ranks, through JSON."""
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("lookahead", [1, 4])
def test_saved_after_any_micro_batch_it_goes_on_identically(ranks, lookahead):
    rules = {"target": 25, "lookahead": lookahead}
    loaders = ranks_of(STREAM, ranks, **rules)
    expected = take(loaders, 30)
    assert len({step.step for _, step in expected[0]}) > 2
    loaders = ranks_of(STREAM, ranks, **rules)
    for count in range(25):
        saved = states(loaders)
        assert states(loaders) == saved, "taking a state changed it"
        again = ranks_of(STREAM, ranks, **rules)
        for loader, state in zip(again, saved, strict=True):
            loader.load_state_dict(state)
        assert states(again) == saved
        assert take(again, 3) == [given[count : count + 3] for given in expected]
        for loader in again:
            loader.restore_state_global(saved)
        assert take(again, 2) == [given[count : count + 2] for given in expected]
        take(loaders, 1)


def test_restoring_inside_a_step_asks_nobody_and_draws_no_more_than_the_step():
    loaders = ranks_of(STREAM, 2, target=40, lookahead=1)
    (given, _) = take(loaders, 3)
    step = given[-1][1]
    assert step.num_microbatches > 3
    store = HashStore()
    (again, _) = ranks_of(STREAM, 2, target=40, lookahead=1, store=store)
    again.load_state_dict(loaders[0].state_dict())
    take([again], step.num_microbatches - 3)
    assert store.num_keys() == 0
    assert again.stats().batches == step.num_microbatches


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 3), (4, 1)])
def test_at_the_end_of_a_step_another_number_of_ranks_goes_on(before, after):
    loaders = ranks_of(STREAM, before, target=20)
    given = take(loaders, 1)
    while not given[0][-1][1].is_last or given[0][-1][1].step < 3:
        given = [mine + more for mine, more in zip(given, take(loaders, 1), strict=True)]
    others = ranks_of(STREAM, after, target=20)
    for loader in others:
        loader.restore_state_global(states(loaders))
    rest = take(others, 20)
    last, first = given[0][-1][1], rest[0][0][1]
    assert (first.step, first.index) == (last.step + 1, 0)
    assert first.docs_seen == last.docs_seen + last.step_docs
    # Nothing is left out and nothing comes twice: the micro-batches are those of the run, in order.
    in_order = [given[r][n][0] for n in range(len(given[0])) for r in range(before)]
    in_order += [rest[r][n][0] for n in range(20) for r in range(after)]
    run = take(ranks_of(STREAM, 1, target=20), len(in_order))[0]
    begin = len(given[0]) * before
    assert sorted(in_order[:begin]) == sorted(keys for keys, _ in run[:begin])
    assert sorted(in_order[begin:]) == sorted(keys for keys, _ in run[begin:])


def test_inside_a_step_another_number_of_ranks_is_refused_with_what_to_do():
    loaders = ranks_of(STREAM, 2, target=40)
    take(loaders, 2)
    saved = states(loaders)
    (other,) = ranks_of(STREAM, 1, target=40)
    with pytest.raises(StateMismatchError, match="inside step 0, after micro-batch 2 on 2 ranks"):
        other.restore_state_global(saved)
    with pytest.raises(StateMismatchError, match="this loader has no docs_per_step"):
        loader_of(STREAM, 0, 2, lanes=12).restore_state_global(saved)


def test_a_changed_target_counts_from_the_next_step_on():
    loaders = ranks_of(STREAM, 2, target=40)
    (first, _) = take(loaders, 2)
    others = ranks_of(STREAM, 2, target=12)
    for loader, state in zip(others, states(loaders), strict=True):
        loader.load_state_dict(state)
    (rest, _) = take(others, 20)
    assert {step.step_docs for _, step in rest if step.step == 0} == {first[0][1].step_docs}
    assert all(12 <= step.step_docs < 12 + 2 * 6 for _, step in rest if step.step > 0)


def test_another_mode_or_count_is_refused():
    (loader,) = ranks_of(STREAM)
    take([loader], 1)
    for facts in ({"count": "samples"}, {"count": "tokens"}):
        (other,) = ranks_of(STREAM, **facts)
        with pytest.raises(StateMismatchError, match="Only the target may change during a run"):
            other.load_state_dict(loader.state_dict())


def test_exact_steps_and_others_are_not_exchanged_on_the_way():
    exact, other = ({"mode": "exact", "target": 9}, {"target": 9})
    for before, after in ((exact, other), (other, exact)):
        loaders = ranks_of(stream(numbered), 2, **before)
        take_steps(loaders, 1)
        for loader in ranks_of(stream(numbered), 2, **after):
            with pytest.raises(StateMismatchError, match="Only the target may change during a run"):
                loader.restore_state_global(states(loaders))


def test_a_changed_target_of_exact_steps_counts_from_the_next_step_on():
    loaders = ranks_of(stream(numbered), 2, mode="exact", target=14)
    (first, _) = take(loaders, 4)
    assert not first[-1][1].is_last
    others = ranks_of(stream(numbered), 2, mode="exact", target=[[0, 14], [2, 9]])
    for loader, state in zip(others, states(loaders), strict=True):
        loader.load_state_dict(state)
    (rest, _) = take(others, 12)
    docs = {step.step: step.step_docs for _, step in rest}
    assert [docs[step] for step in (1, 2, 3)] == [14, 9, 9]


def pooled(ranks, workers, method="fork"):
    """Loaders that need not tell each other, so they run one after another."""
    loaders = []
    for rank in range(ranks):
        config = WorkerConfig(rank, ranks, num_workers=workers, lanes=8)
        dataset = SavableDataset(spec=known_stream(), worker_config=config)
        host = host_of(dataset, PoolOptions(start_method=method), pin_memory=False)
        loaders.append(StepGrouper(Loader(dataset, host, in_steps=True), DocsPerStep(target=9)))
    return loaders


def one_by_one(loaders, count):
    found = [plain(islice(loader, count)) for loader in loaders]
    return [mine[n] for n in range(count) for mine in found]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("workers", [(0, 2), (2, 0), (2, 2)])
@pytest.mark.parametrize("method", QUICK)
def test_saved_at_every_index_of_a_step_it_goes_on_with_other_workers_and_between_steps_other_ranks(
    ranks, workers, method
):
    expected = one_by_one(pooled(ranks, 0), 12)
    begun = pooled(ranks, workers[0])
    same, others = pooled(ranks, workers[1], method), pooled(3 - ranks, workers[1])
    for count in range(7):
        saved = states(begun)
        for loader in same:
            loader.restore_state_global(saved)
        assert one_by_one(same, 4) == expected[count * ranks : (count + 4) * ranks]
        if not saved[0]["step"]["index"]:
            for loader in others:
                loader.restore_state_global(saved)
            keys = [keys for keys, *_ in one_by_one(others, 4 // len(others))]
            assert sorted(keys) == sorted(
                keys for keys, *_ in expected[count * ranks : count * ranks + 4]
            )
        one_by_one(begun, 1)
    for loader in (*begun, *same, *others):
        loader.close()


def test_steps_may_begin_in_the_middle_of_a_run_without_them():
    plain = loader_of(STREAM, lanes=12)
    batches = [tuple(batch["__key__"]) for batch, _ in zip(plain, range(30), strict=False)]
    plain = loader_of(STREAM, lanes=12)
    for _ in range(7):
        next(iter(plain))
    (loader,) = ranks_of(STREAM)
    loader.load_state_dict(plain.state_dict())
    given = take([loader], 20)[0]
    assert [keys for keys, _ in given] == batches[7:27]
    assert given[0][1].step == 0


def test_at_the_end_of_a_step_a_run_goes_on_without_steps():
    (loader,) = ranks_of(STREAM)
    while True:
        (given,) = take([loader], 1)
        if given[0][1].is_last and given[0][1].step == 2:
            break
    plain = loader_of(STREAM, lanes=12)
    plain.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert tuple(next(iter(plain))["__key__"]) == take([loader], 1)[0][0][0]


def test_ranks_at_different_places_are_told_apart():
    loaders = ranks_of(STREAM, 2, target=40)
    early, _ = states(loaders)
    take(loaders, 30)
    _, late = states(loaders)
    others = ranks_of(STREAM, 2, target=40)
    for loader, state in zip(others, (early, late), strict=True):
        loader.load_state_dict(state)
    with pytest.raises(
        StepsError, match=r"the step is \d+ on rank 1, and \d+ on rank 0\. Restore states that"
    ):
        take(others, 30)


def test_all_ranks_may_go_back_in_a_running_process():
    loaders = ranks_of(STREAM, 3, target=25, lookahead=3)
    expected = take(loaders, 20)
    early = states(loaders)
    rest = take(loaders, 15)
    for _ in range(3):
        for loader, state in zip(loaders, early, strict=True):
            loader.load_state_dict(state)
        assert take(loaders, 15) == rest
    assert expected[0][0] != rest[0][0]


def test_one_rank_that_goes_back_alone_is_an_error_on_all():
    store = HashStore()
    loaders = ranks_of(STREAM, 2, target=25, lookahead=2, timeout_s=1, store=store)
    early = states(loaders)
    take(loaders, 12)
    loaders[0].load_state_dict(early[0])

    def work(loader):
        with pytest.raises(StepsError, match=r"ranks \[.\] of 2 have sent nothing for 1 s"):
            list(loader)

    together(loaders, work)


@pytest.mark.parametrize(
    "damage",
    [
        {"index": -1},
        {"index": 1, "plan": None},
        {"step": "x"},
        {"plan": [1, 2]},
        {"given": None},
        {"base": None},
    ],
)
def test_a_damaged_place_inside_steps_is_a_state_error(damage):
    (loader,) = ranks_of(STREAM)
    take([loader], 1)
    state = loader.state_dict()
    state["step"] = {**state["step"], **damage}
    with pytest.raises(StateError, match="damaged"):
        loader.load_state_dict(state)


def test_only_states_of_steps_have_a_place_inside_steps():
    assert "step" not in loader_of(finite(leaf("x", 9))).state_dict()
    assert "step" in ranks_of(stream())[0].state_dict()
