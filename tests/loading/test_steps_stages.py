"""Stages that count steps of any size."""

from __future__ import annotations

import json
import os
import signal
from itertools import islice

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed import HashStore
from trees import leaf, samples

from energy_data.core.worker_config import WorkerConfig
from energy_data.errors import StateMismatchError
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.factory import host_of
from energy_data.loading.loader import Loader
from energy_data.loading.steps.counts import counts_of
from energy_data.loading.steps.exchange import Exchange
from energy_data.loading.steps.grouper import StepGrouper, for_steps
from energy_data.loading.transport.device import OnDevice
from energy_data.loading.workers.pool import PoolOptions
from energy_data.nodes.stage import Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.order.step_rules import DocsPerStep
from loading.runs import loader_of
from loading.steps import WAIT_S, numbered, plain, stream, take
from loading.test_device import DEVICE, FakeCuda
from loading.test_steps_exact import packs
from loading.workers import processes

SMALL, LARGE = stream(batch_size=2), stream()


def staged(*parts, **facts):
    """Stages by name, first step, end and tree."""
    stages = (Stage(name=n, begin=b, end=e, of=of, counts="steps") for n, b, e, of in parts)
    return StagedSpec(stages=tuple(stages), **facts)


def rule(target, **facts):
    return DocsPerStep(target=target, timeout_s=WAIT_S, **facts)


# Steps of 20, then 24, then 7, then 30 documents; all of one leaf.
SPEC = staged(("a", 0, 3, LARGE), ("b", 3, 5, SMALL), ("c", 5, None, LARGE))
RULES = rule([[0, 20], [3, 24], [5, 7], [7, 30]])


def ranks_of(spec, rules, ranks=1, *, lanes=12, store=None):
    store = HashStore() if store is None else store
    loaders = []
    for rank in range(ranks):
        config = WorkerConfig(rank, ranks, lanes=lanes)
        dataset = for_steps(SavableDataset(spec=spec, worker_config=config), rules)
        loader = Loader(dataset, in_steps=True)
        loaders.append(StepGrouper(loader, rules, Exchange(config, WAIT_S, store)))
    return loaders


def bounds(loaders):
    """The micro-batches of the run with which stages began, as the lanes of all ranks say."""
    places = [loader.run_state().places for loader in loaders]
    (entered,) = {place["root"]["entered"] for each in places for place in each.values()}
    return entered


def in_microbatches(spec, entered):
    """The same stages with bounds in micro-batches."""
    begins, ends = (0, *entered), (*entered, None)
    stages = [
        evolve(stage, begin=begin, end=end, counts="microbatches", microbatches_per_step=None)
        for stage, begin, end in zip(spec.stages, begins, ends, strict=False)
    ]
    return evolve(spec, stages=tuple(stages))


