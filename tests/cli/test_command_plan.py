import json
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import torch

from energy_data import (
    BatchDataset,
    BlendDataset,
    MapDataset,
    Packing,
    RepeatDataset,
    StateMismatchError,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    stateless,
)

OLD = """\
splits:
  train:
    staged:
      stages:
        - {name: one, end: 5, path: books}
        - {name: two, end: 10, blend: [{path: books}, {path: code}]}
        - {name: three, path: code}
"""
FACTS = ("--batch-size", 4, "--microbatches-per-step", 2)


@pytest.fixture
def datasets(dataset):
    dataset("books", 60, 40)
    dataset("code", 80)
    dataset("web", 50)


def state_after(meta, batches):
    config = WorkerConfig(num_workers=0, lanes=4)
    dataset = get_train_dataset(meta, batch_size=4, microbatches_per_step=2, worker_config=config)
    loader = get_loader(dataset)
    list(islice(loader, batches))
    return loader.state_dict()


@stateless
def encoded(self, sample):
    return {"number": torch.ones(1 + sample["json"]["number"] % 3)}


@dataclass
class Plain(TaskEncoder):
    seq_len: int = 8

    encode_sample = encoded


@dataclass
class Packed(Plain):
    @property
    def packing(self):
        return Packing(limits={"number": self.seq_len})


class SelfPacked(TaskEncoder):
    encode_sample = encoded

    @stateless
    def select_samples_to_pack(self, samples):
        return [samples[first : first + 3] for first in range(0, len(samples), 3)]

    @stateless
    def pack_selected_samples(self, samples):
        return {"number": torch.ones(len(samples))}


class Grouped(Plain):
    def batch_group_criterion(self, sample):
        return len(sample["number"]), None


class OtherBlend(TaskEncoder):
    def build_train_datasets(self, *, datasets, **facts):
        samples = [RepeatDataset(one.dataset.build()) for one in datasets]
        mapped = [MapDataset(one, encoded.__get__(self)) for one in samples]
        return BatchDataset(BlendDataset(*((one, 1) for one in mapped)), 4, self.batch)


BLEND = "splits: {train: {blend: [{path: books, weight: 2}, {path: code}]}}"
STAGED = (
    "splits: {train: {staged: {stages: [{name: one, end: 5, path: books}, "
    "{name: two, end: 10, blend: [{path: books}, {path: code}], params: {batch_size: 2}}, "
    "{name: three, path: code}]}}}"
)
LONGER = STAGED.replace("batch_size: 2", "seq_len: 4")
RAMPED = STAGED.replace("params: {batch_size: 2}", "ramp: {over: 2}")
STEPS = BLEND.replace("train: ", "train: {docs_per_step: {target: 8, mode: exact, shares: 4, of: ")
STEPS += "}}"
RUNS = {
    "plain": (BLEND, {}),
    "encoder": (BLEND, {"task_encoder": Plain()}),
    "packed": (BLEND, {"task_encoder": Packed()}),
    "self-packed": (BLEND, {"task_encoder": SelfPacked(), "packing_buffer_size": 9}),
    "grouped": (BLEND, {"task_encoder": Grouped()}),
    "exact steps": (STEPS, {}),
    "weights that change": (BLEND.replace("2", "{linear: {0: 1, 40: 3}}"), {}),
    "one pass": (BLEND.replace(", weight: 2", ""), {"repeat": False}),
    "no shuffling": (BLEND, {"shuffle_buffer_size": None, "max_samples_per_sequence": 7}),
    "seed and lanes": (BLEND, {"seed": 5, "worker_config": WorkerConfig(num_workers=0, lanes=6)}),
    "stages": (STAGED, {}),
    "longer packs": (LONGER, {"task_encoder": Packed()}),
    "ramp": (RAMPED, {"task_encoder": Plain()}),
}
EDITS = {
    "none": lambda text: text,
    "stage ahead": lambda text: text.replace("three, path: code", "three, path: web"),
    "weight": lambda text: text.replace("{path: code}]", "{path: code, weight: 9}]"),
    "end": lambda text: text.replace("end: 5", "end: 6"),
    "later end": lambda text: text.replace("end: 10", "end: 12"),
    "another leaf": lambda text: text.replace("{path: code}]", "{path: code}, {path: web}]"),
}


