"""What goes wrong in workers: it is survived, or it is said which sample it was."""

from __future__ import annotations

import os
import pickle
import random
import re
import signal
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import forkserver
from traceback import format_exception

import numpy as np
import pytest
import torch
from trees import batches, samples

from energy_data import TaskEncoder, WorkerConfig, get_loader, get_val_dataset, stateless
from energy_data.errors import EnergyDataError, FatalSampleError, SpecError
from energy_data.loading.lanes import LanesStart
from energy_data.loading.workers import process
from energy_data.loading.workers.pool import PoolOptions
from energy_data.loading.workers.protocol import Start, WorkerError
from energy_data.nodes.leaf import Leaf
from energy_data.nodes.references import LeafSpec
from loading import encoders
from loading.encoders import collating, encoding
from loading.own_time import OwnTime, until
from loading.runs import next_batch
from loading.workers import QUICK, SPAWN, crew, processes, worker_loader


def place_of(loader, wanted=encoders.POISON) -> int:
    """The number of the batch with the poisonous sample."""
    for number, batch in enumerate(loader):
        if wanted in batch:
            return number
    raise AssertionError


AT = place_of(worker_loader(encoding(encoders.plain), workers=0))
GOOD = list(islice(worker_loader(encoding(encoders.plain), workers=0), 60))


INLINE_TOO = [(0, "fork"), (2, "fork"), (2, "thread")]  # workers, start method


def until_error(loader, error):
    """The batches before an error, and it."""
    given = []
    with pytest.raises(error) as caught:
        deque(map(given.append, islice(loader, 60)), maxlen=0)
    return given, caught.value


@pytest.mark.parametrize(
    ("encode", "fate"),
    [
        (encoders.exits, "ended with exit code 3"),
        (encoders.killed, "was killed by SIGKILL (out of memory?)"),
        (encoders.segfaults, "was killed by SIGSEGV"),
        (encoders.leaves, "ended with exit code 5"),
    ],
)
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_sample_that_kills_its_worker_again_and_again_is_named(encode, fate, method):
    loader = worker_loader(encoding(encode), start_method=method, max_restarts=2, prefetch=4)
    given, error = until_error(loader, WorkerError)
    assert given == GOOD[:AT]
    assert f"failed 3 times at micro-batch {AT}; the last time it {fate}" in str(error)
    assert "dataset x, shard memory, key x/17, sample 17" in str(error)
    loader.close()


def test_a_crash_in_c_shows_the_line_of_python():
    loader = worker_loader(encoding(encoders.segfaults), start_method="fork", max_restarts=1)
    _, error = until_error(loader, WorkerError)
    assert "Segmentation fault" in str(error)
    assert "in segfaults" in str(error)
    loader.close()


def test_a_decoder_that_kills_its_worker_is_named_with_its_sample():
    spec = batches(samples(LeafSpec(Leaf(id="x", source=encoders.DyingSource(40, "x")))), 2)
    loader = worker_loader(spec, start_method="fork", max_restarts=1)
    given, error = until_error(loader, WorkerError)
    assert given == GOOD[: len(given)]
    assert "leaf x, sample 17" in str(error)
    loader.close()


def test_after_the_error_the_state_is_that_before_it_and_a_later_state_goes_on():
    loader = worker_loader(encoding(encoders.exits), start_method="fork", max_restarts=0)
    until_error(loader, WorkerError)
    state = loader.state_dict()
    for _ in range(2):
        with pytest.raises(WorkerError, match=f"at micro-batch {AT}"):
            next(iter(loader))
        assert loader.state_dict() == state
    good = worker_loader(encoding(encoders.plain), workers=0)
    list(islice(good, AT))
    assert next_batch(good.state_dict()) == next_batch(state)
    list(islice(good, 1))
    loader.load_state_dict(good.state_dict())
    assert list(islice(loader, 5)) == GOOD[AT + 1 : AT + 6]
    loader.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGRTMIN])
