"""Randomness of users' functions: of the sample at hand, the same everywhere."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from energy_data.core.rng import GlobalSeeds, sample_rng, sample_seed
from energy_data.core.user_call import CALL, FunctionInfo
from energy_data.errors import EnergyDataError, SpecError
from energy_data.tasks.encoder import TaskEncoder
from energy_data.tasks.functions import stateless


@pytest.fixture(autouse=True)
def nothing_at_hand():
    yield
    CALL.leave(None)


def take_in_hand(item, seed=0, function="encode_sample"):
    CALL.enter(FunctionInfo(seed, function), [item])


def sample(leaf="a", epoch=0, index=3):
    return {"__restore_key__": (leaf, epoch, index)}


def globals_drawn():
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_the_randomness_of_a_sample_is_the_same_for_ever():
    take_in_hand(sample())
    assert sample_seed() == 10076806770667790782
    assert sample_rng().integers(1000, size=4).tolist() == [862, 529, 766, 658]
    assert torch.randint(1000, (4,), generator=sample_rng("torch")).tolist() == [240, 112, 957, 588]


def test_it_depends_on_seed_function_leaf_epoch_and_index():
    seeds = set()
    for facts in (
        (sample(),),
        (sample("b"),),
        (sample(epoch=1),),
        (sample(index=4),),
        (sample(), 1),
        (sample(), 0, "encode_batch"),
    ):
        take_in_hand(*facts)
        seeds.add(sample_seed())
    assert len(seeds) == 6


def test_a_list_has_the_randomness_of_its_first_sample():
    take_in_hand(sample())
    alone = sample_seed()
    take_in_hand([sample(), sample(index=9)])
    assert sample_seed() == alone


def test_a_function_has_its_randomness_again_after_others_that_it_runs():
    take_in_hand(sample())
    own = sample_seed()
    outer = CALL.enter(FunctionInfo(0, "batch"), [sample("b")])
    assert sample_seed() != own
    CALL.leave(outer)
    assert sample_seed() == own


def test_outside_of_a_function_of_a_task_there_is_none():
    with pytest.raises(EnergyDataError, match="no function of a task encoder is running"):
        sample_rng()


@stateless(restore_seeds=True)
def augment(item):
    return globals_drawn()


@stateless(restore_seeds=True)
def parts(item):
    for _ in range(3):
        yield globals_drawn()


def test_global_seeds_are_those_of_the_sample_within_and_as_before_outside():
    take_in_hand(sample())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    outside = globals_drawn()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    first = augment(None)
    assert globals_drawn() == outside
    assert augment(None) == first
    take_in_hand(sample(index=4))
    assert augment(None) != first


def test_a_generator_keeps_its_seeds_from_part_to_part():
    take_in_hand(sample())
    expected = list(parts(None))
    assert len(set(expected)) == 3
    disturbed = []
    for part in parts(None):
        disturbed.append(part)
        globals_drawn()
    assert disturbed == expected


def test_an_error_sets_global_seeds_back():
    @stateless(restore_seeds=True)
    def fail(item):
        raise KeyError(item)

    take_in_hand(sample())
    before = random.getstate()
    with pytest.raises(KeyError):
        fail(1)
    assert random.getstate() == before


def test_worlds_of_seeds_are_nested():
    with GlobalSeeds(1):
        first = globals_drawn()
        with GlobalSeeds(2):
            globals_drawn()
        second = globals_drawn()
    with GlobalSeeds(1):
        assert (globals_drawn(), globals_drawn()) == (first, second)


def test_marks_are_kept_with_and_without_arguments():
    @stateless
    def plain(item):
        return item

    @stateless(restore_seeds=True, failure_tolerance=3)
    def tolerant(item):
        return item

    assert plain.__stateless__
    assert tolerant.__stateless__
    encoder = TaskEncoder()
    assert (encoder._tolerance(plain), encoder._tolerance(tolerant)) == (100, 3)
    encoder.__default_failure_tolerance__ = None
    assert encoder._tolerance(plain) == 0
    with pytest.raises(SpecError, match="failure_tolerance: must be a whole number >= 0, got -1"):
        stateless(failure_tolerance=-1)
