"""Global generators are set by one thread at a time, and while a trainer waits for its workers."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from queue import SimpleQueue

import pytest
from interrupting import interrupted

from energy_data import randomness, turns
from energy_data.core.rng import GlobalSeeds
from energy_data.core.running import RUNNING, Role
from energy_data.core.turns import Borrower, Lender, LostTurnError, lend_to, look_again
from energy_data.errors import EnergyDataError
from energy_data.tasks.stateless import stateless


def numbers(seed: int, count: int = 3) -> list[float]:
    """Some numbers of a seeding, with time for others in between."""
    found = []
    with GlobalSeeds(seed):
        for _ in range(count):
            found.append(random.random())
            time.sleep(0.0005)
    return found


@pytest.fixture
def before():
    """The trainer's own state of `random`, which nothing is to change."""
    random.seed(3)
    return random.getstate()


def in_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def borrowing(lender: Lender, work, told: list) -> tuple[threading.Thread, Borrower]:
    """A thread that works as a worker does; what comes of it is told."""
    borrower = Borrower(lender)

    def run():
        lend_to(borrower)
        try:
            told.append(work())
        except LostTurnError:
            told.append("lost")

    return in_thread(run), borrower


def test_threads_have_their_worlds_one_after_another(before):
    expected = [numbers(seed) for seed in range(8)]
    found = {}
    threads = [in_thread(lambda n=n: found.update({n: numbers(n)})) for n in range(8)]
    for thread in threads:
        thread.join(10)
    assert [found[n] for n in range(8)] == expected
    assert random.getstate() == before


def test_a_worker_has_no_turn_before_its_trainer_waits():
    lender, told = Lender(), []
    thread, _ = borrowing(lender, lambda: numbers(1), told)
    thread.join(0.05)
    assert thread.is_alive()
    assert lender.wait(SimpleQueue(), 0.5) is None
    thread.join(5)
    assert told == [numbers(1)]


def test_a_trainer_goes_on_only_when_the_turn_has_ended(before):
    lender, told, made = Lender(), [], SimpleQueue()

    def work():
        with GlobalSeeds(1):
            made.put("there")
            time.sleep(0.2)
        return "through"

    borrowing(lender, work, told)
    assert lender.wait(made, 5) == "there"
    assert random.getstate() == before
    assert lender.taken_from is None


def test_a_turn_that_does_not_end_is_taken_away_and_its_work_is_void(before):
    lender, told, gate = Lender(), [], threading.Event()

    def work():
        with GlobalSeeds(1), GlobalSeeds(2):
            gate.wait(10)

    thread, _ = borrowing(lender, work, told)
    assert lender.wait(SimpleQueue(), 0.1) is None
    assert random.getstate() == before
    assert lender.taken_from == thread.ident
    gate.set()
    thread.join(5)
    assert told == ["lost"]
    assert random.getstate() == before
    assert len(numbers(1)) == 3  # it is nobody's turn


def test_nobody_has_a_turn_while_one_that_was_taken_away_goes_on():
    lender, told, others, gate = Lender(), [], [], threading.Event()

    def work():
        with GlobalSeeds(1):
            gate.wait(10)
            random.random()
        raise AssertionError

    borrowing(lender, work, told)
    assert lender.wait(SimpleQueue(), 0.1) is None
    thread = in_thread(lambda: others.append(numbers(1)))
    thread.join(0.1)
    assert thread.is_alive()
    gate.set()
    thread.join(5)
    assert (told, others) == (["lost"], [numbers(1)])


def test_a_turn_that_never_ends_is_an_error_for_others(monkeypatch):
    monkeypatch.setattr(turns, "_GIVE_UP_S", 0.1)
    lender, gate = Lender(), threading.Event()

    def work():
        with GlobalSeeds(1):
            gate.wait(10)

    thread, _ = borrowing(lender, work, [])
    assert lender.wait(SimpleQueue(), 0.1) is None
    with pytest.raises(EnergyDataError, match="still draws from the global generators"):
        numbers(1)
    gate.set()
    thread.join(5)
    assert len(numbers(1)) == 3


def test_a_worker_that_is_stopped_waits_for_no_turn():
    told = []
    thread, borrower = borrowing(Lender(), lambda: numbers(1), told)
    borrower.is_stopped = True
    look_again()
    thread.join(5)
    assert told == ["lost"]


def test_an_interrupt_while_the_trainer_waits_puts_its_generators_back(before):
    lender, told, gate = Lender(), [], threading.Event()

    def work():
        with GlobalSeeds(1):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            gate.wait(10)

    thread, _ = borrowing(lender, work, told)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        lender.wait(SimpleQueue(), None)
    assert time.monotonic() - began < 5
    assert random.getstate() == before
    gate.set()
    thread.join(5)
    assert told == ["lost"]


