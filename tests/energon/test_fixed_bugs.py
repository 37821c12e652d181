"""Bugs that Energon and its users' programs had and mended, by the number they gave them.

What a bug looked like is in the docstrings; the list is section 7b of the project's research. A
test that is elsewhere is named here, and all names are checked by the last test.

| number | what it was about | test |
|---|---|---|
| PR #126 | restored with the wrong worker's state; saved again at once | test_encoder_law.py::test_what_workers_restored_can_be_saved_before_they_have_given_anything |
| PR #79 | batch index after a restore without workers | test_encoder_law.py::test_restored_at_any_batch_it_goes_on_and_can_be_saved_again_at_once |
| d4881a1 | saved before a worker had made anything | test_saved_before_any_worker_has_made_anything_it_begins |
| PR #80 | states by rank and worker, not to be dealt out anew | ../loading/test_law.py::test_saved_at_any_batch_it_goes_on_identically |
| PR #72, #71 | global states over real ranks, and over one group of several | ../loading/test_ranks.py::test_saved_on_gloo_ranks_it_goes_on_on_another_number_of_them, test_fixed_bugs_ranks.py::test_pr71_of_two_groups_each_saves_and_restores_on_its_own_ranks |
| PR #43, #49 | size of states | ../loading/test_packing.py::test_a_state_has_at_most_32_bytes_per_pending_reference |
| PR #41, #14 | exact epochs, blends that end | test_fixed_bugs_mixtures.py::test_pr41_a_blend_of_what_ends_has_all_of_each_and_ends_with_the_last |
| PR #89 | fractions, the end of a pass, no number of epochs | test_fixed_bugs_mixtures.py::test_pr89_a_pass_stops_right_after_its_last_sample_and_the_next_begins_anew, test_fixed_bugs_mixtures.py::test_pr89_a_fraction_of_a_pass_is_exact_though_floats_are_not, test_fixed_bugs_mixtures.py::test_pr89_an_order_over_no_number_of_epochs_has_each_sample_once_in_each |
| PR #147 | fractions of repetitions with workers | test_fixed_bugs_mixtures.py::test_pr147_fractions_of_repetitions_are_exact_with_any_workers |
| 6f52019 | repetitions without end | test_fixed_bugs_mixtures.py::test_6f52019_repetitions_go_on_without_end_in_the_same_proportions |
| PR #107 | ranges of shards | ../data/test_energon_bugs.py::test_107_every_slice_of_uneven_shards_is_in_range |
| PR #145 | fewer samples than workers | test_fixed_bugs_mixtures.py::test_pr145_a_dataset_smaller_than_the_workers_is_whole_alone_and_in_a_mixture |
| PR #68, #69 | workers without samples | test_fixed_bugs_mixtures.py::test_pr69_workers_without_samples_disturb_neither_keys_nor_restores |
| PR #115, #114 | the end of what is packed | test_fixed_bugs_packing.py::test_pr115_at_its_end_a_pass_packs_what_is_left |
| PR #65 | a buffer that was refilled late, and no pack at all | test_fixed_bugs_packing.py::test_pr65_every_selection_is_from_a_full_buffer_of_the_next_samples, test_fixed_bugs_packing.py::test_pr65_a_selection_that_never_gives_a_pack_is_an_error_and_not_a_hang |
| PR #111, PR #12, 1a4e5a6 | keys while packing | test_fixed_bugs_packing.py::test_pr111_samples_of_a_pack_keep_their_keys_in_every_function |
| PR #64, #31, 133eb09 | groups: no encode_batch, no restore | test_fixed_bugs_packing.py::test_pr64_grouped_batches_are_encoded_and_what_waits_is_restored |
| PR #32 | remainders of many datasets | test_fixed_bugs_mixtures.py::test_pr32_what_is_left_over_of_many_datasets_does_not_pile_up |
| d0bcaf1 | an order that torch decided | ../order/test_permutation.py::test_the_order_is_the_same_for_ever, ../order/test_shares.py::test_the_order_is_the_same_for_ever |
| PR #151 | a range of samples in a file of which a part is taken | test_pr151_a_range_of_samples_is_one_within_a_part_of_its_file_too |
| PR #152 | other files in .nv-meta | ../data/test_energon_bugs.py::test_152_other_split_and_dataset_files_count_in_metadatasets |
| #241, PR #242 | a mapping in the place of a path | test_pr242_a_mapping_is_as_good_as_its_file |
| #134 | remote paths | ../config/test_load.py::test_a_path_of_an_unknown_scheme_is_an_error_and_never_joined |
| PR #149 | one task encoder in two loaders | test_pr149_one_task_encoder_serves_several_loaders |
| PR #181, 0688b0d | failures in a row, over repetitions | test_pr181_one_bad_sample_is_never_too_many_however_often_it_comes, test_0688b0d_a_dataset_without_a_good_sample_is_given_up |
| 5212bf0 | a tolerance of none | test_5212bf0_a_tolerance_of_0_or_none_is_never_used_up |
| PR #223 | two classes SkipSample | test_pr223_there_is_one_skip_sample |
| PR #237, 06d99a0 | garbage of the trainer in workers | test_fixed_bugs_processes.py::test_pr237_workers_never_free_what_the_trainer_left_to_be_collected |
| PR #198 | objects of django | test_fixed_bugs_processes.py::test_pr198_objects_of_others_that_must_not_be_looked_at_are_left_alone |
| PR #190, 3431714 | deadlocks in finalizers | test_fixed_bugs_processes.py::test_pr190_what_is_let_go_of_within_a_lock_does_not_wait_for_it, test_fixed_bugs_processes.py::test_pr190_a_forked_child_lets_the_files_of_its_parent_be |
| 18e39d2, ea89a0e | threads before a fork | test_fixed_bugs_processes.py::test_18e39d2_loaders_start_no_thread_before_they_fork_and_pools_begin_anew_after_it |
| PR #128, #131 | batches that do not say which samples they have | test_pr128_batches_need_not_say_which_samples_they_are_of |
| PR #173 | a database that must be locked | ../data/test_energon_bugs.py::test_173_index_and_data_in_a_read_only_folder_are_read |
| 7cdfb8c | an index that kept what was gone | ../data/test_energon_bugs.py::test_7cdfb8c_preparing_again_leaves_nothing_of_the_old_index |
| f6e3688 | samples by number, shifted by one | test_f6e3688_files_by_key_are_those_of_the_sample_with_the_key |
| PR #6 | a loader that is stuck | ../loading/test_faults.py::test_a_sample_that_sleeps_for_ever_is_an_error_with_sample_and_stack |
| Bridge PR #5245 | iterators that could not be saved | test_bridge_pr5245_whatever_is_iterated_can_be_saved |
| Bridge PR #5593 | no state, and a missing rank, as one | ../loading/test_state.py::test_no_state_is_an_error_of_its_own, ../loading/test_state.py::test_part_of_the_ranks_is_an_error_that_names_the_missing |
| Bridge PR #5637 | another number of ranks, restored as rank 0 | test_bridge_pr5637_one_of_two_ranks_is_no_state_of_the_run |
| Bridge PR #4521 | all ranks wrote one file | ../loading/test_checkpoint.py::test_ranks_save_different_keys_and_all_else_is_the_same |
| NeMo-RL PR #3917 | shuffling switched off | test_nemo_rl_pr3917_nothing_is_shuffled_if_asked |
| NeMo-RL PR #4070 | samples that are too long | test_fixed_bugs_packing.py::test_nemo_rl_pr4070_a_sample_that_is_too_long_does_not_end_the_run |
"""  # noqa: E501 - names of tests are not broken

