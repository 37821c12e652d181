"""Connections to the fetcher of a cache folder, which is started where there is none."""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
from importlib.util import find_spec

from energy_data.errors import MissingExtraError, StructureError
from energy_data.remote.mirror_paths import LOCK, LOG, S3_ENDPOINT, SOCKET

_START_SECONDS = 60.0


def connect(root: str) -> socket.socket:
    """Connect to the fetcher of a cache folder; start one if there is none."""
    end, next_start = time.monotonic() + _START_SECONDS, 0.0
    folder = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                # The path of a socket is short; that of a cache may be long.
                found.connect(f"/proc/self/fd/{folder}/{SOCKET}")
                return found
            except OSError:
                found.close()
            now = time.monotonic()
            if now > end:
                raise StructureError(
                    f"the fetcher of {root} does not start. See {root}/{LOG}."
                ) from None
            if now > next_start and not _is_locked(root):
                _start(root)
                next_start = now + 5
            time.sleep(0.02)
    finally:
        os.close(folder)


def _is_locked(root: str) -> bool:
    """Return whether a fetcher serves, or begins or ends to do so."""
    lock = os.open(f"{root}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _start(root: str) -> None:
    if find_spec("obstore") is None:
        raise MissingExtraError("Data in an object store", "remote")
    paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)  # noqa: PTH100 - "" is "."
    # In its own session, so that an interrupt at the terminal does not end it before the workers.
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "energy_data.remote.fetcher_server", root],
        {**environment(), "PYTHONPATH": paths},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, f"{root}/{LOG}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def environment() -> dict[str, str]:
    """Return the variables for a fetcher, without the one that obstore prefers to options."""
    return {name: value for name, value in os.environ.items() if name != S3_ENDPOINT}