@pytest.mark.parametrize("lookahead", [1, 4])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_stages_switch_between_steps_and_their_batches_are_those_of_bounds_in_microbatches(
    ranks, lookahead
):
    rules = evolve(RULES, lookahead=lookahead)
    loaders = ranks_of(SPEC, rules, ranks)
    given = take(loaders, 66)
    entered = bounds(loaders)
    assert len(entered) == 2
    plain = loader_of(in_microbatches(SPEC, entered), lanes=12)
    batches = list(islice(plain, 66 * ranks))
    in_order = [given[g % ranks][g // ranks] for g in range(66 * ranks)]
    assert [keys for keys, _ in in_order] == [tuple(batch["__key__"]) for batch in batches]
    for (_, step), batch in zip(in_order, batches, strict=True):
        expected = "a" if step.step < 3 else "b" if step.step < 5 else "c"
        assert batch["__stage__"][1] == expected
    check_rounds(in_order, batches, ranks)


def check_rounds(in_order, batches, ranks):
    """Each step ends with the round that reaches its target."""
    steps: dict = {}
    for (_, step), batch in zip(in_order, batches, strict=True):
        steps.setdefault(step.step, []).append(counts_of(batch, rule(1)).documents)
    for number, docs in list(steps.items())[:-1]:
        target = RULES.target_of(number)
        assert sum(docs) >= target > sum(docs[:-ranks])


def test_a_leaf_goes_on_from_stage_to_stage_and_back():
    other = evolve(LARGE, of=samples(leaf("y", 900)))
    spec = staged(("a", 0, 3, LARGE), ("b", 3, 5, other), ("a2", 5, 9, LARGE))
    (given,) = take(ranks_of(spec, rule(20)), 200)
    assert {step.step for _, step in given} == set(range(9))
    keys = [key for batch, _ in given for key in batch]
    assert len(set(keys)) == len(keys)
    assert {key[0] for batch, step in given if 3 <= step.step < 5 for key in batch} == {"y"}


def states(loaders):
    """The states of the ranks, through JSON."""
    return json.loads(json.dumps([loader.state_dict() for loader in loaders]))


EXACT = rule([[0, 13], [3, 20], [5, 9], [7, 17]], mode="exact")
PLAIN, PAIRS = stream(numbered), stream(numbered, 2)
CUT = staged(("a", 0, 3, PLAIN), ("b", 3, 5, PAIRS), ("c", 5, None, PLAIN))


@pytest.mark.parametrize(("spec", "rules"), [(SPEC, RULES), (CUT, EXACT)])
@pytest.mark.parametrize("ranks", [1, 2])
def test_saved_after_any_micro_batch_stages_go_on_identically(spec, rules, ranks):
    expected = take(ranks_of(spec, rules, ranks), 50)
    assert {step.step for _, step in expected[0]} >= set(range(7))
    loaders = ranks_of(spec, rules, ranks)
    for count in range(0, 45, ranks):
        saved = states(loaders)
        assert states(loaders) == saved, "taking a state changed it"
        again = ranks_of(spec, rules, ranks)
        for loader in again:
            loader.restore_state_global(saved)
        assert states(again) == saved
        assert take(again, 5) == [given[count : count + 5] for given in expected]
        take(loaders, ranks)


def test_restoring_inside_a_step_of_a_later_stage_asks_nobody():
    rules = evolve(RULES, lookahead=1)
    loaders = ranks_of(SPEC, rules, 2)
    while (step := take(loaders, 1)[0][0][1]).step < 3:
        pass
    store = HashStore()
    (again, _) = ranks_of(SPEC, rules, 2, store=store)
    again.load_state_dict(loaders[0].state_dict())
    assert step.index == 0 < step.num_microbatches - 2
    left = range(1, step.num_microbatches)
    assert [step.index for _, step in take([again], len(left))[0]] == list(left)
    assert store.num_keys() == 0


@st.composite
def runs(draw):
    """Some stages and a rule."""
    parts, target, begin = [], [], 0
    mode = draw(st.sampled_from(["at_least", "exact"]))
    trees = [PLAIN, PAIRS] if mode == "exact" else [LARGE, SMALL]
    lengths = draw(st.lists(st.integers(1, 3), max_size=3))
    for number, length in enumerate([*lengths, None]):
        end = None if length is None else begin + length
        parts.append((f"s{number}", begin, end, draw(st.sampled_from(trees))))
        target.append([begin, draw(st.integers(1, 25))])
        begin = end
    return staged(*parts), rule(target, mode=mode)


@settings(max_examples=12, deadline=None)
@given(run=runs(), ranks=st.sampled_from([1, 2, 3]), counts=st.lists(st.integers(0, 9), max_size=3))
def test_whatever_the_stages_saved_anywhere_they_go_on_identically(run, ranks, counts):
    expected = take(ranks_of(*run, ranks), 40)
    loaders, at = ranks_of(*run, ranks), 0
    for count in [*counts, 8]:
        assert take(loaders, count) == [mine[at : at + count] for mine in expected]
        saved, at = states(loaders), at + count
        loaders = ranks_of(*run, ranks)
        for loader in loaders:
            loader.restore_state_global(saved)


def test_all_ranks_may_go_back_over_a_boundary_in_a_running_process():
    loaders = ranks_of(SPEC, RULES, 2)
    early = states(loaders)
    expected = take(loaders, 30)
    for _ in range(2):
        for loader in loaders:
            loader.restore_state_global(early)
        assert take(loaders, 30) == expected


def keys_of(given):
    """Of each step, its samples over all ranks."""
    found: dict = {}
    for mine in given:
        for keys, step in mine:
            found.setdefault(step.step, []).extend(keys)
    return [sorted(found[step]) for step in sorted(found)]


@pytest.mark.parametrize("rules", [RULES, EXACT])
def test_with_the_same_shares_stages_hold_the_same_samples_on_any_number_of_ranks(rules):
    spec, rules = (SPEC if rules is RULES else CUT), evolve(rules, shares=4)
    expected = keys_of(take(ranks_of(spec, rules, 1), 150))[:9]
    for ranks in (2, 4):
        assert keys_of(take(ranks_of(spec, rules, ranks), 150 // ranks + 4))[:9] == expected


@pytest.mark.parametrize("step", range(8))
def test_between_steps_another_number_of_ranks_goes_on_also_at_a_boundary(step):
    rules = evolve(EXACT, shares=4)
    expected = keys_of(take(ranks_of(CUT, rules, 1), 150))
    loaders = ranks_of(CUT, rules, 4)
    before: list = []
    while not before or before[-1][0][1].step < step or not before[-1][0][1].is_last:
        before.append([mine[0] for mine in take(loaders, 1)])
    others = ranks_of(CUT, rules, 2)
    for loader in others:
        loader.restore_state_global(states(loaders))
    given = [*before, *zip(*take(others, 30), strict=True)]
    assert keys_of(given)[:9] == expected[:9]


def test_exact_stages_hold_exactly_their_targets():
    given = take(ranks_of(CUT, EXACT, 3), 60)
    docs = {step.step: step.step_docs for mine in given for _, step in mine}
    expected = [13, 13, 13, 20, 20, 9, 9, 17, 17]
    assert [docs[step] for step in range(9)] == expected
    assert [len(keys) for keys in keys_of(given)][:8] == expected[:8]


def test_what_waited_to_be_packed_goes_back_at_the_boundary():
    spec = staged(("a", 0, 3, packs()), ("b", 3, None, PLAIN))
    loaders = ranks_of(spec, rule([[0, 50], [3, 40]]), lanes=4)
    (given,) = take(loaders, 330)
    keys = [key for batch, _ in given for key in batch]
    assert len(keys) > 1000
    assert len(set(keys)) == 1000
    (entered,) = bounds(loaders)
    batches = islice(loader_of(in_microbatches(spec, (entered,)), lanes=4), 330)
    assert [keys for keys, _ in given] == [tuple(batch["__key__"]) for batch in batches]


def test_after_the_last_stage_the_run_is_over_and_stays_so_until_it_is_longer():
    spec, rules = staged(("a", 0, 2, LARGE), ("b", 2, 4, LARGE)), rule([[0, 20], [2, 15]])
    loaders = ranks_of(spec, rules, 2)
    given = take(loaders)
    assert [mine[-1][1].step for mine in given] == [3, 3]
    assert take(loaders) == [[], []]
    longer = staged(("a", 0, 2, LARGE), ("b", 2, 6, LARGE))
    others = ranks_of(longer, rules, 2)
    for loader in others:
        loader.restore_state_global(states(loaders))
    whole = take(ranks_of(longer, rules, 2))
    assert [mine + more for mine, more in zip(given, take(others), strict=True)] == whole


def test_what_lies_ahead_may_be_edited_between_steps_and_what_was_played_may_not():
    loaders = ranks_of(SPEC, RULES)
    while not (step := take(loaders, 1)[0][0][1]).is_last or step.step < 3:
        pass
    saved = states(loaders)
    ahead = staged(("a", 0, 3, LARGE), ("b", 3, 6, SMALL), ("d", 6, None, LARGE))
    (other,) = ranks_of(ahead, evolve(RULES, target=[[0, 20], [3, 24], [6, 9]]))
    other.restore_state_global(saved)
    ((first, *_),) = take([other], 1)
    assert first == take(loaders, 1)[0][0]
    with pytest.raises(StateMismatchError, match="was saved inside step 4"):
        ranks_of(SPEC, RULES)[0].restore_state_global(states([other]))
    past = staged(("a", 0, 2, LARGE), ("b", 2, 5, SMALL), ("c", 5, None, LARGE))
    with pytest.raises(
        StateMismatchError, match=r"at step 4 of the run(.|\n)*'a' is over; end was"
    ):
        ranks_of(past, RULES)[0].restore_state_global(saved)


def test_a_run_of_steps_goes_on_as_the_stage_default():
    plain_run = ranks_of(LARGE, rule(20))
    spec = staged(("default", 0, 3, LARGE), ("b", 3, None, SMALL), resume="ablation")
    while not (step := take(plain_run, 1)[0][0][1]).is_last or step.step < 2:
        pass
    others = ranks_of(spec, rule(20))
    others[0].restore_state_global(states(plain_run))
    (given,) = take(others, 12)
    whole = take(ranks_of(spec, rule(20)), 60)[0]
    assert given == [each for each in whole if each[1].step >= 3][:12]
    without = loader_of(LARGE, lanes=12).state_dict()
    with pytest.raises(StateMismatchError, match="it was saved without docs_per_step"):
        others[0].load_state_dict(without)


def pooled(workers=2, method="fork", prefetch=2, cuda=None):
    config = WorkerConfig(num_workers=workers, lanes=8)
    dataset = for_steps(SavableDataset(spec=CUT, worker_config=config), EXACT)
    options = PoolOptions(start_method=method, prefetch=prefetch)
    host = host_of(dataset, options, pin_memory=False)
    host = OnDevice(host, DEVICE, 1, cuda) if cuda else host
    return StepGrouper(Loader(dataset, host, in_steps=True), EXACT)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 5), (2, 2), (3, 1)])
def test_whatever_workers_are_ahead_stages_switch_at_the_same_place(workers, prefetch):
    expected = plain(islice(pooled(workers=0), 60))
    loader = pooled(workers, prefetch=prefetch)
    given = []
    for number, batch in enumerate(islice(loader, 60)):
        given.append(batch)
        if number in (8, 14, 30):
            os.kill(processes(loader.loader)[0], signal.SIGKILL)
    assert plain(given) == expected
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_copied_ahead_to_a_device_change_nothing_at_a_boundary(workers):
    loader = pooled(workers, cuda=FakeCuda())
    assert plain(islice(loader, 60)) == plain(islice(pooled(workers=0), 60))
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver", "thread"])
def test_however_workers_start_stages_are_the_same(method):
    loader = pooled(2, method)
    assert plain(islice(loader, 60)) == plain(islice(pooled(workers=0), 60))
    loader.close()


@pytest.mark.parametrize(("spec", "rules"), [(SPEC, RULES), (CUT, EXACT)])
def test_the_loader_says_the_stage_of_what_it_handed_over(spec, rules):
    (loader,) = ranks_of(spec, rules)
    assert loader.stage is None
    for batch in islice(loader, 60):
        assert loader.stage == batch["__stage__"]
    plan = loader.dataset.plan
    assert [plan.stage_at(step).name for step in (0, 2, 3, 5, 10**9)] == ["a", "a", "b", "c", "c"]