from __future__ import annotations

import ast
import logging
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
import yaml
from data import CAPTIONS, TEXTS, make_dataset, png
from encoders import Everything, alone, facts

import energy_data
import energy_data.energon
import energy_data.errors
from energy_data.data.registry import open_store
from energy_data.energon import (
    DefaultTaskEncoder,
    FatalSampleError,
    MetadatasetV2,
    SampleDecoder,
    SkipSample,
    WorkerConfig,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    load_dataset,
    stateless,
)
from energy_data.errors import StateError, StateIncompleteError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("fixed")
    make_dataset(made / "texts", TEXTS, count=20, images=False)
    make_dataset(made / "captions", CAPTIONS, count=12)
    return made


def training(path, encoder=None, config=None, batch_size=2, **options):
    options = {"shuffle_buffer_size": None, "max_samples_per_sequence": None, **options}
    return get_train_dataset(
        path,
        batch_size=batch_size,
        worker_config=config or alone(),
        task_encoder=encoder,
        **options,
    )


def texts_of(loader, count=None):
    found = [batch.text for batch in islice(loader, count)]
    loader.close()
    return found


class Keys(DefaultTaskEncoder):
    def batch(self, samples):
        return [sample.__key__ for sample in samples]


def keys_of(loader, count):
    found = list(islice(loader, count))
    loader.close()
    return found