def test_a_worker_killed_from_outside_is_started_again_and_the_stream_is_the_same(number, caplog):
    loader = worker_loader(encoding(encoders.plain), start_method="fork")
    given = []
    for n, batch in enumerate(islice(loader, 30)):
        given.append(batch)
        if n % 5 == 0:
            os.kill(processes(loader)[n % 2], number)
    assert given == GOOD[:30]
    assert "starting it again" in caplog.text
    loader.close()


def test_a_worker_killed_while_it_starts_is_started_again():
    for method in ("fork", "forkserver"):
        loader = worker_loader(encoding(encoders.plain), start_method=method)
        loader._host._begin_stale(0)
        for number in processes(loader):
            os.kill(number, signal.SIGKILL)
        assert list(islice(loader, 10)) == GOOD[:10]
        loader.close()


def test_all_workers_killed_before_a_state_is_loaded_are_started_again():
    loader = worker_loader(encoding(encoders.plain), workers=3, start_method="fork")
    state = loader.state_dict()
    list(islice(loader, 7))
    for number in processes(loader):
        os.kill(number, signal.SIGKILL)
    loader.load_state_dict(state)
    assert list(islice(loader, 12)) == GOOD[:12]
    loader.close()


def test_how_a_worker_ended_while_starting_is_known_though_the_fork_server_sees_it_late(
    monkeypatch,
):
    monkeypatch.setattr(process, "main", encoders.ends_at_once)
    worker = process.WorkerProcess(b"", 0, start_method="forkserver", prefetch=1, arena_bytes=1)
    server = forkserver._forkserver._forkserver_pid
    os.kill(server, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (server, signal.SIGCONT)).start()
    with pytest.raises(EnergyDataError, match="it ended while starting, exit code 3"):
        worker.fate()
    worker.close()


@pytest.mark.parametrize("encode", [encoders.sleeps, encoders.sleeps_in_c])
def test_a_sample_that_sleeps_for_ever_is_an_error_with_sample_and_stack(encode):
    loader = worker_loader(encoding(encode), start_method="fork", timeout_s=0.5)
    assert list(islice(loader, AT)) == GOOD[:AT]
    clock = OwnTime({os.getpid()})
    given, error = until_error(loader, WorkerError)
    assert clock.passed() < 0.5 + 5
    assert given == []
    assert f"gave nothing for 0.5 s at micro-batch {AT}" in str(error)
    assert f"in {encode.__name__}" in str(error)
    assert "key x/17" in str(error) or encode is encoders.sleeps_in_c
    assert "timeout_s" in str(error)
    loader.close()


def test_a_batch_that_is_made_for_ever_is_named_by_its_first_sample():
    spec = collating(encoders.sleeps_over_batch, batch_size=1)
    loader = worker_loader(spec, start_method="fork", timeout_s=0.5)
    _, error = until_error(loader, WorkerError)
    assert "working on what begins with dataset x, shard memory, key x/17" in str(error)
    assert "in sleeps_over_batch" in str(error)
    loader.close()


def test_a_silent_worker_may_be_started_again_a_few_times():
    loader = worker_loader(
        encoding(encoders.sleeps_in_c),
        start_method="fork",
        timeout_s=0.3,
        fail_on_timeout=False,
        max_restarts=1,
    )
    given, error = until_error(loader, WorkerError)
    assert given == GOOD[:AT]
    assert f"failed 2 times at micro-batch {AT}; the last time it gave nothing" in str(error)
    assert "key x/17" in str(error)  # it said so beforehand the second time
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_a_slow_sample_holds_up_nothing_while_batches_made_ahead_last(
    tmp_path, monkeypatch, method
):
    gate, told = tmp_path / "gate", tmp_path / "gate.log"
    monkeypatch.setenv("GATE", str(gate))
    loader = worker_loader(encoding(encoders.waits), start_method=method, prefetch=8)
    assert list(islice(loader, AT)) == GOOD[:AT]  # while the sample of the next batch waits
    ahead = 2 * (AT + 7)  # samples: it is told that a batch was taken when the next is asked for
    until(lambda: told.read_text().count("\n") >= ahead, "nobody works", {os.getpid()})
    gate.touch()
    assert list(islice(loader, 20)) == GOOD[AT : AT + 20]
    loader.close()


