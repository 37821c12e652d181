"""Index files of WIDS: the tars they list are one dataset."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from tars import write_tar

from energy_data.cli.main import main
from energy_data.data.registry import open_source
from energy_data.errors import SpecError


def index(folder, *urls, **facts):
    """Write an index, and the tars that it lists by name, with a sample each."""
    content = {"__kind__": "wids-shard-index-v1", "wids_version": 1}
    shards = [{"url": str(url), "nsamples": 1} for url in urls]
    path = folder / "data.json"
    path.write_text(json.dumps(content | {"shardlist": shards} | facts))
    return path


def tar(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tar(path, [(f"{text}.txt", text.encode())])
    return path


def texts(path, **options):
    source = open_source(path, **options)
    return [sample["txt"] for sample in source.read(np.arange(len(source)))]


def test_its_tars_are_a_dataset_in_the_order_of_the_index(tmp_path, monkeypatch):
    for name in ("a", "b", "c"):
        tar(tmp_path / "tars" / f"{name}.tar", name)
    other = tar(tmp_path / "d.tar", "d")
    path = index(tmp_path / "tars", "b.tar", "./a.tar", "../d.tar", f"file://{other}", "file:c.tar")
    assert texts(path) == ["b", "a", "d", "d", "c"]
    assert texts(path, subset=(1, 3)) == ["a", "d"]
    monkeypatch.chdir(tmp_path / "tars")
    assert texts("data.json") == ["b", "a", "d", "d", "c"]


def test_it_is_a_leaf_of_a_metadataset(tmp_path):
    tar(tmp_path / "a.tar", "a")
    index(tmp_path, "a.tar")
    (tmp_path / "x.yaml").write_text("splits: {train: {path: data.json}}")
    found = CliRunner().invoke(main, ["check", str(tmp_path / "x.yaml")])
    assert found.exit_code == 0, found.output
    assert "1 sample" in found.output


@pytest.mark.parametrize("url", ["s3://b/x.tar", "https://x.org/x.tar", "pipe:cat x.tar"])
def test_remote_tars_are_refused_with_what_to_do(url, tmp_path):
    with pytest.raises(SpecError, match=r"which is not a local file.*copy the tars"):
        open_source(index(tmp_path, url))


WRONG = {
    "another kind": ({"__kind__": "x"}, "it is no index of WIDS"),
    "another version": ({"wids_version": 2}, "of version 2 of WIDS. Only 1"),
    "datasets": ({"datasets": [{"source_url": "x"}]}, "in a `concat` or `blend`"),
    "no list": ({"shardlist": {"url": "x"}}, "is no list of shards"),
    "no shards": ({"shardlist": []}, "is no list of shards"),
    "no mapping": ({"shardlist": ["x.tar"]}, "is no list of shards"),
    "no text": ({"shardlist": [{"url": 7}]}, "the url 7, which is no text"),
    "a missing tar": ({"shardlist": [{"url": "x.tar"}]}, "1 of its 1 files are missing"),
    "a compressed tar": ({"shardlist": [{"url": "x.tar.gz"}]}, "files are missing"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_index_is_an_error_that_says_why(case, tmp_path):
    facts, problem = WRONG[case]
    with pytest.raises(SpecError, match=rf"data\.json: .*{problem}"):
        open_source(index(tmp_path, **facts))


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]"])
def test_a_json_file_of_another_kind_is_an_error(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SpecError, match=r"x.json: it is no (JSON|index of WIDS)"):
        open_source(tmp_path / "x.json")
    with pytest.raises(SpecError, match=r"gone.json: it cannot be read"):
        open_source(tmp_path / "gone.json")
