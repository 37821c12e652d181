"""The tests that the project's research asks of stages, T1 to T25, and where each of them is.

| number | what it asks | test |
|---|---|---|
| T1 | without stages there is one, `default`, and the run is that of the plain tree | test_stages_metadataset.py::test_a_run_without_stages_is_one_stage_named_default, test_stages_run.py::test_the_stage_default_draws_as_a_run_without_stages |
| T2 | 5, 5 and 5 steps, with any workers, prefetch and ranks | test_stages_workers.py::test_stages_of_5_5_and_5_steps_run_5_5_and_5 |
| T3 | saved at every micro-batch and around a boundary, restored in a new process | test_stages_run.py::test_saved_at_every_micro_batch_around_a_boundary_it_goes_on_on_other_ranks, test_stages_whole.py::test_it_goes_on_in_a_new_process |
| T4 | a gap at the front, with and without `default` | test_stages_metadataset.py::test_default_fills_the_gap_at_the_front |
| T5 | gap, overlap, equal starts, no length, names twice or blank, `end` and `for` | test_stages_metadataset.py::test_what_is_wrong_with_a_stage_is_told_with_its_place |
| T6 | the order in the file is free | test_stages_metadataset.py::test_the_order_of_stages_in_the_file_does_not_matter |
| T7 | `continue`: no repeat before an epoch ends; `restart`: equal for equal seeds | test_stages_run.py::test_a_leaf_of_several_stages_goes_on_and_gives_every_sample_once_per_epoch, test_stages_run.py::test_a_stage_that_restarts_has_an_order_of_its_own_equal_for_equal_seeds |
| T8 | A-B-A goes on with A | test_stages_run.py::test_every_order_of_visits_draws_from_a_leaf_as_if_it_were_alone, test_stages_workers.py::test_every_sample_of_the_first_epoch_comes_once_over_both_visits |
| T9 | handed back: nothing is missing, nothing comes twice | test_stages_workers.py::test_what_a_stage_has_drawn_and_not_given_comes_first_in_the_next_that_draws |
| T10 | the first batch of a stage has its shape on all ranks, no step is mixed | test_other_lengths_and_sizes_begin_with_the_same_step_on_all_ranks |
| T11 | bounds in tokens, samples and epochs, rounded up to steps; suffixes | test_stages_metadataset.py::test_bounds_become_micro_batches_in_whole_steps |
| T12 | steps of other sizes in each stage | test_stages_metadataset.py::test_batch_size_tokens_and_steps_of_each_stage_count, test_other_lengths_and_sizes_begin_with_the_same_step_on_all_ranks |
| T13 | ramps: f at the beginning, in the middle and at the end; weights that are all 0; longer than the stage; leaves that are missing; the same choice on all ranks | test_a_ramp_goes_from_the_weights_before_over_half_of_both_to_those_after, test_ramps.py::test_the_mixture_before_fades_into_the_one_after, test_a_mixture_whose_weights_are_all_0_is_refused_on_either_side_of_a_ramp, test_ramps.py::test_a_ramp_that_cannot_be_is_refused_with_its_place, test_ramps.py::test_a_ramp_is_the_same_on_any_ranks_and_restored_at_any_place |
| T15 | a stage that is put in changes no later one | test_stages_run.py::test_a_stage_that_is_added_leaves_the_others_as_they_are |
| T16 | resumed: stages renamed, moved, edited, with other ends, put in at, after and before the place | test_stages_resume.py::test_strict_takes_what_lies_ahead_as_if_it_had_always_been_so, test_stages_resume.py::test_strict_refuses_what_was_played_to_be_edited_and_nothing_moves, test_stages_resume.py::test_an_ablation_begins_neither_before_the_saved_state_nor_must_it_at_once |
| T17 | an ablation from a checkpoint is the continuous run | test_stages_resume.py::test_an_ablation_that_begins_at_the_saved_state_equals_the_continuous_run |
| T18 | finite bodies: repeat, advance, error; lanes and workers of unequal shares | test_stages_run.py::test_a_pipeline_that_ends_is_played_again_or_is_an_error, test_stages_exhausted.py::test_it_ends_before_the_first_step_for_which_a_lane_has_not_enough_left, test_stages_exhausted.py::test_a_stage_that_lasts_longer_than_its_data_may_be_an_error, test_stages_exhausted.py::test_saved_before_at_and_after_such_an_end_it_goes_on_on_any_ranks_and_workers |
| T19 | from 4 ranks with 1 worker to 1 with 4 | test_stages_workers.py::test_of_four_ranks_with_one_worker_it_goes_on_on_one_with_four |
| T20 | a damaged state is an error and no new start | test_stages_resume.py::test_a_damaged_place_of_a_stage_is_an_error_and_no_new_start, ../loading/test_damaged.py::test_some_damage, ../loading/test_damaged.py::test_some_damage_before_an_edit |
| T21 | stages without length, or never reached | test_stages_metadataset.py::test_what_is_wrong_with_a_stage_is_told_with_its_place, test_stages_metadataset.py::test_the_end_of_the_run_may_be_said_and_is_checked |
| T22 | saved before the first batch | test_stages_run.py::test_saved_at_every_micro_batch_around_a_boundary_it_goes_on_on_other_ranks, test_stages_resume.py::test_a_state_from_before_the_first_batch_bears_any_plan |
| T23 | what was prefetched in a stage that is left, and not given, comes first when it is read again | test_stages_ends.py::test_what_a_left_stage_had_prefetched_and_never_gave_comes_first_when_it_is_read_again |
| T24 | the text of the plan and of transitions | test_stages_shown.py::test_the_plan_and_every_transition_are_logged, test_stages_shown.py::test_a_resumed_run_logs_the_plan_and_where_it_is_and_only_rank_0_logs |
| T25 | validation has no stages | test_stages_metadataset.py::test_validation_has_a_mixture_of_its_own |
"""  # noqa: E501 - names of tests are not broken

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
from trees import leaf, samples
from webdataset import TarWriter