@pytest.mark.parametrize("num_workers", [0, 3])
def test_saved_before_any_worker_has_made_anything_it_begins(folder, num_workers):
    """d4881a1: saving failed, or said nothing, before the first batch."""
    config = alone(num_workers)
    expected = texts_of(get_loader(training(folder / "texts", config=config)), 6)
    fresh = get_loader(training(folder / "texts", config=config))
    state = fresh.save_state_rank()
    again = get_loader(training(folder / "texts", config=config))
    again.restore_state_rank(state)
    assert again.save_state_rank() == state
    assert texts_of(again, 6) == expected


def test_pr151_a_range_of_samples_is_one_within_a_part_of_its_file_too(folder):
    """PR #151 (278fa1a): below a part in percent, a range in samples became another one."""
    ten = {"path": str(folder / "texts"), "subset": {"range": [4, 14]}}
    inner = {"splits": {"val": ten}}
    (folder / "inner.yaml").write_text(yaml.safe_dump(inner))
    half = {"path": str(folder / "inner.yaml"), "subset": {"range": ["50%", "100%"]}}
    held = get_val_dataset({"splits": {"val": half}}, batch_size=1, worker_config=alone())
    whole = get_val_dataset(inner, batch_size=1, worker_config=alone())
    assert texts_of(get_loader(held)) == texts_of(get_loader(whole))[5:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pr242_a_mapping_is_as_good_as_its_file(folder, num_workers):
    """#241, PR #242, #244, #245: a mapping was not initialised, and failed at a bare assert."""
    parts = [{"path": str(folder / "texts")}, {"path": str(folder / "captions"), "weight": 2}]
    mapping = {"splits": {"train": {"blend": parts}}}
    (folder / "m.yaml").write_text(yaml.safe_dump(mapping))
    config = alone(num_workers)
    expected = keys_of(get_loader(training(folder / "m.yaml", Keys(), config)), 8)
    assert keys_of(get_loader(training(mapping, Keys(), config)), 8) == expected
    relative = {"train": {"blend": [{"path": "texts"}, {"path": "captions"}]}}
    objects = (load_dataset(mapping), MetadatasetV2(folder / "m.yaml", splits=relative))
    for one in objects:
        found = one.get_datasets(training=True, split_part="train", worker_config=config)
        assert [len(loaded.dataset) for loaded in found.datasets] == [20, 12]


def test_pr149_one_task_encoder_serves_several_loaders(folder):
    """PR #149 (7679c87): the second loader changed the decoder that the first was using."""
    encoder = DefaultTaskEncoder()
    encoder.decoder = SampleDecoder(image_decode="torchrgb8")
    own = encoder.decoder
    first = get_loader(training(folder / "captions", encoder))
    begun = next(iter(first))
    other = get_loader(training(folder / "captions", encoder, alone(num_workers=2)))
    held = get_loader(
        get_val_dataset(
            folder / "captions", batch_size=2, worker_config=alone(), task_encoder=encoder
        )
    )
    kinds = {batch.image.dtype for loader in (first, other, held) for batch in islice(loader, 3)}
    other.close()
    assert kinds == {begun.image.dtype}
    assert str(begun.image.dtype) == "torch.uint8"
    assert encoder.decoder is own


class Bad(DefaultTaskEncoder):
    @stateless(failure_tolerance=3)
    def encode_sample(self, sample):
        if int(sample.text.split()[-1]) in self.bad:
            raise ValueError("bad on purpose")
        return sample


class OneBad(Bad):
    bad = (7,)


class AllBad(Bad):
    bad = tuple(range(20))


@pytest.fixture
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "energy_data.core.user_call")


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("lanes", [1, 4])
def test_pr181_one_bad_sample_is_never_too_many_however_often_it_comes(folder, lanes):
    """PR #181: failures were added up over repetitions, in which good samples lay between."""
    loader = get_loader(training(folder / "texts", OneBad(), alone(lanes=lanes), 19))
    for _ in range(6 * lanes):
        assert "texts 7" not in next(iter(loader)).text
    assert loader.stats().skipped["SkipSample or error while encoding samples"] >= 3