def test_an_interrupt_while_a_turn_ends_leaves_it_the_time_to_end(before):
    lender, told, made = Lender(), [], SimpleQueue()

    def work():
        with GlobalSeeds(1):
            made.put("there")
            time.sleep(0.1)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.1)
            random.random()
        return "through"

    thread, _ = borrowing(lender, work, told)
    with pytest.raises(KeyboardInterrupt):
        lender.wait(made, 5)
    assert random.getstate() == before
    thread.join(5)
    assert told == ["through"]
    assert random.getstate() == before
    assert lender.taken_from is None


def test_a_child_forked_within_a_turn_has_turns_of_its_own():
    with GlobalSeeds(1):
        child = os.fork()
        if child == 0:
            done = []
            thread = in_thread(lambda: done.append(numbers(2)))
            thread.join(5)
            os._exit(0 if done else 1)
    assert os.waitpid(child, 0)[1] == 0


OURS = {turns.__file__, randomness.__file__, sys.modules[stateless.__module__].__file__}


@stateless(restore_seeds=True)
def nested(sample):
    return random.random(), inner(sample)


@stateless(restore_seeds=True)
def inner(sample):
    yield random.random()


def test_an_interrupt_anywhere_in_a_turn_of_the_trainer_itself_ends_it():
    RUNNING.role, RUNNING.item = Role(1, "nested"), {"__restore_key__": ("x", 0, 1)}
    random.seed(3)
    before, number = random.getstate(), 1
    while interrupted(number, OURS, lambda: list(nested({})[1])):
        assert random.getstate() == before, number
        assert not turns._TURN.held, number
        number += 1
    RUNNING.role = None
    assert number > 50
    thread = in_thread(lambda: numbers(2))
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("ends", [True, False])
def test_an_interrupt_anywhere_while_the_trainer_waits_leaves_nobody_a_turn(monkeypatch, ends):
    monkeypatch.setattr(turns, "_GRACE_S", 0.01)
    monkeypatch.setattr(turns, "_LOOK_S", 0.005)
    random.seed(3)
    before, number, is_reached = random.getstate(), 1, True
    while is_reached:
        lender, made, gate, told = Lender(), SimpleQueue(), threading.Event(), []

        def work(made=made, gate=gate):
            with GlobalSeeds(1):
                assert ends or gate.wait(10)
            made.put("there")

        thread, borrower = borrowing(lender, work, told)
        is_reached = interrupted(number, OURS, lambda: lender.wait(made, 0.01))  # noqa: B023 - at once
        assert random.getstate() == before, number
        assert not turns._TURN.held, number
        assert not lender.waits
        borrower.is_stopped = True
        gate.set()
        look_again()
        thread.join(5)
        assert len(told) == 1
        assert random.getstate() == before, number
        assert not turns._TURN.lost
        number += 1
    assert number > 20


def test_a_trainer_in_a_world_of_its_own_lends_its_turn_on_and_has_its_numbers():
    expected = numbers(1, 4)
    found, told = [], []
    with GlobalSeeds(1):
        for _ in range(2):
            found.append(random.random())
            lender, made = Lender(), SimpleQueue()
            borrowing(lender, lambda made=made: made.put(numbers(2)), told)
            assert lender.wait(made, 5) == numbers(2)
            found.append(random.random())
    assert found == expected


def test_a_world_of_its_own_has_the_trainer_again_when_a_turn_lent_on_is_taken_away():
    expected, gate, told = numbers(1), threading.Event(), []

    def work():
        with GlobalSeeds(2):
            gate.wait(10)

    with GlobalSeeds(1):
        found = [random.random()]
        lender = Lender()
        thread, _ = borrowing(lender, work, told)
        assert lender.wait(SimpleQueue(), 0.1) is None
        found += [random.random() for _ in range(2)]
    gate.set()
    thread.join(5)
    assert found == expected
    assert told == ["lost"]


def test_a_child_forked_within_a_world_may_leave_it(before):
    with GlobalSeeds(1):
        child = os.fork()
    if child == 0:
        os._exit(0 if random.getstate() == before else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_child_forked_in_a_worker_thread_waits_for_no_trainer():
    told = []

    def work():
        child = os.fork()
        if child == 0:
            threading.Timer(5, os._exit, [1]).start()
            os._exit(0 if len(numbers(1)) == 3 else 2)
        return os.waitpid(child, 0)[1]

    thread, _ = borrowing(Lender(), work, told)
    thread.join(10)
    assert told == [0]
