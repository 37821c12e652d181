"""Workers killed at random moments, many times: nothing hangs, nothing is lost, nothing is left."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from itertools import islice
from tempfile import NamedTemporaryFile

import pytest

from loading.own_time import OwnTime, until
from loading.workers import (
    SHARED,
    children,
    descriptors,
    is_alive,
    left_in,
    named_memory,
    processes,
    worker_loader,
)


def held() -> dict[int, int]:
    """This process and all below it, with how many files each has open."""
    counts = {}
    for process in {os.getpid()} | children():
        with suppress(OSError):  # it has ended
            counts[process] = descriptors(process)
    return counts


def soak(kills: int, methods: list[str]) -> None:
    """Kill so many workers."""
    rng = random.Random(kills)
    expected = worker_loader(workers=0)
    worker_loader(start_method="forkserver")._host._start(0).close()  # the fork server stays
    us, started, named, before = {os.getpid()}, set(), set(), held()
    others = named_memory(us)  # of tests before this one
    while kills:
        loader = worker_loader(
            workers=rng.choice([1, 3]), prefetch=4, start_method=rng.choice(methods)
        )
        state = expected.state_dict()
        loader.load_state_dict(state)
        clock = OwnTime(us)
        for batch, other in islice(zip(loader, expected, strict=True), 40):
            assert clock.passed() < 30, "it hung"
            assert batch == other
            alive = [process for process in processes(loader) if is_alive(process)]
            started |= set(alive)
            if kills and alive and rng.random() < 0.4:
                time.sleep(rng.random() * 0.01)
                named |= named_memory(us | started)
                with suppress(ProcessLookupError):  # it is being killed already
                    os.kill(rng.choice(alive), signal.SIGKILL)
                kills -= 1
            clock = OwnTime(us)
        loader.close()
    # The fork server closes what it had of a worker soon after that has ended.
    until(
        lambda: all(count <= before.get(process, 0) for process, count in held().items()),
        f"{held()} after {before}",
        us,
    )
    assert not (named | named_memory(us | started)) - others  # arenas have no names


def test_a_name_left_in_shared_memory_is_noticed():
    with NamedTemporaryFile(dir=SHARED) as file:
        assert left_in(named_memory({os.getpid()})) == {file.name}
    assert not left_in({file.name})


def test_ten_random_kills_leave_nothing_behind():
    soak(10, ["fork", "forkserver"])


@pytest.mark.slow
def test_two_hundred_random_kills_leave_nothing_behind():
    soak(200, ["fork", "forkserver", "spawn"])
