"""An interrupt at any place of the loader: what goes elsewhere goes wholly, or not at all."""

from __future__ import annotations

import gc
import json
import multiprocessing.popen_fork

import pytest
from interrupting import interrupted
from trees import A, B, finite, leaf

from energy_data.loading import (
    crew,
    device,
    exchange,
    host,
    loader,
    place,
    process,
    step_draw,
    step_loader,
    wire,
)
from energy_data.nodes.concat import ConcatSpec
from loader import steps, test_device, test_ends, test_steps_ends, test_steps_stages
from loader.own_time import until
from loader.runs import loader_of
from loader.workers import children, worker_loader

FILES = {
    module.__file__
    for module in (crew, device, exchange, host, loader, place, step_draw, step_loader)
}
PASS = finite(ConcatSpec((A, B, leaf("d", 23))), 4)


def worker(method):
    return lambda: worker_loader(PASS, workers=2, lanes=4, prefetch=1, start_method=method)


def in_steps(**rules):
    return lambda: steps.ranks_of(test_steps_ends.one_pass(22), lanes=4, **rules)[0]


# Loaders, with how many batches of them come before the places to look at, and every how-manieth.
LOADERS = {
    "here": (lambda: loader_of(PASS, lanes=4), 10, 4),
    "one of two ranks": (
        lambda: loader_of(test_ends.stream(22), 1, 2, 4, even_batches="short"),
        3,
        1,
    ),
    "every time anew": (lambda: loader_of(PASS, lanes=4, from_start=True), 10, 7),
    "on a device": (
        lambda: test_device.loader_on(test_ends.stream(22), test_device.FakeCuda()),
        7,
        5,
    ),
    "in threads": (worker("thread"), 10, 7),
    "in processes": (worker("fork"), 10, 29),
    "steps": (in_steps(target=8), 7, 3),
    "steps that go over": (in_steps(target=16, last="carry"), 7, 3),
    "steps with a short one": (in_steps(target=8, last="short"), 9, 3),
    "steps of stages": (
        lambda: test_steps_stages.ranks_of(test_steps_stages.SPEC, test_steps_stages.RULES)[0],
        18,
        23,
    ),
}


def event(loader) -> object:
    """What happens next: a batch, by its samples, or the end of a pass."""
    try:
        batch = loader.next_batch()
    except StopIteration:
        return "end"
    return repr(batch)


def events(loader, count: int) -> list:
    return [event(loader) for _ in range(count)]


def restored(make, state) -> list:
    """What happens next in a new loader, at a saved place."""
    again = make()
    again.load_state_dict(json.loads(json.dumps(state)))
    found = events(again, 6)
    again.close()
    return found


@pytest.mark.parametrize("name", LOADERS)
def test_interrupted_anywhere_around_the_end_of_a_pass_or_stage_nothing_is_lost(name):
    make, begin, every = LOADERS[name]
    with make() as alone:
        expected = events(alone, begin + 9)
    number, is_reached = 1, True
    while is_reached:
        with make() as one:
            given = events(one, begin)
            is_reached = interrupted(
                number,
                FILES,
                lambda: [given.append(event(one)) for _ in range(2)],  # noqa: B023 - at once
            )
            state, rest = one.state_dict(), events(one, 6)
        at = len(given)
        # A batch may have been handed over and then dropped by the interrupt; never an end.
        after = at + (rest != expected[at : at + 6] and expected[at] != "end")
        assert rest == expected[after : after + 6], number
        again = restored(make, state)
        told = rest[0] == "end" != again[0]  # the state is after it already
        assert again[: 6 - told] == rest[told:], number
        number += every
    assert number > 30


@pytest.mark.parametrize("name", ["here", "on a device", "in threads", "steps", "steps of stages"])
def test_interrupted_anywhere_a_restored_loader_is_at_the_place_or_where_it_was(name):
    make, begin, every = LOADERS[name]
    with make() as alone:
        states, expected = [], events(alone, begin)
        for _ in range(3):
            states.append(alone.state_dict())
            expected += events(alone, 3)
        expected += events(alone, 6)
    number, is_reached, places = 1, True, set()
    while is_reached:
        with make() as one:
            given = events(one, begin)
            is_reached = interrupted(number, FILES, lambda: one.load_state_dict(states[2]))
            state, rest = one.state_dict(), events(one, 6)
        (at,) = {n for n in (len(given), begin + 6) if rest == expected[n : n + 6]}
        assert restored(make, state) == rest
        places.add(at)
        number += every
    assert len(places) == 2


# A worker of which the start is given up leaves its sockets to be closed with the last reference.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupted_anywhere_while_a_worker_starts_or_ends_no_process_is_left():
    def starts_and_ends():
        with worker_loader(workers=1, start_method="fork") as one:
            one.next_batch()

    files = {module.__file__ for module in (process, wire, multiprocessing.popen_fork)}
    before, number, is_reached = children(), 1, True
    gc.disable()  # nothing is left to it
    try:
        while is_reached:
            is_reached = interrupted(number, files, starts_and_ends)
            number += 1
        until(lambda: children() <= before, "a worker is left", children() - before)
    finally:
        gc.enable()
    assert number > 50
