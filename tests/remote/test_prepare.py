"""A dataset in a store is prepared in place, by what reads each shard once."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from energy_data.cli.main import main
from energy_data.data import indexing
from energy_data.data.registry import open_source
from energy_data.errors import ReadOnlyError, SpecError

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


def test_parts_that_machines_index_are_finished_on_another(s3, local, tmp_path):
    upload(s3, local, "parts")
    of_machines = {"a": [1, 1], "b": [0]}
    for machine, parts in of_machines.items():
        (tmp_path / machine).mkdir()
        with cache_in(tmp_path / machine):
            for part in parts:
                shown = energy_data("prepare", "s3://data/parts", "--part", part, "--of", 2)
            assert ("was indexed before" in shown) == (len(parts) > 1)
            if machine == "b":
                energy_data("prepare", "s3://data/parts", "--finish", "--non-interactive")
    energy_data("prepare", local, "--non-interactive")
    assert objects(s3, "parts") == files(local)


def test_a_part_that_is_missing_in_the_bucket_is_named(s3, own_cache, local):
    upload(s3, local, "missing")
    energy_data("prepare", "s3://data/missing", "--part", 0, "--of", 2)
    code, shown = run("prepare", "s3://data/missing", "--finish", "--non-interactive")
    assert code == 1
    assert "part 1 of 2: not indexed. Run `energy-data prepare s3://data/missing" in shown


def test_a_prepare_that_is_killed_leaves_it_unprepared_and_the_next_one_reads_on(
    s3, own_cache, tmp_path
):
    data.tars(tmp_path / "tars", count=30, per_shard=2)
    upload(s3, tmp_path / "tars", "killed")
    words = [sys.executable, "-m", "energy_data.cli.main", "prepare", "s3://data/killed"]
    with subprocess.Popen([*words, "--non-interactive"]) as process:
        while len(parts(s3)) < 3:
            assert process.poll() is None
        process.kill()
    left, done = written(s3), len(parts(s3))
    assert done < 15
    assert not any("/.nv-meta/" in key for key in left)
    energy_data("prepare", "s3://data/killed", "--non-interactive")
    again = written(s3)
    kept = [key for key in left if key.endswith(".idx") and again[key] == left[key]]
    assert len(kept) >= done
    energy_data("prepare", tmp_path / "tars", "--non-interactive")
    assert objects(s3, "killed") == files(tmp_path / "tars")


def parts(s3):
    return [key for key in written(s3) if key.endswith(".part")]


def written(s3):
    """When each object was written."""
    found = s3.list_objects_v2(Bucket="data", Prefix="killed/")["Contents"]
    return {one["Key"]: one["LastModified"] for one in found}


@pytest.mark.parametrize("command", ["check", "info", "preview", "inspect"])
def test_a_command_shows_what_was_prepared_in_a_bucket(command, s3, own_cache, local):
    upload(s3, local, command)
    energy_data("prepare", f"s3://data/{command}", "--split-ratio", "1,1", "--non-interactive")
    words = ["--split", "val"] if command == "inspect" else []
    assert f"s3://data/{command}" in energy_data(command, f"s3://data/{command}", *words)


def test_a_bucket_is_prepared_again_with_the_split_that_it_has(s3, own_cache, local):
    upload(s3, local, "again")
    url = "s3://data/again"
    energy_data("prepare", url, "--split-ratio", "1,1", "--non-interactive")
    code, shown = run("prepare", url, "--non-interactive")
    assert code == 1
    assert f"{url}: it is prepared. Use `force`" in shown
    energy_data("prepare", url, "--force", "--no-sqlite", "--non-interactive")
    energy_data("prepare", local, "--split-ratio", "1,1", "--no-sqlite", "--non-interactive")
    assert objects(s3, "again") == files(local)


def test_an_index_that_a_run_has_kept_is_written_with_the_others(s3, own_cache, local):
    upload(s3, local, "kept")
    open_source("s3://data/kept")
    energy_data("prepare", "s3://data/kept", "--non-interactive")
    assert set(files(local)) <= set(objects(s3, "kept"))
    assert "00100.tar.idx" in objects(s3, "kept")


def test_a_preparation_that_was_cut_while_it_was_written_is_an_error_and_written_again(
    s3, own_cache, local
):
    upload(s3, local, "cut")
    energy_data("prepare", "s3://data/cut", "--non-interactive")
    s3.delete_object(Bucket="data", Key="cut/.nv-meta/.info.json")
    with pytest.raises(SpecError, match="s3://data/cut: its preparation is incomplete"):
        open_source("s3://data/cut")
    energy_data("prepare", "s3://data/cut", "--non-interactive")
    energy_data("prepare", local, "--non-interactive")
    assert objects(s3, "cut") == files(local)


def test_parts_that_may_not_be_removed_are_a_warning(s3, own_cache, local, monkeypatch, caplog):
    def refuse(path):
        raise ReadOnlyError("403")

    upload(s3, local, "left")
    monkeypatch.setattr(indexing, "remove_published", refuse)
    assert "400 samples in 4 shards" in energy_data("prepare", "s3://data/left")
    assert "s3://data/left/.nv-meta.parts is left, as it may not be removed: 403" in caplog.text
    assert len(open_source("s3://data/left")) == 400


def test_a_single_file_in_a_bucket_gets_its_index(s3, own_cache, tmp_path):
    data.jsonl(tmp_path / "x.jsonl", size=9000)
    s3.upload_file(str(tmp_path / "x.jsonl"), "data", "file/x.jsonl")
    energy_data("prepare", "s3://data/file/x.jsonl")
    energy_data("prepare", tmp_path / "x.jsonl")
    index = (tmp_path / "x.jsonl.idx").read_bytes()
    assert objects(s3, "file")["x.jsonl.idx"] == index


def test_the_index_of_a_store_that_is_read_only_is_kept_in_the_cache(http, own_cache):
    data.jsonl(http.folder / "kept.jsonl", size=9000)
    url = f"{http.url}/kept.jsonl"
    shown = energy_data("prepare", url)
    assert "HTTP and msc:// are not written to" in shown
    assert f"Their indices are in the cache {own_cache}" in shown
    assert not (http.folder / "kept.jsonl.idx").exists()
    http.forget()
    assert len(open_source(url)) == data.COUNT
    assert http.requests() == []


def test_a_shard_is_read_once_in_large_pieces(http, own_cache):
    data.tars(http.folder / "once", count=4000, per_shard=4000)
    tar = http.folder / "once" / "00000.tar"
    energy_data("prepare", f"{http.url}/once/00000.tar")
    ranges = [one["range"].removeprefix("bytes=").split("-") for one in http.requests()]
    read = sum(int(end) + 1 - int(begin) for begin, end in ranges)
    assert read == tar.stat().st_size > 8_000_000
    assert len(ranges) <= 5


@pytest.fixture
def tokenizer(tmp_path):
    """The options of prepare-tokens for one that knows no words."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"x": 0, "[UNK]": 1}, unk_token="[UNK]")
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer.json"))
    return ["--tokenizer", tmp_path / "tokenizer.json", "--field", "json.text"]


