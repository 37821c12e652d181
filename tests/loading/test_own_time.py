"""The clock of tests that wait for other processes: it is for hangs, not for loads."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from loading.own_time import OwnTime

BUSY = "while True: pass"
WAITING = "import time; time.sleep(99)"


def passed(*programs: str) -> float:
    """The own time of the first of some programs that share one core for half a second."""
    (core, *_) = os.sched_getaffinity(0)
    begin = f"import os; os.sched_setaffinity(0, [{core}]); print(flush=True)\n"
    running = [
        subprocess.Popen([sys.executable, "-S", "-c", begin + program], stdout=subprocess.PIPE)
        for program in programs
    ]
    try:
        for program in running:
            program.stdout.readline()
        clock = OwnTime({running[0].pid})
        time.sleep(0.5)
        return clock.passed()
    finally:
        for program in running:
            program.kill()
            program.communicate()


def test_who_waits_uses_its_time_up():
    assert passed(WAITING, *[BUSY] * 4) > 0.4


def test_who_queues_for_a_core_does_not():
    assert passed(*[BUSY] * 8) < 0.3
