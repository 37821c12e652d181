"""Programs that tests start, and what is seen of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from loading.own_time import OwnTime, until
from loading.workers import is_alive, session


@contextmanager
def starting(folder: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts programs in a process group of their own; none survives."""
    running = []

    def start(text: str, *arguments: str, in_file: bool = True) -> subprocess.Popen:
        script = folder / f"program_{len(running)}.py"
        script.write_text(text)
        program = subprocess.Popen(
            [
                sys.executable,
                "-W",
                "error",
                *([str(script)] if in_file else ["-c", text]),
                *arguments,
            ],
            env={**os.environ, "PYTHONPATH": ":".join(map(str, Path(__file__).parents[1:3]))},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        running.append(program)
        return program

    try:
        yield start
    finally:
        for program in running:
            if program.poll() is None:
                os.killpg(program.pid, signal.SIGKILL)
            program.communicate()


def said(program: subprocess.Popen) -> str:
    """The next line of a program, and nothing after it: `communicate` would not see that."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(program.stdout.fileno(), 1)
        assert byte, (line, program.stderr.read())
        line += byte
    return line.decode().strip()


def end(program: subprocess.Popen, within_s: float = 20) -> tuple[str, str]:
    """What a program says until its end, which must come soon."""
    clock = OwnTime({program.pid})
    while True:
        try:
            return program.communicate(timeout=0.05)
        except subprocess.TimeoutExpired:
            assert clock.passed() < within_s, "the program does not end"


class Seen(NamedTuple):
    """What is seen of a program that has ended."""

    program: subprocess.Popen
    lines: list[str]
    err: str


def run_of(start, text: str, *arguments: str, within_s: float = 20) -> Seen:
    """Run a program, which ends soon after the first line it says."""
    program = start(text, *arguments)
    first = said(program)
    out, err = end(program, within_s)
    return Seen(program, [first, *out.splitlines()], err)


def until_gone(program: subprocess.Popen) -> None:
    """Wait until no process of a program is left."""
    program.wait()
    left = session(program.pid)
    until(lambda: not any(map(is_alive, left)), "orphans", left)
