"""A server of S3 with latency: python -m benchmarks.store FOLDER PREFIX LATENCY_MS MB_PER_S LOG.

It is moto's, with the files of FOLDER in the bucket `bench`, below PREFIX. Prints its port when
they are there; from then on each answer adds a line to LOG: its bytes, and what was asked for.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server


class Handler(WSGIRequestHandler):
    """Keeps connections, and writes no log."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any) -> None:
        """Say nothing."""


class Slow:
    """The application of moto, late and with a log, once `log` is set.

    Answers share a bandwidth: one after another, each is there when all of it has arrived.
    """

    def __init__(self, latency_s: float, bytes_per_s: float) -> None:
        self.app, self.latency_s = DomainDispatcherApplication(create_backend_app), latency_s
        self.bytes_per_s, self.free_at, self.lock = bytes_per_s, 0.0, Lock()
        self.log: int | None = None

    def __call__(self, asked: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        if self.log is None:
            return self.app(asked, start)
        time.sleep(self.latency_s)
        parts = list(self.app(asked, start))
        num_bytes = 0 if asked["REQUEST_METHOD"] == "HEAD" else sum(map(len, parts))
        with self.lock:
            self.free_at = max(self.free_at, time.monotonic()) + num_bytes / self.bytes_per_s
            there_at = self.free_at
        time.sleep(max(there_at - time.monotonic(), 0))
        os.write(self.log, f"{num_bytes} {asked['REQUEST_METHOD']} {asked['PATH_INFO']}\n".encode())
        return parts


def main() -> None:
    folder, prefix, latency_ms, mb_per_s, log = sys.argv[1:]
    app = Slow(float(latency_ms) / 1e3, float(mb_per_s) * 1e6)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{server.server_port}")
    client.create_bucket(Bucket="bench")
    for path in sorted(Path(folder).rglob("*")):
        if path.is_file():
            key = f"{prefix}/{path.relative_to(folder)}"
            client.put_object(Bucket="bench", Key=key, Body=path.read_bytes())
    app.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    print(server.server_port, flush=True)
    parent = os.getppid()
    while os.getppid() == parent:  # it ends with the benchmark
        time.sleep(0.5)


if __name__ == "__main__":
    main()
