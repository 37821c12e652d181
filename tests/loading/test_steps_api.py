"""Steps as users ask for them: in the call, or in the metadataset; and what may come between."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tars import sample_files, write_tar

from energy_data import (
    DocsPerStep,
    SavableDataset,
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energy_data.errors import SpecError
from loading.steps import plain, ranks_of, stream, take


class Counted(TaskEncoder):
    """Says of each sample how many documents and tokens it has."""

    def encode_sample(self, sample):
        number = sample["json"]["number"]
        said = {"documents": number % 3, "tokens": 10 + number}
        return {"__key__": sample["__key__"], "number": number, "__docs__": said}


class Precounted(TaskEncoder):
    """Says so where samples are made ready to be packed."""

    def preencode_sample(self, sample):
        return Counted().encode_sample(sample)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for shard in range(2):
        files = [file for n in range(20) for file in sample_files(20 * shard + n)]
        write_tar(tmp_path / "data" / f"{shard}.tar", files)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dataset(path="data", encoder=None, **facts):
    run = WorkerConfig(lanes=4)
    return get_train_dataset(path, batch_size=4, worker_config=run, task_encoder=encoder, **facts)


@pytest.mark.usefixtures("folder")
def test_a_number_in_the_call_a_rule_and_yaml_say_the_same():
    node = {"docs_per_step": {"target": 10, "of": {"path": "data"}}}
    by_number = get_loader(dataset(), docs_per_step=10)
    by_rule = get_loader(dataset(), docs_per_step=DocsPerStep(target=10))
    by_yaml = dataset({"splits": {"train": node}})
    expected = plain(islice(by_number, 9))
    assert expected[0][3] == 12
    assert plain(islice(by_rule, 9)) == expected
    assert plain(islice(get_loader(by_yaml), 9)) == expected
    assert plain(islice(by_yaml, 9)) == expected
    other = get_loader(by_yaml, docs_per_step=20)  # the call counts
    assert next(iter(other))["__step__"].step_docs == 20


@pytest.mark.usefixtures("folder")
def test_exact_steps_in_yaml_cut_batches():
    node = {"docs_per_step": {"target": 10, "mode": "exact", "of": {"path": "data"}}}
    batches = list(islice(get_loader(dataset({"splits": {"train": node}})), 6))
    assert [len(batch["__key__"]) for batch in batches] == [4, 4, 2, 4, 4, 2]


STAGED = """
splits:
  train:
    docs_per_step:
      target: [[0, 10], [2, 5]]
      of:
        staged:
          unit: steps
          stages:
            - {name: a, end: 2, path: data}
            - {name: b, path: data, params: {batch_size: 3}}
