"""Signal handlers that raise, take the state or close the loader, at any time."""

from __future__ import annotations

import random
import signal
import threading
from itertools import islice

import pytest
from interrupting import take_among_interrupts

from loader import encoders
from loader.encoders import encoding
from loader.runs import next_batch
from loader.workers import QUICK, worker_loader

GOOD = list(islice(worker_loader(encoding(encoders.plain), workers=0), 60))


INLINE_TOO = [(0, "fork"), (2, "fork"), (2, "thread")]  # workers, start method


# An interrupt in the middle of starting a worker leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("workers", "method"), INLINE_TOO)
def test_an_interrupt_at_any_time_loses_no_batch(workers, method):
    spec = encoding(encoders.dawdles)
    loader = worker_loader(spec, workers=workers, start_method=method, prefetch=1)
    rng = random.Random(0)
    # To fork a large process takes longer than that: after 300 it is left the time.
    take_among_interrupts(
        loader, GOOD, lambda interrupts: rng.uniform(0, 0.005 if interrupts < 300 else 0.05)
    )
    loader.close()


@pytest.mark.parametrize(("workers", "method"), INLINE_TOO)
def test_a_state_taken_in_a_signal_handler_at_any_time_is_that_of_a_batch(workers, method):
    spec = encoding(encoders.dawdles)
    expected, alone = {}, worker_loader(spec, workers=0)
    for _ in range(101):
        state = alone.state_dict()
        expected[next_batch(state)] = state
        alone.next_batch()
    loader = worker_loader(spec, workers=workers, start_method=method, prefetch=1)
    loader.next_batch()
    seen, pause_s = [], 0.0005

    def look(*_):
        seen.append(loader.state_dict())
        signal.setitimer(signal.ITIMER_REAL, pause_s)  # before, they pile up on a slow machine

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, pause_s)
    try:
        for _ in range(99):
            loader.next_batch()
    finally:
        pause_s = 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(seen) > 50
    assert all(state == expected[next_batch(state)] for state in seen)
    loader.close()


# A worker of which the start is given up leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("method", QUICK)
@pytest.mark.parametrize("within_s", [0.003, 0.03])
def test_a_loader_closed_in_a_signal_handler_at_any_time_goes_on(method, within_s):
    loader = worker_loader(encoding(encoders.dawdles), start_method=method, timeout_s=5)
    closed, given, rng = [], [], random.Random(0)
    before = signal.signal(signal.SIGALRM, lambda *_: closed.append(loader.close()))
    try:
        while len(given) < 20 or not closed:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0001, within_s))
            given.append(loader.next_batch())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert given == GOOD[: len(given)]
    loader.close()


@pytest.mark.parametrize("method", QUICK)
def test_a_loader_closed_by_another_thread_while_it_waits_goes_on(method):
    loader = worker_loader(
        encoding(encoders.dawdles), start_method=method, timeout_s=30, prefetch=1
    )
    is_over = threading.Event()

    def closes():
        while not is_over.wait(0.02):
            loader.close()

    closing = threading.Thread(target=closes)
    closing.start()
    given = list(islice(loader, 20))
    is_over.set()
    closing.join()
    loader.close()
    assert given == GOOD[:20]
