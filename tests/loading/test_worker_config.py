"""Rank and world size come from the process group or the launcher, unless they are given."""

import pytest

from energy_data import SpecError, WorkerConfig

RANK = """
from torch import distributed
from energy_data import SpecError, WorkerConfig

distributed.init_process_group("gloo")
rank = distributed.get_rank()
run = WorkerConfig(num_workers=2, lanes=12)
assert (run.rank, run.world_size) == (rank, 3)
pair = distributed.new_group([1, 2])
if rank:
    run = WorkerConfig(data_parallel_group=pair)
    assert (run.rank, run.world_size, run.global_rank()) == (rank - 1, 2, rank)
    try:
        WorkerConfig(rank, 3, data_parallel_group=pair)
    except SpecError as error:
        assert f"data_parallel_group, which is {rank - 1} of 2" in str(error)
    else:
        raise AssertionError
distributed.destroy_process_group()
"""


@pytest.fixture
def launched(monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")


def placed(config):
    return config.rank, config.world_size


def test_a_process_without_a_launcher_is_the_only_rank():
    assert placed(WorkerConfig(num_workers=2)) == (0, 1)


@pytest.mark.parametrize("make", [WorkerConfig, WorkerConfig.default_worker_config])
def test_rank_and_world_size_are_those_of_the_launcher(launched, make):
    assert placed(make(num_workers=0)) == (2, 4)


def test_given_ranks_take_precedence_over_those_of_the_launcher(launched):
    assert placed(WorkerConfig(1, 2)) == (1, 2)


def test_a_rank_of_the_launcher_outside_the_given_world_size_is_an_error(launched):
    with pytest.raises(SpecError, match="got rank 2 of world_size 1"):
        WorkerConfig(world_size=1)


def test_rank_and_world_size_are_those_of_the_process_group(tmp_path, gloo_ranks):
    gloo_ranks.run_well(RANK, tmp_path, 3)