@pytest.mark.parametrize(("workers", "method"), INLINE_TOO)
def test_an_exception_keeps_type_message_traceback_and_sample(workers, method):
    loader = worker_loader(encoding(encoders.raises), workers=workers, start_method=method)
    given, error = until_error(loader, KeyError)
    assert given == GOOD[:AT]
    assert error.args == ("missing",)
    notes = "\n".join(error.__notes__)
    assert "while encoding dataset x, shard memory, key x/17, sample 17" in notes
    # Processes send it as text; threads raise what was raised.
    said = notes if workers and method == "fork" else "".join(format_exception(error))
    assert "in raises" in said
    assert 'return value["missing"]' in said
    assert f"micro-batch {AT}" in notes or not workers
    state = loader.state_dict()
    with pytest.raises(KeyError, match="missing"):
        next(iter(loader))
    assert loader.state_dict() == state
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_an_error_in_one_worker_does_not_stop_the_others(method):
    loader = worker_loader(encoding(encoders.raises), workers=3, start_method=method)
    until_error(loader, KeyError)
    before = crew(loader)
    until_error(loader, KeyError)
    assert crew(loader) == before
    loader.close()


@pytest.mark.parametrize(
    ("encode", "name"),
    [
        (encoders.raises_unpicklable, "UnpicklableError"),
        (encoders.raises_unmakable, "UnmakableError"),
    ],
)
def test_an_exception_that_cannot_cross_is_shown_as_text(encode, name):
    loader = worker_loader(encoding(encode), start_method="fork")
    given, error = until_error(loader, WorkerError)
    assert given == GOOD[:AT]
    assert f"{name}: 1 and 2" in str(error)
    assert "key x/17" in str(error)
    loader.close()


@pytest.mark.parametrize(
    ("collate", "error"),
    [
        (encoders.gives_lambda, (AttributeError, pickle.PicklingError)),
        (encoders.gives_generator, TypeError),
        (encoders.gives_file, TypeError),
    ],
)
def test_a_batch_that_cannot_be_pickled_is_an_error_that_says_so(collate, error):
    loader = worker_loader(collating(collate), start_method="fork")
    for _ in range(2):
        with pytest.raises(error) as caught:
            next(iter(loader))
        assert re.search(r"sending .* it must be picklable", "\n".join(caught.value.__notes__))
    loader.close()


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


class Nests(TaskEncoder):
    """Returns what is nested deep for one sample, as a list over samples or as one object."""

    def __init__(self, *, as_list):
        self.as_list = as_list

    @stateless
    def encode_sample(self, sample):
        deep = sample["json"]["number"] == 3
        sample["tree"] = nested(5_000) if deep and self.as_list else []
        return sample

    @stateless
    def batch(self, samples):
        batch = super().batch(samples)
        if not self.as_list:
            batch["tree"] = {"of all": nested(5_000)}
        return batch


@pytest.mark.parametrize(
    ("as_list", "where"), [(True, ""), (False, "the batch that begins with ")], ids=["list", "dict"]
)
def test_a_value_that_is_nested_too_deep_names_its_sample_and_dataset(tmp_path, as_list, where):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"number": {n}}}\n' for n in range(8)))
    config = WorkerConfig(num_workers=1, lanes=1)
    loader = get_loader(
        get_val_dataset(
            path,
            split_part="train",
            batch_size=8,
            worker_config=config,
            task_encoder=Nests(as_list=as_list),
        )
    )
    key = 3 if as_list else 0
    problem = (
        f"{where}dataset {path}, shard x.jsonl, key {key}, sample {key}: its field 'tree' is "
        "nested too deep to be sent from the worker to the trainer. "
    )
    with loader, pytest.raises(FatalSampleError, match=re.escape(problem)):
        next(iter(loader))


