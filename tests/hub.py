"""A Hugging Face Hub on this machine: the answers that its clients need to load datasets."""

import hashlib
import io
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

_FILE = re.compile(r"/datasets/([^/]+/[^/]+)/resolve/(refs/convert/[^/]+|[^/]+)/(.*)")
_API = re.compile(
    r"/api/datasets/([^/]+/[^/]+)(?:/(revision|tree)/(refs/convert/[^/]+|[^/]+)/?(.*))?"
)


def rows(first, end):
    """A Parquet file with rows of these numbers."""
    file = io.BytesIO()
    table = pa.table({"n": range(first, end), "text": [f"text {n}" for n in range(first, end)]})
    pq.write_table(table, file, row_group_size=10)
    return file.getvalue()


class Hub:
    """Serves datasets that were pushed to it."""

    def __init__(self):
        self.repos = {}  # name -> revision -> (commit, files)
        self.sent = []  # names of files
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                code, headers, data = hub.answer(self.path)
                if code == 200 and self.command == "GET" and "ETag" in headers:
                    hub.sent.append(self.path.rpartition("/")[2])
                self.send_response(code)
                for name, value in {**headers, "Content-Length": len(data)}.items():
                    self.send_header(name, str(value))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            do_HEAD = do_GET  # noqa: N815 - the name is given

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def push(self, name, files, revision="main"):
        """Make files the content of a revision of a dataset; return the commit."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        revisions = self.repos.setdefault(name, {})
        revisions[revision] = revisions[commit] = commit, files
        return commit

    def answer(self, target):
        """The code, the headers and the body of an answer."""
        url = urlsplit(target)
        path = unquote(url.path)
        if found := _FILE.fullmatch(path):
            name, revision, below = found.groups()
            what = "file"
        elif found := _API.fullmatch(path):
            name, what, revision, below = found.groups()
            what, revision = what or "revision", revision or "main"
        else:
            return 404, {}, b""
        if name not in self.repos or revision not in self.repos[name]:
            unknown = "Revision" if name in self.repos else "Repo"
            return 404, {"X-Error-Code": f"{unknown}NotFound"}, b""
        commit, files = self.repos[name][revision]
        if what == "file" and below in files:
            etag = hashlib.sha1(files[below]).hexdigest()
            return 200, {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}, files[below]
        deep = parse_qs(url.query).get("recursive") == ["true"]
        entries = list(_entries(files, below, deep=deep))
        if what == "file" or not entries:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        facts = {"id": name, "sha": commit} if what == "revision" else entries
        return 200, {"Content-Type": "application/json"}, json.dumps(facts).encode()


def _entries(files, below, *, deep):
    """What a listing of a folder has."""
    folders = set()
    for path, data in files.items():
        if below and not path.startswith(f"{below}/"):
            continue
        parts = path.removeprefix(f"{below}/").split("/")
        if deep or len(parts) == 1:
            yield {"type": "file", "oid": "0" * 40, "size": len(data), "path": path}
        if len(parts) > 1:
            folders.add(f"{below}/{parts[0]}".lstrip("/"))
    for folder in sorted(folders):
        yield {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