def test_tokens_are_counted_in_a_bucket(s3, own_cache, tmp_path, tokenizer):
    data.jsonl(tmp_path / "x.jsonl")
    s3.upload_file(str(tmp_path / "x.jsonl"), "data", "tokens/x.jsonl")
    energy_data("prepare-tokens", "s3://data/tokens/x.jsonl", *tokenizer)
    energy_data("prepare-tokens", tmp_path / "x.jsonl", *tokenizer)
    name = "x.jsonl.tokens.idx"
    assert objects(s3, "tokens")[name] == (tmp_path / name).read_bytes()
    found = open_source("s3://data/tokens/x.jsonl").total_cost("tokens")
    assert found == open_source(tmp_path / "x.jsonl").total_cost("tokens") > 0


def test_tokens_of_a_store_that_is_read_only_are_kept_in_the_cache(http, own_cache, tokenizer):
    data.jsonl(http.folder / "counted.jsonl")
    url = f"{http.url}/counted.jsonl"
    assert "as the store is read-only" in energy_data("prepare-tokens", url, *tokenizer)
    total = open_source(url).total_cost("tokens")
    assert total is not None
    assert total > 0


def test_the_joins_of_a_metadataset_in_a_bucket_are_computed(s3, own_cache, local):
    energy_data("prepare", local, "--non-interactive")
    text = "splits: {train: {join: [{path: tars}, {path: tars}]}}"
    (local.parent / "joined.yaml").write_text(text)
    upload(s3, local, "joins/tars")
    s3.upload_file(str(local.parent / "joined.yaml"), "data", "joins/joined.yaml")
    assert "400 samples" in energy_data("prepare", "s3://data/joins/joined.yaml")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["prepare", "--fix-duplicates"], "`fix_duplicates` .* rewrites shards, .* Copy the"),
        (["prepare", "--media-metadata-by-header"], "for folders of tars on a disk"),
        (["prepare-media", "--media-metadata-by-header"], "Name a folder on a disk"),
    ],
)
def test_what_needs_a_disk_says_so(words, problem, s3, own_cache, local):
    upload(s3, local, "disk")
    code, shown = run(words[0], "s3://data/disk", *words[1:])
    assert code
    assert re.search(problem, " ".join(shown.split()))