"""


def test_stages_in_yaml_count_steps(folder):
    (folder / "run.yaml").write_text(STAGED)
    steps: dict = {}
    for batch in islice(get_loader(dataset("run.yaml")), 12):
        found = (batch["__stage__"][1], len(batch["__key__"]))
        steps.setdefault(batch["__step__"].step, []).append(found)
    assert list(steps.values())[:4] == [*[[("a", 4)] * 3] * 2, *[[("b", 3)] * 2] * 2]
    assert next(iter(dataset("run.yaml")))["__step__"].step_docs == 12


def test_one_exact_rule_over_stages_in_yaml_is_exact_in_each(folder):
    stages = [{"name": "a", "end": 2, "path": "data"}, {"name": "b", "path": "data"}]
    node = {"target": 6, "mode": "exact", "of": {"staged": {"unit": "steps", "stages": stages}}}
    data = dataset({"splits": {"train": {"docs_per_step": node}}})
    batches = list(islice(get_loader(data), 8))
    assert [len(batch["__key__"]) for batch in batches] == [4, 2] * 4
    assert [batch["__stage__"][1] for batch in batches] == ["a"] * 4 + ["b"] * 4
    samples = {
        "target": 6,
        "mode": "exact",
        "of": {"staged": {"unit": "samples", "stages": stages}},
    }
    with pytest.raises(SpecError, match=r"these count micro-batches(.|\n)*Write `unit: steps`"):
        get_loader(dataset({"splits": {"train": {"docs_per_step": samples}}}))


@pytest.mark.usefixtures("folder")
def test_a_task_encoder_says_of_each_sample_what_counts():
    loader = get_loader(dataset(encoder=Counted()), docs_per_step=DocsPerStep(target=9))
    steps = []
    for batch in islice(loader, 20):
        step = batch["__step__"]
        assert step.docs == sum(number % 3 for number in batch["number"].tolist())
        steps.append((step.step, step.docs, step.step_docs, step.step_tokens, batch["number"]))
    of_first = [each for each in steps if each[0] == 0]
    assert of_first[0][2] == sum(each[1] for each in of_first) >= 9
    assert of_first[0][3] == sum(int((10 + each[4]).sum()) for each in of_first)


@pytest.mark.usefixtures("folder")
def test_one_pass_over_files_ends_with_a_short_step():
    data = dataset(repeat=False)
    loader = get_loader(data, docs_per_step=DocsPerStep(target=15, last="short"))
    batches = list(loader)
    assert sorted(key for batch in batches for key in batch["__key__"]) == sorted(
        f"d/{number:05d}" for number in range(40)
    )
    assert [batch["__step__"].is_short for batch in batches] == [False] * 8 + [True] * 2


def test_ranks_without_a_process_group_are_told_what_to_do():
    run = WorkerConfig(0, 2, lanes=4)
    loader = get_loader(SavableDataset(spec=stream(), worker_config=run), docs_per_step=10)
    with pytest.raises(SpecError, match=r"torch\.distributed is not initialised"):
        next(iter(loader))


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_whatever_the_rule_saved_anywhere_steps_go_on_identically(data):
    ranks = data.draw(st.sampled_from([1, 2, 3]), label="ranks")
    rules = {
        "target": data.draw(st.integers(1, 40), label="target"),
        "mode": data.draw(st.sampled_from(["at_least", "exact"]), label="mode"),
        "lookahead": data.draw(st.sampled_from([1, 2, 5]), label="lookahead"),
    }
    spec = stream(batch_size=data.draw(st.integers(1, 4), label="batch size"))
    if rules["mode"] == "exact":
        spec = stream(batch_size=3, collate=keys_only)
    expected = take(ranks_of(spec, ranks, **rules), 40)
    at = 0
    loaders = ranks_of(spec, ranks, **rules)
    for _ in range(3):
        count = data.draw(st.integers(0, 9), label="micro-batches")
        assert take(loaders, count) == [mine[at : at + count] for mine in expected]
        at += count
        saved = [loader.state_dict() for loader in loaders]
        rules["lookahead"] = data.draw(st.sampled_from([1, 2, 5]), label="lookahead")
        loaders = ranks_of(spec, ranks, **rules)
        for loader in loaders:
            loader.restore_state_global(data.draw(st.permutations(saved), label="states"))


def keys_only(batch):
    return {"__key__": [sample["__key__"] for sample in batch]}


def test_an_interrupt_in_a_user_function_loses_no_micro_batch():
    calls = 0

    def interrupted(batch):
        nonlocal calls
        calls += 1
        if calls % 5 == 0:
            raise KeyboardInterrupt
        return keys_only(batch)

    expected = take(ranks_of(stream(keys_only), target=14), 60)[0]
    (loader,) = ranks_of(stream(interrupted), target=14)
    given, iterator = [], iter(loader)
    while len(given) < 60:
        try:
            batch = next(iterator)
        except KeyboardInterrupt:
            continue
        given.append((tuple(batch["__key__"]), batch["__step__"]))
    assert given == expected
    assert calls > 70


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("encoder", [Counted(), Precounted()])
def test_what_samples_say_counts_wherever_they_are_encoded(encoder):
    first = next(iter(get_loader(dataset(encoder=encoder), docs_per_step=5)))
    said = [each["documents"] for each in first["__docs__"]]
    assert first["__step__"].docs == sum(said) != len(said)
