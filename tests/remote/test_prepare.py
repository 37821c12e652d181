"""A dataset in a store is prepared in place, by what reads each shard once."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from energy_data.cli.main import main
from energy_data.data.registry import open_source

from . import data
from .conftest import cache_in
from .test_sources import check_equal, upload


def run(*words):
    done = CliRunner().invoke(main, [str(word) for word in words])
    return done.exit_code, done.output


def energy_data(*words):
    code, shown = run(*words)
    assert code == 0, shown
    assert "energy_data.mirror" not in shown
    return shown


def objects(s3, prefix):
    """All objects in a folder of the bucket but index.uuid, which is never the same."""
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket="data", Prefix=f"{prefix}/")
    keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
    return {
        key.removeprefix(f"{prefix}/"): s3.get_object(Bucket="data", Key=key)["Body"].read()
        for key in keys
        if not key.endswith("index.uuid")
    }


def files(folder):
    found = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {str(n): p.read_bytes() for n, p in found.items() if p.name != "index.uuid"}


@pytest.fixture
def local(tmp_path):
    data.tars(tmp_path / "tars")
    return tmp_path / "tars"


OPTIONS = {
    "none": [],
    "split": ["--split-ratio", "2,1,1", "--sample-type", "TextSample"],
    "no sqlite": ["--no-sqlite", "--exclude", "00100"],
}


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_prepared_in_a_bucket_is_byte_for_byte_that_of_a_disk(name, s3, own_cache, local):
    prefix = f"prepared-{name}"
    upload(s3, local, prefix)
    shown = energy_data("prepare", f"s3://data/{prefix}", "--non-interactive", *OPTIONS[name])
    energy_data("prepare", local, "--non-interactive", *OPTIONS[name])
    assert objects(s3, prefix) == files(local)
    assert f"s3://data/{prefix}: " in shown
    check_equal(open_source(local), open_source(f"s3://data/{prefix}"))
