"""An interrupt (KeyboardInterrupt) in the middle of a batch: nothing hangs, leaks or is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from itertools import islice

import pytest

from energy_data.loading.workers import process
from loading import encoders, test_device
from loading.encoders import encoding
from loading.own_time import until
from loading.workers import children, threads, worker_loader

INTERRUPTED = False


def interrupts_once(sample):
    """Raise in the process of the trainer, at the first poisonous sample."""
    global INTERRUPTED
    if encoders.is_poison(sample) and not INTERRUPTED:
        INTERRUPTED = True
        raise KeyboardInterrupt
    return sample


def interrupts(*_):
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def nothing_is_left():
    global INTERRUPTED
    INTERRUPTED = False
    before = children()
    yield
    until(lambda: children() <= before and not threads(), "a worker is left", {os.getpid()})


GOOD = list(islice(worker_loader(encoding(encoders.plain), workers=0), 60))
METHODS = [(0, "fork"), (2, "fork"), (2, "thread")]  # workers, start method


def interrupted(loader, after_s: float) -> bool:
    """Whether SIGINT came before the next batch."""
    timer = threading.Timer(after_s, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    try:
        timer.start()
        loader.next_batch()
        timer.join()
        time.sleep(1)  # SIGINT is delivered here at the latest
    except KeyboardInterrupt:
        return True
    return False


# An interrupt while a worker starts leaves its sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("workers", "method"), METHODS)
def test_an_interrupt_while_the_trainer_waits_is_prompt_and_loses_no_batch(workers, method):
    def loader():
        spec = encoding(encoders.dawdles)
        return worker_loader(spec, workers=workers, start_method=method, prefetch=1)

    rng, one = random.Random(0), loader()
    for _ in range(12):
        began = time.monotonic()
        assert interrupted(one, rng.uniform(0.001, 0.03))
        assert time.monotonic() - began < 8
        at = 0 if one.last_batch is None else one.last_batch + 1
        again = loader()
        again.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert again.next_batch() == GOOD[at]
        again.close()
        assert one.next_batch() == GOOD[at]
    one.close()


def test_an_interrupt_right_after_a_worker_has_started_leaves_no_worker(monkeypatch):
    one = worker_loader(encoding(encoders.plain), start_method="fork")
    with monkeypatch.context() as patch:
        patch.setattr(process, "_open_process", interrupts)
        with pytest.raises(KeyboardInterrupt):
            one.next_batch()
    assert one.next_batch() == GOOD[0]
    one.close()


def test_an_interrupt_ends_workers_that_hang():
    one = worker_loader(encoding(encoders.sleeps), start_method="fork", timeout_s=None)
    before = children()
    timer = threading.Timer(1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        list(one)
    until(lambda: not children() - before, "a worker is left", {os.getpid()})


MAKERS = {
    "here": lambda spec: worker_loader(spec, workers=0),
    "on a device": lambda spec: test_device.loader_on(spec, test_device.FakeCuda()),
    "a pass": lambda spec: worker_loader(spec, workers=0, from_start=True),
}


@pytest.mark.parametrize("name", MAKERS)
def test_an_interrupt_in_a_user_function_loses_no_batch(name):
    one = MAKERS[name](encoding(interrupts_once))
    given = []
    while len(given) < 30:
        try:
            given.append(one.next_batch())
        except KeyboardInterrupt:
            assert INTERRUPTED
    assert INTERRUPTED
    alone = MAKERS[name](encoding(encoders.plain))
    assert given == [alone.next_batch() for _ in range(30)]
