"""Real ranks that start at once: processes forked from a server that has imported torch.

`Ranks` is the side of the tests. What it talks to is this module run as a program: a process with
one thread, which never does anything with torch itself. Each rank is a process forked from it that
runs a script as Python would: as `__main__`, with the environment torchrun gives, to an end of the
interpreter. As with torchrun, a process of its own keeps the store in which ranks find each other;
or rank 0 does, as for ranks that are started by hand.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

HOST = "127.0.0.1"
ENV = {
    "PYTHONPATH": ":".join(map(str, Path(__file__).parents[1:3])),
    "PATH": "",
    "OMP_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "MASTER_ADDR": HOST,
}
LONG_S = 60.0  # for the server itself, beside the limit of the ranks


class Ended(NamedTuple):
    """How one rank ended."""

    code: int | None  # negative: the signal that killed it; None: it did not end in time
    output: str  # what it wrote, errors too


class Ranks:
    """Starts ranks, some at a time."""

    def __init__(self) -> None:
        self._server: subprocess.Popen | None = None

    def run(
        self,
        text: str,
        folder: Path,
        ranks: int,
        *arguments: str,
        by_hand: bool = False,
        imports: tuple[str, ...] = (),
        limit_s: float = 120,
    ) -> list[Ended]:
        """Run a script as every rank, until all have ended; who is left at the limit is killed.

        `by_hand`: rank 0 keeps the store. `imports` are made once, for all that is run later too.
        """
        script = folder / "rank.py"
        script.write_text(text)
        codes = self._asked(
            script=str(script),
            arguments=arguments,
            ranks=ranks,
            by_hand=by_hand,
            imports=imports,
            limit_s=limit_s,
        )
        return [Ended(code, output_of(script, rank).read_text()) for rank, code in enumerate(codes)]

    def run_well(self, text: str, folder: Path, ranks: int, *arguments: str, **options) -> None:
        """Run a script as every rank; all must end well."""
        ended = self.run(text, folder, ranks, *arguments, **options)
        assert [code for code, _ in ended] == [0] * ranks, ended

    def run_alone(self, text: str, folder: Path, *arguments: str) -> str:
        """Run a script in its folder as a program of one process; return what it wrote."""
        (ended,) = self.run(text, folder, 1, *arguments)
        assert ended.code == 0, ended.output[-4000:]
        return ended.output

    def _asked(self, **request: Any) -> list[int | None]:
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__],
                env=ENV,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        self._server.stdin.write(f"{json.dumps(request)}\n")
        self._server.stdin.flush()
        limit_s = request["limit_s"] + LONG_S
        assert select.select([self._server.stdout], [], [], limit_s)[0], "the server hangs"
        return json.loads(self._server.stdout.readline())

    def close(self) -> None:
        """End the server, and with it what ranks are left."""
        if self._server is not None:
            self._server.stdin.write("\n")  # a forked child of ours may hold its end of the pipe
            self._server.stdin.close()
            self._server.stdout.close()
            try:
                self._server.wait(LONG_S)
            finally:
                self._server.kill()


def output_of(script: Path, rank: int) -> Path:
    return script.with_name(f"output-{rank}.txt")


def serve() -> None:
    """Answer requests until there are none; returns in ranks too, which are at their end then."""
    for name in ("torch.distributed", "energy_data.public"):
        importlib.import_module(name)
    while (line := sys.stdin.readline()).strip():
        request = json.loads(line)
        for name in request["imports"]:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # else the end of each rank looks through all that was imported, for a second
        (_,) = Path("/proc/self/task").iterdir()  # with more, a fork may find a lock held for ever
        keeper, port = (None, free_port()) if request["by_hand"] else keep_store()
        started = []
        for rank in range(request["ranks"]):
            process = os.fork()
            if not process:
                become(rank, port, request)
                return
            started.append(process)
        codes = ends(started, request["limit_s"])
        if keeper is not None:
            ends([keeper], 0)
        sys.stdout.write(f"{json.dumps(codes)}\n")
        sys.stdout.flush()


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HOST, 0))
        return free.getsockname()[1]


def keep_store() -> tuple[int, int]:
    """Start a process with a store; it, and the port of the store."""
    from torch.distributed import TCPStore  # noqa: PLC0415 - pytest's side needs none of it

    theirs, ours = os.pipe()
    keeper = os.fork()
    if not keeper:
        with contextlib.suppress(BaseException):
            store = TCPStore(
                HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60)
            )
            os.write(ours, str(store.port).encode())
            os.close(ours)
            signal.pause()
        os._exit(1)
    os.close(ours)
    with os.fdopen(theirs) as told:
        return keeper, int(told.read())


def become(rank: int, port: int, request: dict[str, Any]) -> None:
    """Be a rank: what `python script arguments...` is."""
    script = Path(request["script"])
    told = os.open(output_of(script, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, fd in ((nothing, 0), (told, 1), (told, 2)):
        os.dup2(ours, fd)
    number, ranks = str(rank), str(request["ranks"])
    os.environ.update(RANK=number, WORLD_SIZE=ranks, MASTER_PORT=str(port))
    if not request["by_hand"]:  # all that torchrun sets and ranks of one machine read
        os.environ.update(
            LOCAL_RANK=number,
            LOCAL_WORLD_SIZE=ranks,
            GROUP_RANK="0",
            TORCHELASTIC_USE_AGENT_STORE="True",
        )
    sys.argv = [str(script), *request["arguments"]]
    sys.path[0] = str(script.parent)
    os.chdir(script.parent)
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__file__ = str(script)
    exec(compile(script.read_text(), script, "exec"), main.__dict__)


def ends(processes: list[int], limit_s: float) -> list[int | None]:
    """How processes ended. At the limit, or if nobody is there to be told, they are killed."""
    until = time.monotonic() + limit_s
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)
    left = {os.pidfd_open(process): process for process in processes}
    for handle in left:
        poll.register(handle, select.POLLIN)
    codes = {}
    while left:
        found = poll.poll(max(0, until - time.monotonic()) * 1000)
        over = not found or any(handle not in left for handle, _ in found)
        for handle in list(left) if over else [handle for handle, _ in found]:
            process = left.pop(handle)
            poll.unregister(handle)
            if over:
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            _, status = os.waitpid(process, 0)
            codes[process] = None if over else os.waitstatus_to_exitcode(status)
            os.close(handle)
    return [codes[process] for process in processes]


if __name__ == "__main__":
    serve()
