"""What Energon 8 has besides 7.4.1: its names, its keys, its loader, and what is refused."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tars import write_tar

import energy_data.energon
from energy_data.energon import (
    Batch,
    ByteRangeStore,
    Cooker,
    DataLoader,
    DefaultTaskEncoder,
    Recipe,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    build_filter_index,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    read_state,
    sample_size_metric,
    skip_safe,
    stateless,
    traverse_recipe,
)
from energy_data.energon.refused import REFUSED
from energy_data.errors import SpecError, StateMismatchError
from energy_data.nodes.leaf import leaves_of

NAMES = json.loads(Path(__file__).with_name("names_8.json").read_text())


@pytest.fixture
def texts(tmp_path):
    """Two datasets: 40 texts of 2 letters, and 40 of 50; and a recipe of both, by tokens."""
    for name, size in (("short", 2), ("long", 50)):
        files = [(f"{n:03d}.txt", f"{n:02d}".encode() * (size // 2)) for n in range(40)]
        write_tar(tmp_path / name / "0.tar", files)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        """
        __module__: megatron.energon
        __class__: Recipe
        splits:
          train:
            blend_weight_unit: tokens
            blend:
              - {path: short, tags: {source: short}}
              - {path: long, tags: {source: long}}
        """
    )
    return recipe


@skip_safe
@stateless
def cook(sample):
    assert sample["__tags__"] == sample["__subflavors__"]
    return TextSample(**basic_sample_keys(sample), text=sample["txt"])


class Texts(DefaultTaskEncoder):
    cookers = (Cooker(cook, has_tags={"source": "short"}), Cooker(cook))

    @sample_size_metric("tokens")
    def letters(self, sample):
        return len(sample.text)

    @stateless(restore_task_encoder_seeds=True, skip_safe=True)
    def encode_sample(self, sample):
        for _ in range(2):
            drawn = torch.rand((), generator=self.rng.torch).item(), self.rng.random.random()
            yield TextSample.derive_from(
                sample, text=(sample.text, self.rng.numpy.random(), *drawn)
            )


def loader_of(recipe, **options):
    workers = options.pop("num_workers", 0)
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers, lanes=2)
    dataset = get_train_dataset(
        recipe, batch_size=4, worker_config=config, task_encoder=Texts(), shuffle_buffer_size=10,
        max_samples_per_sequence=10,
    )  # fmt: skip
    return get_savable_loader(dataset, **options)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_there_or_refused_with_the_reason(name):
    if name in energy_data.energon.__all__:
        assert getattr(energy_data.energon, name) is not None
        return
    with pytest.raises(ImportError, match=f"^{name}: .+"):
        getattr(energy_data.energon, name)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_name_is_an_error_of_the_import(name):
    with pytest.raises(ImportError, match=name):
        exec(f"from energy_data.energon import {name}")
    assert name not in energy_data.energon.__all__


def test_a_name_that_does_not_exist_is_no_attribute():
    assert not hasattr(energy_data.energon, "NoSuchThing")


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 1, "worker_type": "thread"}, {"num_workers": 2, "worker_type": "main"}],
    ids=["no workers", "thread", "main"],
)
def test_a_program_of_energon_8_runs_and_resumes_with_the_same_random_numbers(texts, options):
    expected = [batch.text for batch in islice(loader_of(texts), 6)]
    with loader_of(texts, **options) as loader:
        assert isinstance(loader, DataLoader)
        loader.start()
        assert [batch.text for batch in islice(loader, 3)] == expected[:3]
        state = loader.save_state_rank()
    loader.shutdown()
    with loader_of(texts, **options).with_restored_state_rank(state) as loader:
        assert [batch.text for batch in islice(loader, 3)] == expected[3:]
    with loader_of(texts).with_restored_state_global([state]) as loader:
        assert [batch.text for batch in islice(loader, 3)] == expected[3:]


def test_the_parts_of_a_generator_continue_its_random_numbers(texts):
    batch = next(iter(loader_of(texts)))
    first, second = batch.text[:2]
    assert first[0] == second[0]
    assert all(one != other for one, other in zip(first[1:], second[1:], strict=True))


def test_weights_by_a_metric_are_shares_of_what_it_measures(texts):
    batches = islice(loader_of(texts), 200)
    sizes = {2: 0, 50: 0}
    for text in (text[0] for batch in batches for text in batch.text):
        sizes[len(text)] += len(text)
    assert sizes[2] == pytest.approx(sizes[50], rel=0.1)


def test_a_state_of_other_sizes_is_refused(texts):
    loader = loader_of(texts)
    next(iter(loader))
    state = loader.save_state_rank()

    class Twice(Texts):
        @sample_size_metric("tokens")
        def letters(self, sample):
            return len(sample.text) ** 2

    changed = get_loader(
        get_train_dataset(
            texts, batch_size=4, task_encoder=Twice(), shuffle_buffer_size=10,
            max_samples_per_sequence=10, worker_config=WorkerConfig(lanes=2),
        )
    )  # fmt: skip
    with pytest.raises(StateMismatchError, match="weight"):
        changed.load_state_dict(state)


def test_a_declared_mean_takes_the_place_of_the_metric(texts, tmp_path):
    text = texts.read_text().replace("path: long,", "path: long, tokens_per_sample: 2,")
    texts.write_text(text)
    dataset = get_train_dataset(texts, batch_size=1, task_encoder=Texts())
    assert [leaf.tokens_per_sample for leaf in leaves_of(dataset.spec)] == [2, 2]


class Unmeasured(Texts):
    @sample_size_metric
    def tokens(self, sample):
        raise RuntimeError("no tokenizer")

    letters = None


class Negative(Texts):
    @sample_size_metric("tokens")
    def letters(self, sample):
        return -1


@pytest.mark.parametrize(
    ("encoder", "problem"),
    [
        (
            DefaultTaskEncoder(),
            "how many tokens samples of 'short:train' have is not",
        ),
        (Unmeasured(), r"measured 0 tokens in 0 of 40 samples \(the last raised RuntimeError: no"),
        (Negative(), "letters: a size is a number >= 0, got -1. Return one"),
    ],
)
def test_weights_that_nothing_measures_are_refused(texts, encoder, problem):
    with pytest.raises(SpecError, match=problem):
        get_train_dataset(texts, batch_size=1, task_encoder=encoder)


def test_tags_are_another_name_of_subflavors():
    sample = TextSample(__key__="a", __restore_key__=(), __subflavors__={"a": 1}, text="")
    sample.__tags__ = {**sample.__tags__, "b": 2}
    assert sample.__subflavors__ == {"a": 1, "b": 2}
    batch = Batch(__key__=["a"], __restore_key__=(), __subflavors__=[{"a": 1}])
    assert batch.__tags__ == [{"a": 1}]
    with pytest.raises(SpecError, match="has_tags is another name of has_subflavors"):
        Cooker(cook, {"a": 1}, has_tags={"a": 1})


def test_a_recipe_lists_its_datasets(texts):
    names = [one.path.name for one in traverse_recipe(texts, split_part="train")]
    assert names == ["short", "long"]
    assert isinstance(energy_data.energon.load_dataset(texts), Recipe)


def test_a_filter_of_a_recipe_is_used(texts, tmp_path):
    build_filter_index(tmp_path / "short/0.tar", "few", [3, 5])
    run = {"splits": {"train": {"path": str(tmp_path / "short/0.tar"), "filter": "few"}}}
    batch = next(iter(get_loader(get_train_dataset(run, batch_size=8))))
    assert set(batch["txt"]) == {"03", "05"}


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda r: WorkerConfig(logical_workers=4), "logical_workers are the lanes of a run"),
        (lambda r: loader_of(r, worker_type="spawn"), "worker_type: must be 'fork', 'thread' or"),
        (lambda r: loader_of(r).restore_sample(("a", 0, 1)), "restore_sample: batches are made of"),
        (
            lambda r: get_train_dataset(r, batch_size=1, packing_buffer_size="stream"),
            "packing_buffer_size: must be a number of samples, got 'stream'. A lane has one buffer",
        ),
        (
            lambda r: get_train_dataset(r, batch_size=1, packing_buffer_size={"a": 3}),
            "packing_buffer_size: must be a number of samples, got {'a': 3}. A lane has one buffer",
        ),
    ],
    ids=["logical_workers", "worker_type", "restore_sample", "stream", "groups"],
)
def test_what_is_refused_has_the_reason(texts, call, problem):
    with pytest.raises(SpecError) as caught:
        call(texts)
    assert problem in str(caught.value)


def test_a_dataset_yaml_of_energon_8_is_read(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    energy_data.energon.CrudeJsonlShardListDatasetFactory  # noqa: B018 - it is there
    (tmp_path / ".nv-meta").mkdir()
    declared = "__module__: megatron.energon\n__class__: DefaultCrudeJsonlShardListDatasetFactory\n"
    for name, text in {
        ".info.json": '{"energon_version": "8.0.0", "shard_counts": {"a.jsonl": 1}}',
        "split.yaml": "split_parts: {train: [a.jsonl]}\nexclude: []\n",
        "dataset.yaml": declared,
    }.items():
        (tmp_path / ".nv-meta" / name).write_text(text)
    energy_data.energon.CrudeJsonlDatasetFactory.prepare_dataset(tmp_path / "a.jsonl")
    batch = next(iter(get_loader(get_train_dataset(tmp_path, batch_size=1))))
    assert batch["json"] == [{"text": "x"}]


def test_ranges_of_files_are_read_by_key(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(range(100)))
    store = ByteRangeStore(tmp_path)
    assert store["a.bin#bytes=10:3"][0] == bytes([10, 11, 12])
    sample = {}
    assert store.read_range("a.bin", 0, 2, sample=sample) == bytes([0, 1])
    assert [source.index for source in sample["__sources__"]] == ["a.bin#bytes=0:2"]
    for key, problem in (
        ("a.bin", "is not `path#bytes=offset:size`"),
        ("../a#bytes=0:1", "out of"),
    ):
        with pytest.raises(ValueError, match=problem):
            store[key]


class FakeState:
    """A state as Energon pickles it: an object of one of its classes."""

    __module__ = "megatron.energon.savable_loader"


@pytest.mark.parametrize("state", [FakeState(), [FakeState(), FakeState()]])
def test_a_state_of_energon_is_refused_with_what_to_do(texts, state):
    loader = loader_of(texts)
    with pytest.raises(StateMismatchError, match=r"a FakeState of Energon.*Finish the epoch"):
        loader.load_state_dict(state)
    with pytest.raises(StateMismatchError, match=r"a FakeState of Energon.*pass another seed"):
        loader.restore_state_global(state)


def test_a_file_with_a_state_of_energon_is_refused_as_well(tmp_path, monkeypatch):
    module = ModuleType("megatron.energon.savable_loader")
    module.SavableDataLoaderState = type(
        "SavableDataLoaderState", (), {"__module__": module.__name__}
    )
    for name in ("megatron", "megatron.energon", module.__name__):
        monkeypatch.setitem(sys.modules, name, module)
    torch.save(module.SavableDataLoaderState(), tmp_path / "state.pt")
    with pytest.raises(
        StateMismatchError, match=r"state\.pt: it is a SavableDataLoaderState of En"
    ):
        read_state(tmp_path / "state.pt")