@pytest.mark.usefixtures("quiet")
def test_0688b0d_a_dataset_without_a_good_sample_is_given_up(tmp_path):
    """0688b0d: with fewer samples than are put up with, it was repeated for ever."""
    two = make_dataset(tmp_path / "texts", TEXTS, count=2, images=False)
    with pytest.raises(FatalSampleError, match="encode_sample: it failed 3 times in a row"):
        next(iter(get_loader(training(two, AllBad(), alone(lanes=1)))))


def only_the_last(sample):
    if sample.text != "texts 19":
        raise ValueError("bad on purpose")
    return sample


class Tolerant(DefaultTaskEncoder):
    @stateless(failure_tolerance=0)
    def encode_sample(self, sample):
        return only_the_last(sample)


class TolerantByDefault(DefaultTaskEncoder):
    __default_failure_tolerance__ = None

    def encode_sample(self, sample):
        return only_the_last(sample)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("encoder", [Tolerant, TolerantByDefault])
def test_5212bf0_a_tolerance_of_0_or_none_is_never_used_up(folder, encoder):
    """5212bf0: None and 0 were taken for each other, and for a tolerance of one."""
    loader = get_loader(training(folder / "texts", encoder(), alone(lanes=1), 10))
    assert texts_of(loader, 1) == [["texts 19"] * 10]  # 190 failures


def test_pr223_there_is_one_skip_sample():
    """PR #223: a second class of that name was in reach, and meant nothing to the loader."""
    found = {
        getattr(module, "SkipSample", SkipSample)
        for module in (energy_data, energy_data.energon, energy_data.errors)
    }
    assert found == {SkipSample}


@dataclass
class Plain:
    """A batch as people write it: it says nothing about its samples."""

    text: list[str]


class ToPlain(DefaultTaskEncoder):
    def batch(self, samples):
        return Plain([sample.text for sample in samples])

    def encode_batch(self, batch):
        return batch


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    "encoder", [ToPlain(), DefaultTaskEncoder(raw_batch_type=Plain), DefaultTaskEncoder()]
)
def test_pr128_batches_need_not_say_which_samples_they_are_of(folder, encoder, num_workers):
    """PR #128, #131: a dataclass of one's own without `__restore_key__` was an AttributeError."""
    config = alone(num_workers, worker_log_level=2)
    loader = get_loader(training(folder / "texts", encoder, config, 4))
    expected = [batch.text for batch in islice(loader, 6)]
    state = loader.save_state_rank()
    after = texts_of(loader, 3)
    assert all(len(texts) == 4 for texts in expected)
    again = get_loader(training(folder / "texts", encoder, config, 4))
    again.restore_state_rank(state)
    assert texts_of(again, 3) == after


