"""Arguments that Energon takes beyond those in its signatures, and methods for programs of it."""

from __future__ import annotations

import logging
from itertools import islice

import pytest
from data import CRUDE, TEXTS, make_dataset
from encoders import alone

from energy_data import (
    DefaultTaskEncoder,
    WorkerConfig,
    energon,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energy_data.energon import (
    BaseWebdatasetFactory,
    Cooker,
    CrudeJsonlDatasetFactory,
    CrudeSample,
    FatalSampleError,
    SampleDecoder,
    TextSample,
)
from energy_data.errors import SpecError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    make_dataset(tmp_path / "texts", TEXTS, images=False)
    make_dataset(tmp_path / "crude", CRUDE, images=False)
    (tmp_path / "texts" / ".nv-meta" / "crude.yaml").write_text(CRUDE)
    (tmp_path / "m.yaml").write_text("splits: {train: {path: texts}}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def first(path, **options):
    dataset = get_train_dataset(path, batch_size=None, worker_config=alone(), **options)
    return next(iter(get_loader(dataset)))


def test_keys_of_the_path_may_be_arguments(folder):
    assert first("texts", subflavors={"a": 1}).__subflavors__ == {"a": 1}
    assert first("m.yaml", subflavors={"a": 1}, split_config=None).__subflavors__ == {"a": 1}
    assert isinstance(first("texts", dataset_config="crude.yaml"), dict)
    held = get_val_dataset(
        "texts", batch_size=None, worker_config=alone(), dataset_config="crude.yaml"
    )
    assert isinstance(next(iter(get_loader(held))), dict)


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("texts", {"sample_type": CrudeSample}, "its samples are of type TextSample, and sample_"),
        ("crude", {"sample_type": TextSample}, "its samples are of type CrudeSample, and sample_"),
        ({"splits": {}}, {"dataset_config": "x"}, "dataset_config: the path is a mapping"),
        ("m.yaml", {"split_config": "x"}, "split_config: it is for a single dataset"),
    ],
)
def test_what_does_not_fit_the_path_is_refused(folder, path, options, message):
    with pytest.raises(SpecError, match=message):
        first(path, **options)


def test_the_type_of_samples_is_checked_and_an_unknown_argument_is_an_error(folder, caplog):
    assert isinstance(first("texts", sample_type=TextSample), TextSample)
    first("crude", sample_type=CrudeSample)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        first("texts", nonsense=1)
    with caplog.at_level(logging.WARNING):
        first("texts", parallel_shard_iters=4)
    assert "parallel_shard_iters: deprecated" in caplog.text


def test_deprecated_arguments_do_not_replace_a_decoder_of_the_task_encoder(folder):
    encoder = DefaultTaskEncoder()
    for _ in range(2):
        first("texts", task_encoder=encoder, image_decode="pil")
    assert encoder.decoder.config() == SampleDecoder(image_decode="pil").config()
    with pytest.raises(SpecError, match="the task encoder has a decoder of its own"):
        first("texts", task_encoder=encoder, image_decode="pilrgb")


def test_a_dataset_under_two_subflavors_is_cooked_by_the_cooker_of_each(folder):
    class Cooking(DefaultTaskEncoder):
        cookers = tuple(
            Cooker(lambda sample, kind=kind: (kind, sample["txt"]), has_subflavors={"kind": kind})
            for kind in ("one", "two")
        )

    parts = [
        {"path": str(folder / "crude"), "subflavors": {"kind": kind}} for kind in ("one", "two")
    ]
    held = get_val_dataset(
        {"splits": {"val": {"blend": parts}}},
        batch_size=None,
        worker_config=alone(),
        task_encoder=Cooking(),
    )
    found = [kind for kind, _ in get_loader(held)]
    assert found == ["one"] * 20 + ["two"] * 20


def test_two_kinds_of_files_need_two_subflavors(folder):
    class Cooking(DefaultTaskEncoder):
        cookers = (Cooker(lambda sample, extra: sample),)

    path = str(folder / "crude")
    parts = [
        {"path": path, "aux": {"extra": f"filesystem://{folder}/{name}"}}
        for name in ("texts", "crude")
    ]
    with pytest.raises(SpecError, match="two kinds of `aux`, and equal subflavors"):
        first({"splits": {"train": {"blend": parts}}}, task_encoder=Cooking())


@pytest.mark.parametrize("handled", ["by the argument", "by the worker config"])
def test_an_error_handler_is_an_argument_of_the_dataset_too(folder, handled):
    class Failing(DefaultTaskEncoder):
        def encode_sample(self, sample):
            if sample.__key__ == "texts-0003":
                raise ValueError("odd")
            return sample

    heard = []
    handler = {"handler": lambda error, key: heard.append((str(error), key))}
    config = WorkerConfig(lanes=1, global_error_handler=lambda *_: heard.append("config"))
    facts = handler if handled == "by the argument" else {}
    dataset = get_train_dataset(
        folder / "texts",
        batch_size=1,
        repeat=False,
        worker_config=config,
        task_encoder=Failing(),
        **facts,
    )
    assert len(list(dataset)) == 19
    assert heard == ([("odd", "texts-0003")] if facts else ["config"])


def test_an_error_of_a_sample_names_its_key(folder):
    found = FatalSampleError.from_sample(first("texts"), "broken.")
    assert str(found).startswith("key texts-00")
    assert str(found).endswith(": broken.")
    assert str(FatalSampleError.from_sample({"__key__": "a"})) == "key a: it failed."


def test_programs_prepare_some_tars_and_index_them_again(folder):
    made = folder / "texts"
    options = {"split_parts_patterns": [("val", "shard-.*")], "progress_fn": iter, "workers": 32}
    prepare = BaseWebdatasetFactory.prepare_dataset
    assert prepare(made, ["shard-{1..1}.tar"], **options) == ({"txt"}, [])
    split = (made / ".nv-meta" / "split.yaml").read_text()
    assert "shard-1.tar" in split
    assert "shard-0.tar" not in split
    assert prepare(made, [], tar_index_only=True) == ({"txt"}, [])
    assert (made / ".nv-meta" / "split.yaml").read_text() == split
    for wrong in ({"split_config": "x.yaml"}, {"split_parts_ratio": [("dev", 1)]}):
        with pytest.raises(SpecError, match="prepare_dataset: split_"):
            prepare(made, ["shard-0.tar"], **wrong)
    (folder / "a.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
    assert CrudeJsonlDatasetFactory.prepare_dataset(folder / "a.jsonl") == 2


def test_a_worker_config_describes_itself():
    assert alone(2).config() == {
        "rank": 0, "world_size": 1, "num_workers": 2, "data_parallel_group": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "node",
    [
        "staged: {stages: [{name: a, end: 2, path: texts}, {name: b, path: texts}]}",
        "mix: {parts: [{path: texts, weight: 3}, {path: texts, id: b}]}",
        "blend: [{path: texts, weight: {linear: {0: 1, 10: 3}}}, {path: texts, id: b}]",
        "docs_per_step: {target: 8, of: {path: texts}}",
    ],
)
def test_keys_that_energon_does_not_have_work_with_its_names(folder, node):
    (folder / "m.yaml").write_text(f"splits: {{train: {{{node}}}}}")
    dataset = energon.get_train_dataset(
        "m.yaml",
        batch_size=4,
        shuffle_buffer_size=10,
        max_samples_per_sequence=10,
        worker_config=alone(),
        microbatches_per_step=1,
        task_encoder=energon.DefaultTaskEncoder(),
    )
    batches = islice(energon.get_savable_loader(dataset), 6)
    assert [len(batch.text) for batch in batches] == [4] * 6
