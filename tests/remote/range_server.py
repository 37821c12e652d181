"""A server of ranges of files that can be bad: python range_server.py FOLDER SETTINGS LOG.

SETTINGS is a JSON file that is read at each request: `latency` in seconds, and the parts of
requests that end in `unavailable` (503), `reset`, or `truncated`; with `whole`, ranges
are ignored. `missing` is the status of files that do not exist, `forbidden` the end of paths that
are refused, `expired` a key id that is. A line of LOG is a request.

It lists folders as S3 does, and refuses to write.
"""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

FOLDER, SETTINGS, LOG = map(Path, sys.argv[1:4])
DRAW, LOCK = random.Random(0), threading.Lock()


def tag_of(file):
    return f'"{file.stat().st_ino}-{file.stat().st_mtime_ns}"'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET(has_body=False)

    def do_GET(self, *, has_body=True):
        settings = json.loads(SETTINGS.read_text())
        time.sleep(settings.get("latency", 0))
        asked = None if settings.get("whole") else self.headers.get("Range")
        with LOCK:
            draw = DRAW.random()
            line = {"method": self.command, "path": self.path, "range": asked}
            with LOG.open("a") as log:
                log.write(json.dumps(line) + "\n")
        file = FOLDER / self.path.lstrip("/")
        parts = [settings.get(name, 0) for name in ("unavailable", "reset", "truncated")]
        unavailable, reset, truncated = accumulate(parts)
        if draw < unavailable:
            self.send_error(503)
        elif draw < reset:
            hard = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, hard)
            self.close_connection = True
            self.connection.close()
        elif self.path.endswith(settings.get("forbidden", "\0")):
            self.send_error(403)
        elif settings.get("expired", "\0") in self.headers.get("Authorization", ""):
            self.send_error(400)
        elif "?list-type=2" in self.path:
            self.send_list(*urlsplit(self.path)[2:4])
        elif not file.is_file():
            self.send_error(settings.get("missing", 404))
        else:
            self.send_file(file, asked, has_body, is_truncated=draw < truncated)

    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(403)

    def send_list(self, bucket, query):
        root, found = FOLDER / bucket.strip("/"), []
        for file in sorted((root / parse_qs(query)["prefix"][0]).rglob("*")):
            if file.is_file():
                found.append(
                    f"<Contents><Key>{file.relative_to(root)}</Key><ETag>{tag_of(file)}</ETag>"
                    f"<Size>{file.stat().st_size}</Size>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )
        data = f"<ListBucketResult>{''.join(found)}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def send_file(self, file, asked, has_body, *, is_truncated):
        facts = file.stat()
        tag = tag_of(file)
        if self.headers.get("If-Match", tag) != tag:
            self.send_error(412)
            return
        begin, end = 0, facts.st_size
        if asked:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = int(first), min(int(last) + 1, end)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - begin))
        self.send_header("ETag", tag)
        self.send_header("Last-Modified", self.date_time_string(facts.st_mtime))
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{facts.st_size}")
        self.end_headers()
        if has_body:
            with file.open("rb") as stream:
                stream.seek(begin)
                data = stream.read(end - begin)
            self.wfile.write(data[: len(data) // 2] if is_truncated else data)
            self.close_connection = is_truncated


ThreadingHTTPServer.request_queue_size = 256  # connections that come at once
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
sys.stdout.write(f"{server.server_port}\n")
sys.stdout.flush()
parent = os.getppid()
threading.Thread(target=server.serve_forever, daemon=True).start()
while os.getppid() == parent:  # it ends with the tests
    time.sleep(0.5)
