"""Failures of users' functions: reported, counted, and given up after too many in a row."""

from __future__ import annotations

import logging

import pytest
from loading.runs import loader_of
from trees import A, packs, samples

from energy_data import (
    TaskEncoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
    get_val_dataset,
)
from energy_data.core.sample import SampleSource
from energy_data.core.user_call import ErrorPolicy, log_exception, reraise_exception
from energy_data.errors import DataError, FatalSampleError, SampleError, StructureError
from energy_data.nodes.batch import BatchSpec
from energy_data.nodes.filter import FilterSpec

SAMPLE = {"__key__": "k", "__sources__": (SampleSource("cats", "shard-0.tar", 3),)}


def test_the_handler_gets_the_error_the_sample_and_its_sources():
    heard = []
    policy = ErrorPolicy(handler=lambda *facts: heard.append(facts))
    error = ValueError("x")
    policy.handle("encode", error, SAMPLE, 1)
    policy.handle("encode", error, [SAMPLE, SAMPLE], 2)
    assert heard == [
        (error, SAMPLE, list(SAMPLE["__sources__"])),
        (error, [SAMPLE, SAMPLE], list(SAMPLE["__sources__"] * 2)),
    ]


def test_old_handlers_get_the_key():
    heard = []

    def handler(error, key):
        heard.append(key)

    policy = ErrorPolicy(handler=handler)
    policy.handle("encode", ValueError(), SAMPLE, 1)
    policy.handle("encode", ValueError(), [SAMPLE], 2)
    assert heard == ["k", "k"]


def test_too_many_failures_in_a_row_are_fatal_and_name_the_sample():
    policy = ErrorPolicy(handler=lambda *_: None, tolerance=3)
    with pytest.raises(
        FatalSampleError,
        match=r"encode_sample: it failed 3 times in a row.*dataset cats.*key k.*ValueError: x",
    ):
        policy.handle("encode_sample", ValueError("x"), SAMPLE, 3)


def test_a_tolerance_of_0_puts_up_with_everything():
    policy = ErrorPolicy(handler=lambda *_: None, tolerance=0)
    policy.handle("encode", ValueError(), SAMPLE, 10**6)


@pytest.mark.parametrize(
    "error", [MemoryError(), NameError("x"), ImportError(), StructureError("torn")]
)
def test_what_is_no_samples_fault_is_fatal_at_once(error):
    heard = []
    policy = ErrorPolicy(handler=lambda *facts: heard.append(facts), tolerance=0)
    with pytest.raises(FatalSampleError, match="it cannot go on"):
        policy.handle("encode", error, SAMPLE, 1)
    assert not heard


def test_a_bad_sample_is_put_up_with_like_any_error():
    heard = []
    policy = ErrorPolicy(handler=lambda *facts: heard.append(facts))
    policy.handle("encode", SampleError("bad"), SAMPLE, 1)
    assert len(heard) == 1


class Broken(TaskEncoder):
    def encode_sample(self, sample):
        raise ValueError("what is wrong.")


@pytest.mark.parametrize(
    ("line", "encoder", "problem"),
    [
        (
            "{bad}",
            TaskEncoder(),
            "101 bad samples of leaf .* in a row, .*Fix the line. Check the dataset.$",
        ),
        ("{}", Broken(), r"encode_sample: it failed 100 times in a row, .*what is wrong\. Look"),
    ],
)
def test_what_is_broken_for_all_samples_is_logged_a_few_times(
    tmp_path, caplog, line, encoder, problem
):
    path = tmp_path / "x.jsonl"
    path.write_text(f"{line}\n" * 300)
    facts = {"batch_size": 2, "task_encoder": encoder, "worker_config": WorkerConfig()}
    with pytest.raises(DataError, match=problem):
        next(iter(get_loader(get_train_dataset(path, **facts))))
    assert [record.exc_info is not None for record in caplog.records] == [True] * 3 + [False]
    assert f"skipped: dataset {path}, shard x.jsonl, key " in caplog.text


class Forgets(TaskEncoder):
    def encode_sample(self, sample):
        sample["seen"] = True


class ForgetsToYield(TaskEncoder):
    def encode_sample(self, sample):
        yield sample.get("seen")


class ForgetsBatches(TaskEncoder):
    def encode_batch(self, batch):
        batch["seen"] = True


@pytest.mark.parametrize(
    ("encoder", "problem", "doing"),
    [
        (Forgets(), "encode_sample: it returned None. Return the sample, or", "encoding"),
        (ForgetsToYield(), "encode_sample: it yielded None. Yield the sample, or", "encoding"),
        (ForgetsBatches(), "encode_batch: it returned None. Return the batch, or", "making the"),
    ],
)
def test_a_function_that_forgets_to_return_is_an_error_that_says_so(
    tmp_path, encoder, problem, doing
):
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n" * 9)
    config = WorkerConfig(global_error_handler=reraise_exception)
    dataset = get_train_dataset(path, batch_size=2, task_encoder=encoder, worker_config=config)
    with pytest.raises(SampleError, match=f"^{problem} raise SkipSample") as caught:
        next(iter(get_loader(dataset)))
    (note,) = caught.value.__notes__
    assert note.startswith(f"while {doing}")
    assert f"dataset {path}, shard x.jsonl, key " in note


def test_a_handler_of_two_arguments_gets_bad_samples_too(tmp_path):
    path, heard = tmp_path / "x.jsonl", []
    path.write_text("{bad}\n{}\n")
    config = WorkerConfig(global_error_handler=lambda error, key: heard.append(key))
    dataset = get_val_dataset(path, split_part="train", batch_size=1, worker_config=config)
    list(get_loader(dataset))
    assert heard == ["0"]


def test_errors_are_logged_or_raised_again(caplog):
    with caplog.at_level(logging.ERROR):
        log_exception(ValueError("what is wrong"), SAMPLE)
    assert "skipped: dataset cats, shard shard-0.tar, key k, sample 3" in caplog.text
    assert "what is wrong" in caplog.text
    with pytest.raises(ValueError, match="x"):
        reraise_exception(ValueError("x"), SAMPLE)


def nothing_left(*_):
    return next(iter(()))


@pytest.mark.parametrize(
    "of",
    [
        FilterSpec(of=samples(A, deal=2), predicate=nothing_left),
        packs(samples(A, deal=2), limits={"tokens": 1}, over_long="truncate", cut=nothing_left),
        samples(A, deal=2),
    ],
    ids=["filter", "cut", "collate"],
)
def test_a_stop_iteration_of_a_function_never_ends_a_stream(of):
    spec = BatchSpec(of=of, batch_size=2, collate=nothing_left)
    with pytest.raises(FatalSampleError, match="nothing_left: it raised StopIteration for"):
        list(loader_of(spec, lanes=1))