def test_a_batch_that_cannot_be_made_again_is_an_error_and_loses_nothing():
    loader = worker_loader(collating(encoders.only_in_workers), start_method="fork")
    for _ in range(2):
        state = loader.state_dict()
        with pytest.raises(ValueError, match="cannot be made here") as caught:
            next(iter(loader))
        assert "while unpickling a batch" in "\n".join(caught.value.__notes__)
        assert loader.state_dict() == state
    loader.close()


@pytest.mark.parametrize("method", ["forkserver", "spawn", "thread"])
def test_a_lambda_is_an_error_that_says_what_to_do(method):
    loader = worker_loader(encoding(lambda sample: sample), start_method=method)
    for _ in range(2):
        with pytest.raises(SpecError, match=r'a lambda.* start_method="fork"'):
            next(iter(loader))
    assert crew(loader) == []


def test_a_dataset_that_cannot_be_made_in_a_worker_is_an_error():
    worker = process.WorkerProcess(b"", 0, start_method="fork", prefetch=1, arena_bytes=1 << 20)
    worker.begin(Start(LanesStart(0, 1, {0: {}}, {}), stride=1, traced=False))
    with pytest.raises(SpecError, match=r"cannot be made in the worker .* start_method="):
        worker.open(worker.receive(10))
    worker.close()


def test_a_worker_that_was_closed_is_gone_whatever_its_descriptors_are_by_now():
    worker = process.WorkerProcess(b"", 0, start_method="fork", prefetch=1, arena_bytes=1 << 20)
    worker.close()
    pipes = [os.pipe() for _ in range(8)]  # nothing ever comes
    with pytest.raises(EOFError):
        worker.receive(10)
    for end in chain.from_iterable(pipes):
        os.close(end)


def test_with_fork_a_lambda_works():
    loader = worker_loader(encoding(lambda sample: sample), start_method="fork")
    assert list(islice(loader, 5)) == GOOD[:5]
    loader.close()


def test_options_are_checked():
    for wrong in ({"start_method": "threads"}, {"prefetch": 0}):
        with pytest.raises(SpecError, match=next(iter(wrong))):
            PoolOptions(**wrong)


@pytest.mark.parametrize("method", ["fork", "forkserver", SPAWN])
def test_workers_have_one_thread_and_no_cuda(method):
    loader = worker_loader(collating(encoders.threads), workers=1, start_method=method)
    assert next(iter(loader)) == (1, False)
    loader.close()


@pytest.mark.parametrize("method", ["fork", "forkserver", SPAWN, "thread"])
def test_workers_see_the_environment_of_now(method, monkeypatch):
    for value in ("1", "2"):
        monkeypatch.setenv("SOME_SETTING", value)
        spec = collating(encoders.reads_environment)
        loader = worker_loader(spec, workers=1, start_method=method)
        assert next(iter(loader)) == value
        loader.close()


@pytest.mark.parametrize("method", ["forkserver", "thread"])
def test_random_numbers_of_the_trainer_are_left_alone(method):
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    loader = worker_loader(start_method=method)
    list(islice(loader, 5))
    loader.close()
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert before == after


@dataclass(frozen=True)
class FrozenError(Exception):
    """Lets nothing be set on it, so no note either."""

    key: str


def raises_frozen(sample):
    if encoders.is_poison(sample):
        raise FrozenError("as told")
    return sample


@pytest.mark.parametrize(("workers", "method"), [(0, "fork"), (2, "thread")])
def test_an_exception_that_takes_no_note_is_raised_as_it_is(workers, method):
    loader = worker_loader(encoding(raises_frozen), workers=workers, start_method=method)
    given, error = until_error(loader, FrozenError)
    assert (given, error.key) == (GOOD[:AT], "as told")
    loader.close()


@pytest.mark.parametrize("limits", [{"timeout_s": 1.0}, {"start_timeout_s": 1.0}])
def test_a_worker_that_hangs_while_starting_is_reported_in_time(limits):
    loader = worker_loader(encoding(encoders.SlowToUnpickle()), start_method="forkserver", **limits)
    began = time.monotonic()
    with pytest.raises(WorkerError, match="worker 0"):
        next(iter(loader))
    assert time.monotonic() - began < 30