@pytest.mark.parametrize(
    ("run", "edit"),
    [
        (run, edit)
        for run, (text, _) in RUNS.items()
        for edit, edited in EDITS.items()
        if edit == "none" or edited(text) != text
    ],
)
def test_with_a_state_alone_the_plan_knows_whether_the_state_is_restored(
    energy_data, datasets, write, run, edit
):
    text, facts = RUNS[run]
    facts = {"worker_config": WorkerConfig(num_workers=0), **facts}
    facts = {"batch_size": 4, "microbatches_per_step": 2, **facts}
    loader = get_loader(get_train_dataset(write("meta.yaml", text), **facts))
    list(islice(loader, 13))
    state = loader.state_dict()
    edited = write("edited.yaml", EDITS[edit](text))
    try:
        get_loader(get_train_dataset(edited, **facts)).load_state_dict(state)
    except StateMismatchError:
        expected = 1
    else:
        expected = 0
    done = energy_data("plan", edited, "--against", write("state.json", json.dumps(state)))
    assert done.exit_code == expected, done.output
    assert ("the order of the data is the same" in done.stdout) is (edit == "none")


@pytest.mark.parametrize("batches", [1, 7])
def test_windows_of_stages_have_their_own_length_in_a_plan_against_a_state(
    energy_data, tmp_path, write, batches
):
    np.save(tmp_path / "corpus.npy", np.arange(4000, dtype=np.uint16))
    stages = "[{name: short, for: 96, path: corpus.npy, seq_len: 8}, "
    stages += "{name: long, path: corpus.npy, seq_len: 32}]"
    meta = write("meta.yaml", f"splits: {{train: {{staged: {{unit: tokens, stages: {stages}}}}}}}")
    facts = {"worker_config": WorkerConfig(num_workers=0, lanes=2), "microbatches_per_step": 2}
    loader = get_loader(get_train_dataset(meta, batch_size=2, **facts))
    list(islice(loader, batches))
    done = energy_data("plan", meta, "--against", write("s.json", json.dumps(loader.state_dict())))
    assert (done.exit_code, done.stderr) == (0, "")
    assert "the order of the data is the same" in done.stdout


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (("--batch-size", 5), "refused: batch_size was 4, is 5"),
        (("--max-samples-per-sequence", 5), "refused: max_samples_per_sequence was 100, is 5"),
        (("--shuffle-buffer-size", 0), "refused: effective shuffle_buffer_size was 1600, is 0"),
        (("--seed", 3), "refused: seed was 0, is 3: it is fixed for the life of a run"),
        (("--lanes", 8), "refused: lanes was 16, is 8: it is fixed for the life of a run"),
    ],
)
def test_what_is_given_beside_a_state_is_part_of_the_edit(
    energy_data, datasets, write, given, found
):
    meta = write("meta.yaml", BLEND)
    loader = get_loader(get_train_dataset(meta, batch_size=4, task_encoder=Packed()))
    next(iter(loader))
    state = write("state.json", json.dumps(loader.state_dict()))
    done = energy_data("plan", meta, "--against", state, *given)
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [found]


def test_a_pipeline_that_a_task_encoder_mixes_by_itself_is_an_error(energy_data, datasets, write):
    meta = write("meta.yaml", BLEND)
    loader = get_loader(get_train_dataset(meta, batch_size=4, task_encoder=OtherBlend()))
    state = write("state.json", json.dumps(loader.state_dict()))
    done = energy_data("plan", meta, "--against", state)
    assert done.exit_code == 1
    assert "a task encoder of the saved run mixes 2 streams by itself" in done.stderr


@pytest.mark.parametrize(
    ("above", "per_step"),
    [("staged: {", 1), ("docs_per_step: {target: 8, of: {staged: {unit: steps, ", None)],
)
def test_a_run_with_default_arguments_fits_its_own_plan(
    energy_data, datasets, write, above, per_step
):
    stages = "stages: [{name: one, end: 50, path: books}, {name: two, path: code}]"
    meta = write("meta.yaml", f"splits: {{train: {{{above}{stages}{'}' * (above.count('{') + 2)}")
    loader = get_loader(get_train_dataset(meta, batch_size=4, microbatches_per_step=per_step))
    list(islice(loader, 13))  # within a step
    state = write("state.json", json.dumps(loader.state_dict()))
    done = energy_data("plan", meta, "--against", state)
    assert done.exit_code == 0, done.stderr
    assert "the order of the data is the same" in done.stdout
    assert "shuffle_buffer_size=100, max_samples_per_sequence=100" in done.stdout


def test_check_refuses_what_a_run_with_steps_of_documents_refuses(energy_data, datasets, write):
    ramped = "{name: two, path: code, ramp: {over: 2}}"
    write(
        "meta.yaml",
        "splits: {train: {docs_per_step: {target: 8, of: {staged: {unit: steps, stages: "
        f"[{{name: one, end: 50, path: books}}, {ramped}]}}}}}}}}}}\n",
    )
    done = energy_data("check", "meta.yaml")
    assert done.exit_code == 1
    assert "stage 'two': a ramp follows the micro-batches of the run" in done.stderr