def test_f6e3688_files_by_key_are_those_of_the_sample_with_the_key(folder):
    """f6e3688: mounted, each sample had the files of the one before it."""
    store = open_store(folder / "captions")
    for number in range(12):
        key = f"captions-{number:04d}"
        data, source = store[f"{key}.txt"]
        assert data == f"captions {number}".encode()
        assert store[f"{key}.png"][0] == png(number)
        assert source.shard == f"shard-{number % 2}.tar"
        assert {name for name, _, _ in store.list_sample_parts(key)} == {"txt", "png"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_bridge_pr5245_whatever_is_iterated_can_be_saved(folder, num_workers):
    """Bridge #3993, PR #5245: what `iter` gave had no state, and nothing was saved, in silence."""
    config = alone(num_workers)
    loader = get_savable_loader(training(folder / "texts", config=config))
    stream = iter(loader)
    for batch in islice(stream, 5):
        assert len(batch.text) == 2
    assert stream.state_dict() == loader.state_dict() == loader.save_state_rank()
    after = [batch.text for batch in islice(stream, 4)]
    again = get_savable_loader(training(folder / "texts", config=config))
    other = iter(again)
    other.load_state_dict(loader.state_dict())
    again.restore_state_rank(loader.state_dict())
    loader.close()
    assert len(after) == 4
    assert again.state_dict()["places"]
    again.close()


def test_bridge_pr5637_one_of_two_ranks_is_no_state_of_the_run(folder):
    """Bridge PR #5637: two ranks became one, which took the state of rank 0 for its own."""
    ranks = [WorkerConfig(rank=rank, world_size=2, lanes=4) for rank in range(2)]
    loaders = [get_loader(training(folder / "texts", config=config)) for config in ranks]
    states = [(list(islice(loader, 3)), loader.save_state_rank())[1] for loader in loaders]
    one = get_loader(training(folder / "texts", config=WorkerConfig(lanes=4)))
    with pytest.raises(StateIncompleteError, match="missing 1"):
        one.restore_state_rank(states[0])
    with pytest.raises(StateError, match="rank"):
        loaders[0].restore_state_rank(states[1])
    one.restore_state_global(states)
    expected = texts_of(get_loader(training(folder / "texts", config=alone(lanes=4))), 10)
    assert texts_of(one, 4) == expected[6:]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_nemo_rl_pr3917_nothing_is_shuffled_if_asked(folder, num_workers):
    """NeMo-RL PR #3917: with shuffling off, a worker failed at `assert 16 == 1`."""
    config = alone(num_workers, lanes=1)
    loader = get_loader(training(folder / "texts", config=config, batch_size=5))
    keys = [text for texts in texts_of(loader, 8) for text in texts]
    assert keys[:20] == keys[20:]
    assert keys[:20] == [f"texts {n}" for n in (*range(0, 20, 2), *range(1, 20, 2))]


def test_every_row_of_the_table_names_tests_that_are_there():
    here = Path(__file__).parent
    rows = [row for row in __doc__.splitlines() if row.startswith("| ")][1:]
    assert len(rows) >= 40
    for row in rows:
        for name in row.rpartition("|")[0].rpartition("|")[2].split(","):
            file, _, test = name.strip().rpartition("::")
            tree = ast.parse((here / (file or Path(__file__).name)).read_text())
            defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert test in defined, f"{row.split('|')[1]}: there is no {name}"
        assert re.search(r"#\d+|[0-9a-f]{7}", row)


def test_everything_at_once_can_be_saved_at_every_batch(folder, caplog):
    """All of them together: packs, groups, generators, failures and workers, saved each time."""
    caplog.set_level(logging.CRITICAL, "energy_data.core.user_call")

    def new(num_workers):
        return get_loader(
            training(folder / "texts", Everything(), alone(num_workers), packing_buffer_size=5)
        )

    expected = [facts(batch) for batch in islice(new(0), 14)]
    loader = new(3)
    for at in range(7):
        state = loader.save_state_rank()
        again = new(0)
        again.restore_state_rank(state)
        assert [facts(batch) for batch in islice(again, 4)] == expected[at : at + 4]
        assert facts(next(iter(loader))) == expected[at]
    loader.close()
