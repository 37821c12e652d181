"""What stages that count steps cannot have, or cannot be run with."""

from __future__ import annotations

import pytest
from attrs import evolve
from trees import UP, leaf, samples

from energy_data.core.worker_config import WorkerConfig
from energy_data.errors import SpecError
from energy_data.loading.dataset import SavableDataset
from energy_data.loading.loader import Loader
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.nodes.stage import DataEnd
from energy_data.nodes.staged import StagedSpec
from loading.test_steps_stages import LARGE, SPEC, ranks_of, rule, staged


def test_ranks_that_cannot_share_steps_of_one_size_are_refused():
    with pytest.raises(
        SpecError, match=r"\[12\] micro-batches of all ranks are not whole rounds of 8"
    ):
        ranks_of(SPEC, rule(12, count="microbatches"), 8, lanes=16)


def test_without_a_rule_stages_that_count_steps_are_refused():
    with pytest.raises(SpecError, match="whose size is unknown"):
        Loader(SavableDataset(spec=SPEC, worker_config=WorkerConfig(lanes=8)))


def test_some_stages_in_steps_and_some_in_micro_batches_are_refused():
    stages = (evolve(SPEC.stages[0], counts="microbatches"), *SPEC.stages[1:])
    with pytest.raises(SpecError, match="some stages count micro-batches, some steps"):
        StagedSpec(stages=stages)


def test_what_follows_micro_batches_of_the_run_is_refused_in_stages_that_count_steps():
    of = evolve(LARGE, of=samples(BlendSpec((Part(leaf("x"), UP), Part(leaf("y"), 1)))))
    with pytest.raises(SpecError, match="stage 'a' counts steps and has weights that change"):
        staged(("a", 0, None, of))
    ended = evolve(SPEC.stages[2], data_end=DataEnd(asked=None, unread=None))
    with pytest.raises(SpecError, match="stage 'c' counts steps and ends with its data"):
        StagedSpec(stages=(*SPEC.stages[:2], ended))
