"""Runs over stores in stages, side by side, of mixed places, and of objects that are bad."""

from __future__ import annotations

from itertools import islice

import pytest

from energy_data.data.registry import open_source
from energy_data.errors import SpecError, StructureError

from . import data
from .test_streams import expected, keys, loader, local, served, stream

__all__ = ["expected", "local", "served"]  # fixtures

STAGED = """
splits:
  train:
    staged:
      unit: microbatches
      stages:
        - {name: first, end: 40, path: x.jsonl}
        - {name: then, blend: [{path: x.jsonl, weight: 1}, {path: x.parquet, weight: 1}]}
"""

MIXED = """
splits:
  train:
    blend:
      - {path: PLACEx.jsonl, id: lines, weight: 2}
      - {path: tars, weight: 1}
"""


def test_stages_over_a_store_go_on_after_a_restore_as_over_files(http, own_cache, local, served):
    for folder in (local.parent, http.folder):
        (folder / "staged.yaml").write_text(STAGED)
    whole = stream(local.parent / "staged.yaml", 80)
    url = f"{http.url}/staged.yaml"
    with loader(url) as one:
        found = keys(islice(one, 36))
        state = one.state_dict()
    ranks = []
    for rank in range(2):
        with loader(url, rank=rank, ranks=2, workers=1) as again:
            again.load_state_dict(state)
            ranks.append(keys(islice(again, 22)))
    assert found + [batch for both in zip(*ranks, strict=True) for batch in both] == whole


def test_two_runs_at_once_share_a_cache(http, own_cache, served, expected):
    with loader(served, workers=1) as one, loader(served, workers=1) as other:
        pairs = list(islice(zip(one, other, strict=True), 120))
    for found in zip(*pairs, strict=True):
        assert keys(found) == expected


def test_a_metadataset_on_a_disk_has_datasets_on_the_disk_and_in_stores(
    http, own_cache, local, served
):
    found = []
    for place in ("", f"{http.url}/"):
        file = local.with_name("mixed.yaml")
        file.write_text(MIXED.replace("PLACE", place))
        found.append(stream(file, 40))
    assert found[0] == found[1]


def test_a_body_that_comes_slowly_is_read(http, own_cache, served, expected):
    http.answers(slow=0.05)
    assert stream(served, 20) == expected[:20]


def test_an_object_that_is_deleted_in_mid_run_is_an_error_with_its_places(
    http, own_cache, tmp_path
):
    data.jsonl(http.folder / "deleted.jsonl", count=20_000)
    open_source(http.folder / "deleted.jsonl")  # makes its index
    url = f"{http.url}/deleted.jsonl"
    meta = tmp_path / "meta.yaml"
    meta.write_text(f"splits: {{train: {{path: '{url}', id: pages}}}}")
    with loader(meta) as one:
        batches = iter(one)
        next(batches)
        (http.folder / "deleted.jsonl").unlink()
        with pytest.raises(StructureError, match=r"deleted\.jsonl: there is no such object") as got:
            list(islice(batches, 2500))
    assert got.value.dataset == url
    assert got.value.__notes__ == [f"{meta}:1:24: splits.train: leaf 'pages'"]


@pytest.mark.parametrize("key", ["names/../../outside.jsonl", f"names/{'x' * 256}.jsonl"])
def test_a_listed_name_that_is_no_path_in_its_folder_is_an_error(key, s3, own_cache):
    s3.put_object(Bucket="data", Key=key, Body=b"{}\n")
    try:
        with pytest.raises(SpecError, match=r"is no path of a file"):
            open_source("s3://data/names")
    finally:
        s3.delete_object(Bucket="data", Key=key)
    assert not list(own_cache.rglob("*.jsonl"))
