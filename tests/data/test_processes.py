"""Calls in processes give their results in order, and end with the first error or with Ctrl-C."""

import operator
import os
import signal
import subprocess
import sys
from contextlib import closing
from itertools import count, islice

import pytest

from energy_data.core.processes import map_in_processes
from energy_data.errors import EnergyDataError


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_in_order_and_items_are_asked_for_as_they_are_needed(workers):
    asked = count()
    found = map_in_processes(operator.neg, asked, workers=workers, preload=["operator"])
    with closing(found):
        assert list(islice(found, 100)) == [-n for n in range(100)]
    assert next(asked) <= 100 + 16 * workers


def test_an_error_of_a_call_ends_the_others_and_is_raised():
    found = map_in_processes(operator.index, [1, 2, "three", 4], workers=2, preload=["operator"])
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
        next(found)


def test_processes_have_the_environment_of_their_caller(monkeypatch):
    for value in ("before", "after"):  # the server of processes has started by then
        monkeypatch.setenv("SOME_SETTING", value)
        found = map_in_processes(os.getenv, ["SOME_SETTING"] * 2, workers=2, preload=["os"])
        assert list(found) == [value, value]


def test_a_process_that_is_killed_is_an_error_that_says_what_to_do():
    found = map_in_processes(signal.raise_signal, [signal.SIGKILL], workers=2, preload=["signal"])
    with pytest.raises(EnergyDataError, match=r"one of 2 processes .* Use fewer"):
        next(found)


def test_ctrl_c_ends_all_processes_at_once_with_one_traceback():
    script = (
        "import subprocess, functools\n"
        "from energy_data.core.processes import map_in_processes\n"
        "call = functools.partial(subprocess.call, shell=True)\n"
        "list(map_in_processes(call, ['echo begun; exec sleep 100'] * 4, workers=2,"
        " preload=['subprocess']))\n"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert run.stdout.readline() == "begun\n"
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert said.count("Traceback") == 1, said
    assert said.endswith("KeyboardInterrupt\n")