from energy_data import (
    DefaultTaskEncoder,
    SpecError,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energy_data.config.staged import ramped
from energy_data.core.context import Context
from energy_data.nodes.blend import BlendSpec, Part
from energy_data.testing import take


def test_each_test_of_the_table_is_there():
    here = Path(__file__).parent
    rows = [row.split("|") for row in __doc__.splitlines() if row.startswith("| T")]
    assert [row[1].strip() for row in rows] == [
        f"T{number}" for number in range(1, 26) if number != 14
    ]
    for _, number, _, tests, _ in rows:
        for name in tests.split(","):
            file, _, test = name.strip().rpartition("::")
            tree = ast.parse((here / (file or Path(__file__).name)).read_text())
            defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert test in defined, f"{number}: there is no {name}"


@dataclass
class Cut(DefaultTaskEncoder):
    seq_len: int = 16

    def encode_sample(self, sample):
        return {"text": sample["txt"][: self.seq_len]}


LONGER = """
splits:
  train:
    staged:
      stages:
        - {name: short, end: 3, path: web}
        - {name: long, end: 5, params: {seq_len: 64, batch_size: 1, microbatches_per_step: 8}, path: web}
        - {name: again, path: web}
"""  # noqa: E501


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_other_lengths_and_sizes_begin_with_the_same_step_on_all_ranks(ranks, tmp_path):
    (tmp_path / "web").mkdir()
    with TarWriter(str(tmp_path / "web" / "shard-0.tar")) as tar:
        for number in range(80):
            tar.write({"__key__": f"{number}", "txt": "word " * 20})
    (tmp_path / "run.yaml").write_text(LONGER)
    expected = [(2, 16)] * 3 * 4 + [(1, 64)] * 2 * 8 + [(2, 16)] * 4
    for rank in range(ranks):
        config = WorkerConfig(rank, ranks, lanes=8)
        dataset = get_train_dataset(
            tmp_path / "run.yaml",
            batch_size=2,
            task_encoder=Cut(),
            microbatches_per_step=4,
            worker_config=config,
        )
        shapes = [
            (len(batch["text"]), len(batch["text"][0]))
            for batch in islice(get_loader(dataset), len(expected) // ranks)
        ]
        assert shapes == expected[rank::ranks]


A, B, C = leaf("a", 50), leaf("b", 50), leaf("c", 50)
BEFORE, AFTER = BlendSpec((Part(A, 3), Part(B, 1))), BlendSpec((Part(A, 1), Part(C, 3)))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_ramp_goes_from_the_weights_before_over_half_of_both_to_those_after(kind):
    node = samples(ramped(BEFORE, AFTER, samples=6000, kind=kind)).build(Context())
    drawn = [sample["__key__"][0] for sample in take(node, 6200)]

    def counts(first):
        return [drawn[first : first + 100].count(name) for name in "abc"]

    assert counts(0) == pytest.approx([75, 25, 0], abs=2)
    assert counts(2950) == pytest.approx([50, 12.5, 37.5], abs=2)
    assert counts(5900) == pytest.approx([25, 0, 75], abs=2)
    assert counts(6050)[1] == 0


@pytest.mark.parametrize("zero", ["one", "two"])
def test_a_mixture_whose_weights_are_all_0_is_refused_on_either_side_of_a_ramp(zero, tmp_path):
    weights = {name: int(name != zero) for name in ("one", "two")}
    stages = [
        {"name": "one", "end": 5, "blend": [{"path": "web", "weight": weights["one"]}]},
        {
            "name": "two",
            "blend": [{"path": "web", "weight": weights["two"]}],
            "ramp": {"over": 2},
        },
    ]
    with pytest.raises(SpecError, match=r"stages\[[01]\].blend: no child has weight > 0"):
        get_train_dataset(
            {"splits": {"train": {"staged": {"stages": stages}}}},
            batch_size=2,
            microbatches_per_step=1,
            worker_config=WorkerConfig(lanes=1),
        )
