"""What is killed, refused or left by a run over an object store."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from loading.workers import processes
from obstore.exceptions import PermissionDeniedError

from energy_data.cli.main import main
from energy_data.data.registry import open_source
from energy_data.errors import SpecError
from energy_data.remote import object_store
from energy_data.remote.fetcher import Fetcher

from .conftest import fetchers
from .test_sources import upload
from .test_streams import expected, keys, loader, local, served, stream

__all__ = ["expected", "local", "served"]  # fixtures

TRAINER = """
import sys
from tests.remote.test_streams import loader

if __name__ == "__main__":
    with loader(sys.argv[1], workers=1) as one:
        for number, _ in enumerate(one):
            sys.stdout.write(f"{number}\\n")
            sys.stdout.flush()
"""

REFUSED = (
    "Server returned non-2xx status code: 400 Bad Request: <?xml version='1.0'?><Error><Code>"
    "ExpiredToken</Code><Message>The token has expired.</Message><Token-0>SECRET</Token-0>"
    "<AWSAccessKeyId>SECRET</AWSAccessKeyId></Error>\n\nDebug source: SECRET"
)


def test_a_worker_that_is_killed_changes_no_batch(http, own_cache, served, expected):
    with loader(served, workers=2) as one:
        batches, found = iter(one), []
        for number in range(120):
            if number in (20, 60):
                os.kill(processes(one)[-1], signal.SIGKILL)
                assert len(fetchers(own_cache)) == 1  # of the trainer and of both workers
            found += keys([next(batches)])
    assert found == expected


def test_the_fetcher_of_a_trainer_that_is_killed_ends_and_the_next_run_is_the_same(
    http, own_cache, served, expected, tmp_path
):
    (tmp_path / "trainer.py").write_text(TRAINER)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "trainer.py"), served], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": f"{root}:{root / 'tests'}"},
    ) as trainer:  # fmt: skip
        assert trainer.stdout is not None
        for _ in range(10):
            trainer.stdout.readline()
        trainer.kill()
    end = time.monotonic() + 20
    while fetchers(own_cache):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert stream(served, 120) == expected


@pytest.mark.parametrize("command", ["info", "preview", "check", "inspect"])
def test_a_command_takes_a_url_and_shows_no_path_of_the_cache(command, s3, cache, local, capsys):
    upload(s3, local.parent, "commands")
    main([command, "s3://data/commands/meta.yaml"], standalone_mode=False)
    shown = "".join(capsys.readouterr())
    assert shown
    assert "energy_data.mirror" not in shown


def test_what_a_store_says_is_shown_without_the_credentials_that_it_repeats():
    assert object_store._cleaned(REFUSED).endswith("ExpiredToken The token has expired.")
    assert object_store._is_refusal(OSError(REFUSED))


def test_credentials_that_are_refused_are_found_again():
    bucket, answers = object_store.Bucket("s3://data", {}), iter([PermissionDeniedError("403")])
    bucket._store = before = object()

    async def attempt():
        for error in answers:
            raise error
        return bucket._store

    assert asyncio.run(bucket._retried(attempt, "s3://data/x")) is not before


def test_a_limit_of_retries_that_is_no_number_is_an_error_with_its_name(
    http, own_cache, monkeypatch
):
    monkeypatch.setenv("ENERGY_DATA_RETRY_SECONDS", "5min")
    with pytest.raises(SpecError, match="ENERGY_DATA_RETRY_SECONDS='5min' is no number"):
        open_source(f"{http.url}/x.jsonl")


def test_credentials_of_another_run_are_not_mixed_with_those_before(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the first")
    Fetcher(1).use({"AWS_ACCESS_KEY_ID": "second"})
    assert os.environ["AWS_ACCESS_KEY_ID"] == "second"
    assert "AWS_SESSION_TOKEN" not in os.environ
