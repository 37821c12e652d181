from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import field, frozen

from energy_data.remote import client

HERE = Path(__file__).parent


def started(*arguments, **environment):
    """A server, and the port that it prints."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@frozen
class RangeServer:
    """A server of the files of a folder, whose answers may be bad."""

    folder: Path
    url: str
    _settings: Path = field(alias="settings")
    _log: Path = field(alias="log")

    def answers(self, **settings):
        self._settings.write_text(json.dumps(settings))

    def requests(self, method="GET"):
        lines = map(json.loads, self._log.read_text().splitlines())
        return [line for line in lines if line["method"] == method]

    def forget(self):
        self._log.write_text("")


@pytest.fixture(scope="session")
def _range_server(tmp_path_factory):
    root = tmp_path_factory.mktemp("range_server")
    (root / "files").mkdir()
    (root / "log").touch()
    (root / "settings").write_text("{}")
    program = HERE / "range_server.py"
    process, port = started(program, root / "files", root / "settings", root / "log")
    yield RangeServer(root / "files", f"http://127.0.0.1:{port}", root / "settings", root / "log")
    process.kill()
    process.communicate()


@pytest.fixture
def http(_range_server):
    _range_server.answers()
    _range_server.forget()
    yield _range_server
    _range_server.answers()


KEY_ID, SECRET = "AKIAENERGYDATATEST", "s3cr3t-of-the-tests"


@pytest.fixture(scope="session")
def _s3_server():
    # AWS_* of the server are its own; those of a client are set by `s3`.
    process, port = started(HERE / "s3_server.py", AWS_ACCESS_KEY_ID="server")
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.communicate()


INSIDE_KEY_ID, INSIDE_SECRET = "AKIAINSIDETEST", "s3cr3t-of-the-store-inside"


@pytest.fixture(scope="session")
def _inside_server():
    process, port = started(HERE / "s3_server.py", INSIDE_KEY_ID, AWS_ACCESS_KEY_ID="server")
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.communicate()


@frozen
class InsideStore:
    """Another server of S3, for the profile `inside`; its bucket `open` is for all."""

    endpoint: str
    s3: Any  # a client of boto3 for the bucket `data`
    anonymous: Any  # one for the bucket `open`


@pytest.fixture
def inside(s3, _inside_server, monkeypatch, tmp_path):
    """A second store, beside that of the environment, with buckets of the same name."""
    boto3, config = pytest.importorskip("boto3"), pytest.importorskip("botocore.config")
    unsigned = config.Config(signature_version=pytest.importorskip("botocore").UNSIGNED)
    profile = (
        f"[inside]\naws_access_key_id={INSIDE_KEY_ID}\naws_secret_access_key={INSIDE_SECRET}\n"
    )
    (tmp_path / "credentials").write_text(profile)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    session, url = boto3.Session(profile_name="inside"), _inside_server
    store = InsideStore(
        url,
        session.client("s3", endpoint_url=url),
        boto3.client("s3", endpoint_url=url, config=unsigned),
    )
    store.s3.create_bucket(Bucket="data")
    store.anonymous.create_bucket(Bucket="open")
    return store


@pytest.fixture
def s3(_s3_server, monkeypatch):
    """A client of boto3 with the bucket `data`; obstore finds the same credentials."""
    boto3 = pytest.importorskip("boto3")
    for name, value in {
        "AWS_ENDPOINT_URL": _s3_server,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    found = boto3.client("s3")
    found.create_bucket(Bucket="data")
    return found


@pytest.fixture
def read_only(http, monkeypatch):
    """The range server as one of S3 that may not be written to; `data` is a bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", http.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    shutil.rmtree(http.folder / "data", ignore_errors=True)
    (http.folder / "data").mkdir()
    return http


def fetchers(root):
    """The processes that fetch for a cache folder."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"energy_data.remote.fetcher" in words and os.fsencode(root) in words:
            found.append(int(place.parent.name))
    return found


@contextmanager
def cache_in(folder):
    """A cache folder; its fetcher ends when it is left."""
    before = dict(os.environ)
    os.environ.update(ENERGY_DATA_CACHE=str(folder), ENERGY_DATA_CACHE_SIZE="1GB")
    yield folder
    client.client_of(str(folder)).close()
    os.environ.clear()
    os.environ.update(before)
    end = time.monotonic() + 20
    while left := fetchers(folder):
        assert time.monotonic() < end, f"a fetcher is left: {left}"
        time.sleep(0.05)
    assert not list(folder.glob("*.socket"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder that the tests of a module share."""
    with cache_in(tmp_path_factory.mktemp("cache")) as folder:
        yield folder


@pytest.fixture
def own_cache(tmp_path):
    """A cache folder of one test."""
    (tmp_path / "cache").mkdir()
    with cache_in(tmp_path / "cache") as folder:
        yield folder
