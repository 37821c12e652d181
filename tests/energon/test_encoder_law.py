"""The law with everything in the tree: cookers, generators, packs, groups, randomness, failures."""

from __future__ import annotations

import json
import logging
from itertools import islice

import pytest
from damaging import as_saved, check, damaged, sampled
from data import CRUDE, TEXTS, make_dataset
from encoders import Everything, WithoutGlobalSeeds, alone, facts

from energy_data.energon import (
    FileStoreCachePool,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)

LANES = 4


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("law")
    make_dataset(folder / "crude", CRUDE, count=40, images=False)
    make_dataset(folder / "typed", TEXTS, count=24, images=False)
    make_dataset(folder / "more" / "typed", TEXTS, count=24, images=False)
    (folder / "files").mkdir()
    (folder / "files" / "note.txt").write_text("!")
    (folder / "meta.yaml").write_text(
        """
        splits:
          train:
            blend:
              - {path: crude, weight: 3, aux: {notes: "filesystem://files"}}
              - {path: typed, weight: 1}
              - weight: 1
                join: [{path: typed}, {path: more/typed}]
                joiner: {__module__: megatron.energon, __class__: TextSample}
        """
    )
    logging.getLogger("energy_data.core.user_call").setLevel(logging.CRITICAL)
    yield folder / "meta.yaml"
    logging.getLogger("energy_data.core.user_call").setLevel(logging.NOTSET)


def loader_of(mixture, rank=0, ranks=1, num_workers=0, encoder=Everything, **options):
    config = WorkerConfig(rank=rank, world_size=ranks, num_workers=num_workers, lanes=LANES)
    dataset = get_train_dataset(
        mixture,
        batch_size=2,
        packing_buffer_size=6,
        shuffle_buffer_size=8,
        max_samples_per_sequence=4,
        worker_config=config,
        task_encoder=encoder(),
    )
    return get_loader(dataset, **options)


def taken(loader, count):
    return [facts(batch) for batch in islice(loader, count)]


@pytest.fixture(scope="module")
def expected(mixture):
    found = taken(loader_of(mixture), 40)
    assert len({str(batch) for batch in found}) == 40
    assert {number for _, _, number in found} == set(range(40))
    return found


def test_it_is_the_same_again_and_for_any_ranks_and_workers(mixture, expected, tmp_path):
    assert taken(loader_of(mixture), 12) == expected[:12]
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    assert taken(loader_of(mixture, cache_pool=pool), 12) == expected[:12]
    for ranks in (2, 4):
        each = [taken(loader_of(mixture, rank, ranks), 3) for rank in range(ranks)]
        assert [batch for step in zip(*each, strict=True) for batch in step] == expected[
            : 3 * ranks
        ]
    loader = loader_of(mixture, num_workers=3)
    assert taken(loader, 16) == expected[:16]
    loader.close()


def test_it_is_the_same_in_threads_with_files_read_ahead_and_goes_on_without(mixture, tmp_path):
    encoder = WithoutGlobalSeeds
    expected = taken(loader_of(mixture, encoder=encoder), 24)
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    loader = loader_of(
        mixture, num_workers=3, encoder=encoder, cache_pool=pool, start_method="thread"
    )
    assert taken(loader, 16) == expected[:16]
    state = loader.save_state_rank()
    loader.close()
    again = loader_of(mixture, encoder=encoder)
    again.restore_state_rank(state)
    assert taken(again, 8) == expected[16:24]


@pytest.mark.parametrize("at", [0, 1, 2, 5, 13])
def test_restored_at_any_batch_it_goes_on_and_can_be_saved_again_at_once(mixture, expected, at):
    loader = loader_of(mixture)
    assert taken(loader, at) == expected[:at]
    state = json.loads(json.dumps(loader.save_state_rank()))
    again = loader_of(mixture)
    again.restore_state_rank(state)
    assert again.save_state_rank() == state
    assert taken(again, 9) == expected[at : at + 9]
    two = [loader_of(mixture, rank, 2) for rank in range(2)]
    for one in two:
        one.restore_state_global(state)
    first = at % 2
    assert taken(two[first], 2) == expected[at : at + 4 : 2]
    assert taken(two[1 - first], 2) == expected[at + 1 : at + 4 : 2]


def test_saved_with_workers_it_goes_on_without(mixture, expected):
    loader = loader_of(mixture, num_workers=3)
    assert taken(loader, 7) == expected[:7]
    state = loader.save_state_global(0)
    loader.close()
    again = loader_of(mixture)
    again.restore_state_global(state)
    assert taken(again, 8) == expected[7:15]


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_what_workers_restored_can_be_saved_before_they_have_given_anything(mixture, expected, at):
    loader = loader_of(mixture, num_workers=3)
    assert taken(loader, at) == expected[:at]
    state = loader.save_state_rank()
    loader.close()
    again = loader_of(mixture, num_workers=3)
    again.restore_state_rank(state)
    assert again.save_state_rank() == state
    assert taken(again, 3) == expected[at : at + 3]
    again.close()


def test_what_is_left_out_is_counted_in_the_state(mixture):
    loader = loader_of(mixture)
    taken(loader, 10)
    assert sum(loader.stats().skipped.values()) > 3
    assert alone().num_lanes == LANES


def restored(loader, state):
    loader.restore_state_global(state)


@pytest.mark.parametrize("count", [0, 5])
def test_some_damage_to_a_state_is_refused_or_does_no_harm(mixture, count):
    loader = loader_of(mixture)
    taken(loader, count)
    state = as_saved(loader)
    assert check(lambda: loader_of(mixture), sampled(state, 60, count), restored)


@pytest.mark.slow
def test_any_damage_to_a_state_is_refused_or_does_no_harm(mixture):
    loader = loader_of(mixture)
    taken(loader, 5)
    assert check(lambda: loader_of(mixture), damaged(as_saved(loader)), restored)
