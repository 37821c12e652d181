"""The client of the fetcher: waits for ranges of the bytes of objects.

    with held([(f"{path}/000.tar", 0, 512)]):  # path: of a mirror
        ...  # these bytes are there, and stay

Each thread has a connection of its own, and each process: forked ones connect again. The fetcher is
started where there is none, also if it was killed; what a thread wants is sent again then.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from energy_data.core.profiler import Fetched
from energy_data.errors import ReadOnlyError, SpecError, StructureError
from energy_data.remote.cache_space import Range
from energy_data.remote.connection import connect, environment
from energy_data.remote.mirror_paths import (
    CREDENTIALS,
    LOG,
    is_mirrored,
    ranges_of,
    root_of,
)

log = logging.getLogger(__name__)

_PATIENCE = 15  # seconds without an answer after which a warning is logged


class FetchClient:
    """The connection of one thread to the fetcher of a cache folder."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._socket: socket.socket | None = None
        self._received = b""
        self._asked = 0
        self._wanted: dict[str, tuple[list[Range], list[int]]] = {}
        self._inodes: dict[str, int] = {}
        self._ready: dict[str, set[Range]] = {}
        self.seen: dict[str, dict[str, Any]] = {}  # what `mirrors.looked_at` has looked at
        self.gone: deque[str] = deque()  # owners whose ranges are released with the next message

    def look(self, url: str, options: Mapping[str, Any], *, alone: bool = False) -> dict[str, Any]:
        """Make a mirror. Raises SpecError if the store cannot be read.

        alone: of one object, without others that belong to it.
        """
        message = {"kind": "look", "url": url, "alone": alone, "options": dict(options)}
        found: dict[str, Any] = self._ask_as_we(message)
        return found

    def look_at(self, places: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Return what `look` returns of URLs with their options, or `error` of one that fails."""
        found: list[dict[str, Any]] = self._ask_as_we({"kind": "look_at", "places": places})
        return found

    def put(self, path: str, file: str | None) -> None:
        """Write a file to the object of a path in the mirror; None: remove what is there.

        Raises ReadOnlyError if the store refuses it, SpecError if it fails.
        """
        self._ask_as_we({"kind": "put", "path": path, "file": file})

    def _ask_as_we(self, message: dict[str, Any]) -> Any:
        """Return the answer to a message, with our credentials. Raises SpecError for an error."""
        # The fetcher may be that of another run: credentials are those of who asked last.
        known = environment()
        variables = {name: known[name] for name in known if name.startswith(CREDENTIALS)}
        try:
            return self._ask({**message, "variables": variables})
        except RefusedError as error:
            is_write = error.is_refusal and message["kind"] != "look"
            kind = ReadOnlyError if is_write else SpecError
            raise kind(f"{error}. See docs/remote.md.") from None

    def want(self, owner: str, ranges: Sequence[Range], when: Sequence[int]) -> None:
        """Replace what an owner will need, in order of use. Does not wait.

        What is wanted is not dropped from the cache once it is there.

        when: the micro-batch in which each is needed.
        """
        while self.gone:
            self._replace(self.gone.popleft(), [], [])
        self._replace(owner, ranges, when)

    def _replace(self, owner: str, ranges: Sequence[Range], when: Sequence[int]) -> None:
        chosen = [one for one in zip(ranges, when, strict=True) if is_mirrored(one[0][0])]
        mine = [one for one, _ in chosen], [at for _, at in chosen]
        self._ready[owner] = self._ready.get(owner, set()).intersection(mine[0])
        if mine[0]:
            self._wanted[owner] = mine
        elif self._wanted.pop(owner, None) is None:
            return
        self._tell({"kind": "want", "owner": owner, "ranges": mine[0], "when": mine[1]})

    def wait(self, owner: str, ranges: Sequence[Range]) -> dict[Range, Fetched]:
        """Return when ranges are there; they stay until the owner wants others.

        Returns what each took that the owner did not hold before. Raises StructureError with the
        URL, the attempts, the seconds and the last answer.
        """
        self._notice_end()
        ready = self._ready.setdefault(owner, set())
        wanted = dict.fromkeys(one for one in ranges if one not in ready)
        missing = [one for one in wanted if is_mirrored(one[0])]
        if not missing:
            return {}
        began = time.perf_counter()
        for path, _, _ in missing:
            self._check_inode(path)
        try:
            answer = self._ask({"kind": "wait", "owner": owner, "ranges": missing})
        except RefusedError as error:
            raise StructureError(f"{error}.") from None
        ready.update(missing)
        held, when = self._wanted.setdefault(owner, ([], []))
        held += missing
        when += [0] * len(missing)
        costs = [Fetched(*one) for one in answer]
        # Such as while the fetcher is started again.
        unseen = time.perf_counter() - began - sum(cost.seconds for cost in costs)
        each = max(unseen, 0.0) / len(costs)
        return {
            one: cost._replace(seconds=cost.seconds + each)
            for one, cost in zip(missing, costs, strict=True)
        }

    def stats(self) -> dict[str, int]:
        """Return bytes, requests and retries of the fetcher so far, and bytes in the cache."""
        found: dict[str, int] = self._ask({"kind": "stats"})
        return found

    def close(self) -> None:
        """Close the connection. What it held is released."""
        if self._socket is not None:
            self._socket.close()
            self._socket, self._received = None, b""
            self._ready.clear()

    def _notice_end(self) -> None:
        """Close the connection if the fetcher is gone, as another one knows of nothing we hold."""
        if self._socket is None:
            return
        try:
            is_alive = self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) != b""
        except BlockingIOError:
            return
        except ConnectionError:
            is_alive = False
        if not is_alive:
            self.close()

    def _check_inode(self, path: str) -> None:
        """Raise StructureError if another run has replaced the file of an object."""
        try:
            now = os.stat(path).st_ino  # noqa: PTH116 - as in data/files/local.py
        except OSError:
            now = -1
        if self._inodes.setdefault(path, now) != now:
            problem = "was changed while it was in use. Restart the run."
            raise StructureError(problem, shard=path)

    def _tell(self, message: dict[str, Any]) -> None:
        """Send a message that has no answer."""
        try:
            self._connected().sendall(json.dumps(message).encode() + b"\n")
        except (ConnectionError, BrokenPipeError):
            self.close()  # all that is wanted is sent again with the next message
        except BaseException:
            self.close()  # an interrupt: the message may be cut
            raise

    def _ask(self, message: dict[str, Any]) -> Any:
        """Return the answer to a message. Raises RefusedError for an error."""
        while True:
            self._asked += 1
            line = json.dumps({**message, "id": self._asked}).encode() + b"\n"
            try:
                self._connected().sendall(line)
                answer = self._answer(self._asked)
            except ConnectionError:
                self.close()
                continue
            except BaseException:
                self.close()
                raise
            if "error" in answer:
                raise RefusedError(answer["error"], is_refusal=answer["refused"])
            return answer["found"]

    def _answer(self, number: int) -> dict[str, Any]:
        assert self._socket is not None
        answers = select.poll()
        answers.register(self._socket, select.POLLIN)
        while True:
            line, end, rest = self._received.partition(b"\n")
            if end:
                self._received = rest
                found: dict[str, Any] = json.loads(line)
                if found["id"] == number:
                    return found
                continue
            while not answers.poll(1000 * _PATIENCE):
                what = "an object store did not answer for %d s more; what failed is in %s/%s"
                log.warning(what, _PATIENCE, self.root, LOG)
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError
            self._received += data

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = connect(self.root)
            for path in self._inodes:
                self._check_inode(path)
            for owner, (ranges, when) in list(self._wanted.items()):
                message = {"kind": "want", "owner": owner, "ranges": ranges, "when": when}
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        return self._socket


class RefusedError(Exception):
    """The fetcher cannot do what it was asked for. is_refusal: the store does not allow it."""

    def __init__(self, problem: str, *, is_refusal: bool) -> None:
        super().__init__(problem)
        self.is_refusal = is_refusal


class _Connections(threading.local):
    def __init__(self) -> None:
        self.process = os.getpid()
        self.is_covered = False  # what is read now was waited for
        self.took: list[Fetched] | None = None  # what `held` waits for is added; None: to none
        self.by_root: dict[str, FetchClient] = {}


_CONNECTIONS = _Connections()


def client_of(root: str) -> FetchClient:
    """Return the client of this thread for a cache folder."""
    if _CONNECTIONS.process != os.getpid():  # forked: the connection is that of the parent
        _CONNECTIONS.process, _CONNECTIONS.by_root = os.getpid(), {}
    if root not in _CONNECTIONS.by_root:
        _CONNECTIONS.by_root[root] = FetchClient(root)
    return _CONNECTIONS.by_root[root]


def use_client(client: FetchClient) -> None:
    """Let this thread use a client for its cache folder, such as one that only models it."""
    client_of(client.root)
    _CONNECTIONS.by_root[client.root] = client


@contextmanager
def apart() -> Iterator[None]:
    """Use connections of the block's own in this thread; what it looked at is left at its end."""
    before, _CONNECTIONS.by_root = _CONNECTIONS.by_root, {}
    try:
        yield
    finally:
        for client in _CONNECTIONS.by_root.values():
            client.close()
        _CONNECTIONS.by_root = before


@contextmanager
def covered(*, is_covered: bool = True) -> Iterator[None]:
    """Let `held` do nothing in this thread: an owner holds all samples that are read.

    is_covered: False: let it wait again, for other bytes, such as those that a file is opened by.
    """
    before, _CONNECTIONS.is_covered = _CONNECTIONS.is_covered, is_covered
    try:
        yield
    finally:
        _CONNECTIONS.is_covered = before


@contextmanager
def waits(found: list[Fetched]) -> Iterator[None]:
    """Add to `found` what it takes to have the bytes that `held` waits for in the block."""
    before, _CONNECTIONS.took = _CONNECTIONS.took, found
    try:
        yield
    finally:
        _CONNECTIONS.took = before


@contextmanager
def held(ranges: Sequence[Range], *, always: bool = False) -> Iterator[None]:
    """Wait for ranges, and hold them while the block runs. Ordinary files need nothing.

    always: also where samples are covered, as these bytes are none of them.
    """
    is_needed = always or not _CONNECTIONS.is_covered
    remote = [one for one in ranges if is_mirrored(one[0])] if is_needed else []
    if not remote:
        yield
        return
    client, owner = client_of(root_of(remote[0][0])), f"read {id(remote)}"
    took = client.wait(owner, remote)
    if _CONNECTIONS.took is not None:
        _CONNECTIONS.took += took.values()
    try:
        yield
    finally:
        client.want(owner, [], [])


def whole_ranges(paths: Iterable[str]) -> list[Range]:
    """Return all bytes of those files that are in a cache."""
    # An index that was made here, of an object without one, is in no store.
    mine = [one for one in paths if is_mirrored(one) and os.path.exists(ranges_of(one))]  # noqa: PTH110 - as below
    sizes = [os.stat(path).st_size for path in mine]  # noqa: PTH116 - as in data/files/local.py
    return [(path, 0, size) for path, size in zip(mine, sizes, strict=True) if size]


def fetch_whole(*paths: str) -> None:
    """Return when all of some files is there; they stay while this thread lives."""
    if ranges := whole_ranges(paths):
        client_of(root_of(ranges[0][0])).wait("whole", ranges)