@pytest.mark.parametrize("facts", [FACTS, ()], ids=["as the run", "of the state"])
def test_what_an_edit_does_to_each_leaf_is_shown_before_it_runs(
    energy_data, datasets, write, facts
):
    old = write("old.yaml", OLD)
    new = write("new.yaml", OLD.replace("name: three, path: code", "name: four, path: web"))
    state = write("state.json", json.dumps(state_after(old, 13)))
    done = energy_data("plan", new, "--against", state, *facts)
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "stage 'three' is gone" in lines
    assert "stage 'four' is new, as number 2" in lines
    assert (
        "leaf books:train: continues after 46 samples; 100 % of one (0.4 epochs), 50 % of two "
        "(0.2 epochs) -> 100 % of one (0.4 epochs), 50 % of two (0.2 epochs)"
    ) in lines
    assert "leaf web:train: begins after 0 samples; nothing -> 100 % of four" in lines
    assert lines[-1] == "a state at micro-batch 13 would be restored (resume: strict)"


def test_an_edit_of_what_was_played_is_refused_and_the_exit_code_says_so(
    energy_data, datasets, write
):
    old = write("old.yaml", OLD)
    new = write("new.yaml", OLD.replace("end: 5", "end: 6"))
    state = write("state.json", json.dumps(state_after(old, 13)))
    done = energy_data("plan", new, "--against", state, *FACTS)
    assert done.exit_code == 1
    assert "refused: stage 'one' is over; end was 10, is 12" in done.stderr
    assert energy_data("plan", new, "--against", old, *FACTS).exit_code == 0


def test_a_run_that_is_called_otherwise_is_refused(energy_data, datasets, write):
    old = write("old.yaml", OLD)
    state = write("state.json", json.dumps(state_after(old, 13)))
    done = energy_data("plan", old, "--against", state, "--batch-size", 5)
    assert done.exit_code == 1
    assert "stage 'one' is over; batch_size was 4, is 5" in done.stderr


def test_plain_metadatasets_are_compared_too(energy_data, datasets, write):
    old = write("old.yaml", "splits: {train: {blend: [{path: books}, {path: code}]}}")
    new = write("new.yaml", "splits: {train: {blend: [{path: books, weight: 3}, {path: code}]}}")
    done = energy_data("plan", new, "--against", old)
    assert done.exit_code == 0
    assert "leaf books:train: continues after 0 samples; 50 % of default -> 75 % of default" in (
        done.stdout
    )


def test_the_plan_shows_each_stage_and_what_it_draws(energy_data, datasets, write):
    old = write("old.yaml", OLD)
    done = energy_data("plan", old, *FACTS)
    assert done.exit_code == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["one", "0", "->", "5", "0", "->", "10", "40"] in lines
    assert ["one:", "an", "end", "at", "5", "steps,"] in [words[:6] for words in lines]
    assert ["books:train", "40", "100.00", "0.400"] in lines
    assert ["books:train", "20", "50.00", "0.200"] in lines
    done = energy_data("inspect", old)
    assert done.exit_code == 1
    assert "its split 'train' has stages. `energy-data plan` shows them." in done.stderr


def test_tokens_and_parameters_are_given_on_the_command_line(energy_data, datasets, write):
    meta = write("t.yaml", OLD.replace("stages:", "unit: tokens\n      stages:", 1))
    done = energy_data("plan", meta, *FACTS)
    assert done.exit_code == 1
    assert "the number of tokens in a sample is not known" in done.stderr
    done = energy_data("plan", meta, "--param", "seq_len=8", "--batch-size", 1)
    assert done.exit_code == 0, done.stderr
    assert "--param: must be NAME=VALUE" in energy_data("plan", meta, "--param", "x").stderr
    assert energy_data("check", meta).exit_code == 0


def test_the_plan_of_another_split_is_of_training_and_inspect_shows_its_validation(
    energy_data, datasets, write
):
    meta = write(
        "meta.yaml", BLEND.replace("train", "val").replace("{path", "{split_part: train, path")
    )
    planned = energy_data("plan", meta, "--split", "val", *FACTS)
    assert planned.exit_code == 0, planned.stderr
    first, *table = [line.split() for line in planned.stdout.splitlines()]
    assert " ".join(first) == (
        "This is the plan of training on the split val. "
        "`energy-data inspect --split val` shows validation."
    )
    assert ["books:train", "66.67"] in table  # by its weight
    shown = energy_data("inspect", meta, "--split", "val").stdout
    assert "55.56" in shown  # all of its 100 samples, of 180
