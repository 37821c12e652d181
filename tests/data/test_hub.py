"""Datasets of the Hugging Face Hub, from a Hub on this machine, through the real `datasets`."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys

import datasets
import huggingface_hub
import numpy as np
import pytest
from hub import Hub, rows
from PIL import Image

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.data.registry import open_source
from energy_data.errors import MissingExtraError, SpecError
from energy_data.nodes.leaf import leaves_of

PAGES = {
    "README.md": b"# Pages",
    "data/train-00000-of-00002.parquet": rows(0, 30),
    "data/train-00001-of-00002.parquet": rows(30, 50),
    "data/validation-00000-of-00001.parquet": rows(100, 105),
}
LANGUAGES = b"""---
configs:
- config_name: en
  data_files: en/*.parquet
- config_name: fr
  data_files: fr/*.parquet
---
"""


@pytest.fixture(scope="module")
def served():
    served = Hub()
    yield served
    served.close()


@pytest.fixture
def hub(served, tmp_path, monkeypatch):
    """A Hub with datasets, and an empty cache."""
    served.repos.clear()
    served.sent.clear()
    served.push("me/pages", PAGES)
    words = {"en/a.parquet": rows(0, 5), "fr/a.parquet": rows(5, 15)}
    served.push("me/words", {**words, "README.md": LANGUAGES})
    use(monkeypatch, served.url, tmp_path)
    return served


def use(monkeypatch, url, home, *, offline=False):
    """Let the clients use a Hub and a cache, as their environment variables do at their import."""
    ours = datasets.config, huggingface_hub.constants
    for module in ours:
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", offline)
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(home / "hub"), raising=False)
    files = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", url)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + files)
    monkeypatch.setattr(datasets.config, "HF_ENDPOINT", url)
    monkeypatch.setattr(
        datasets.config, "HUB_DATASETS_URL", f"{url}/datasets{files}", raising=False
    )
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", home / "datasets")


def png():
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, "PNG")
    return file.getvalue()


def numbers(source):
    return [sample["n"] for sample in source.read(np.arange(len(source)))]


FEATURES = datasets.Features(
    {
        "n": datasets.Value("int64"),
        "text": datasets.Value("large_string"),
        "label": datasets.ClassLabel(names=["no", "yes"]),
        "ids": datasets.List(datasets.Value("int32")),
        "turns": datasets.List(
            {"role": datasets.Value("string"), "text": datasets.Value("string")}
        ),
        "image": datasets.Image(),
    }
)


def written(how, folder):
    """A shuffled dataset, and the path that it was written to."""
    rows = [
        {
            "n": n,
            "text": f"text {n}",
            "label": n % 2,
            "ids": list(range(n % 5)),
            "turns": [{"role": "user", "text": str(n)}] * (n % 3),
            "image": {"bytes": png(), "path": None},
        }
        for n in range(50)
    ]
    dataset = datasets.Dataset.from_list(rows, features=FEATURES).shuffle(seed=1)
    dataset = dataset.filter(lambda row: row["n"] % 7 > 0)
    if how == "parquet":
        dataset.to_parquet(folder / "x.parquet", batch_size=10)
        return dataset, folder / "x.parquet"
    dataset.save_to_disk(folder / "x", num_shards=3)
    return dataset, folder / "x"


@pytest.mark.parametrize("how", ["parquet", "save_to_disk"])
def test_what_datasets_wrote_is_read_as_it_was_written(how, tmp_path):
    dataset, path = written(how, tmp_path)
    found = open_source(path).read(np.arange(len(dataset)))
    for wanted, sample in zip(dataset, found, strict=True):
        picture = np.asarray(wanted.pop("image")).transpose(2, 0, 1)
        assert np.array_equal(sample["image"], picture)
        assert sample["ids"].tolist() == wanted.pop("ids")
        assert {name: sample[name] for name in wanted} == wanted


def test_a_dataset_is_downloaded_once(hub):
    for _ in range(2):
        source = open_source("hf://datasets/me/pages", columns=["text"], subset=(40, None))
        assert [sample["text"] for sample in source.read(np.arange(10))][:2] == [
            "text 40",
            "text 41",
        ]
    assert sorted(hub.sent) == sorted(path.rpartition("/")[2] for path in PAGES)


@pytest.mark.parametrize("part", ["val", "validation"])
def test_split_parts_are_splits_of_the_hub(part, hub):
    assert numbers(open_source("hf://datasets/me/pages", split_part=part)) == list(range(100, 105))


def test_an_unknown_split_is_an_error_before_anything_is_downloaded(hub):
    with pytest.raises(SpecError, match="no split 'test', found train or validation"):
        open_source("hf://datasets/me/pages", split_part="test")
    assert hub.sent == ["README.md"]


def test_a_configuration_is_named_by_a_key(hub):
    assert numbers(open_source("hf://datasets/me/words", config_name="fr")) == list(range(5, 15))
    for keys, problem in [({}, "pick one among .*'en', 'fr'"), ({"config_name": "de"}, "'de' not")]:
        with pytest.raises(SpecError, match=rf"hf://datasets/me/words: it cannot .*{problem}"):
            open_source("hf://datasets/me/words", **keys)


def test_a_revision_has_its_own_samples_and_fingerprint(hub):
    commit = hub.push(
        "me/pages", {**PAGES, "data/train-00001-of-00002.parquet": rows(30, 60)}, "v2"
    )
    main, *pinned = (open_source(f"hf://datasets/me/pages{at}") for at in ("", "@v2", f"@{commit}"))
    assert [len(source) for source in (main, *pinned)] == [50, 60, 60]
    assert main.fingerprint != pinned[0].fingerprint == pinned[1].fingerprint
    with pytest.raises(SpecError, match="Revision 'v3' doesn't exist"):
        open_source("hf://datasets/me/pages@v3")


def test_many_files_of_the_cache_are_one_dataset(hub, monkeypatch):
    monkeypatch.setattr(datasets.config, "MAX_SHARD_SIZE", 100)
    source = open_source("hf://datasets/me/pages")
    assert len(source.part.shards) > 1
    assert numbers(source) == list(range(50))


def test_offline_the_cache_has_the_revision_that_is_asked_for(hub, tmp_path, monkeypatch):
    first = hub.push("me/pages", PAGES)
    second = {**PAGES, "data/train-00001-of-00002.parquet": rows(30, 60)}
    for revision in ("main", "v2"):
        hub.push("me/pages", PAGES if revision == "main" else second, revision)
        open_source(f"hf://datasets/me/pages@{revision}")
    use(monkeypatch, hub.url, tmp_path, offline=True)
    lengths = {"": 50, "@main": 50, f"@{first}": 50, "@v2": 60}
    for revision, length in lengths.items():
        assert len(open_source(f"hf://datasets/me/pages{revision}")) == length
    for revision in ("v3", "0" * 40):
        with pytest.raises(SpecError, match=r"cannot be reached, and .* not in the cache: of me/p"):
            open_source(f"hf://datasets/me/pages@{revision}")
    with pytest.raises(
        SpecError, match=r"not in the cache: Couldn't reach 'me/words'.*same HF_HOME"
    ):
        open_source("hf://datasets/me/words")


def test_workers_ask_no_hub(hub, tmp_path, monkeypatch):
    packed = pickle.dumps(open_source("hf://datasets/me/pages"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert numbers(pickle.loads(packed)) == list(range(50))
    with pytest.raises(MissingExtraError, match=r"energy_data\[hub\]"):
        open_source("hf://datasets/me/pages")


def test_loading_scripts_are_refused(hub, tmp_path):
    ran = tmp_path / "ran"
    hub.push("me/script", {"script.py": f"open({str(ran)!r}, 'w')".encode(), "README.md": b"# S"})
    with pytest.raises(SpecError, match="has a loading script, which is code, and is never run"):
        open_source("hf://datasets/me/script")
    assert not ran.exists()


def test_pictures_that_are_files_of_their_own_are_bad_samples(hub):
    hub.push("me/photos", {"train/a.png": png(), "train/b.png": png()})
    found = open_source("hf://datasets/me/photos").read(np.arange(2))
    assert all("its bytes are not in the table, only its path" in str(one) for one in found)


@pytest.mark.parametrize("path", ["me/pages", "datasets/pages", "datasets/me/pages/data/x.parquet"])
def test_a_name_is_of_a_dataset_and_its_owner(path):
    with pytest.raises(SpecError, match=f"hf://{path}: it names no dataset of the Hub. Write hf:"):
        open_source(f"hf://{path}")


def test_a_metadataset_names_datasets_of_the_hub(hub, tmp_path):
    leaves = [{"path": "hf://datasets/me/words", "config_name": name} for name in ("en", "fr")]
    (tmp_path / "inner.yaml").write_text(json.dumps({"splits": {"train": {"concat": leaves}}}))
    (tmp_path / "run.yaml").write_text("splits: {train: {path: ./inner.yaml}}")
    dataset = get_train_dataset(
        tmp_path / "run.yaml", batch_size=5, repeat=False, worker_config=WorkerConfig(lanes=1)
    )
    assert sorted(n for batch in get_loader(dataset) for n in batch["n"].tolist()) == [*range(15)]
    ids = [leaf.id for leaf in leaves_of(dataset.spec)]
    assert ids == [f"hf://datasets/me/words:train;config_name={name}" for name in ("en", "fr")]


@pytest.mark.slow
def test_ranks_that_start_together_download_once(served, hub, tmp_path):
    code = """if True:
        from energy_data.data.registry import open_source
        print(len(open_source("hf://datasets/me/pages")))
    """
    env = {**os.environ, "HF_ENDPOINT": served.url, "HF_HOME": str(tmp_path / "home")}
    ranks = [
        subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert [rank.communicate()[0] for rank in ranks] == [b"50\n"] * 3
    assert sorted(hub.sent) == sorted(path.rpartition("/")[2] for path in PAGES)


def test_the_data_beside_index_files_is_loaded_by_its_pattern(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    assert len(open_source(tmp_path / "x.jsonl")) == 2
    assert (tmp_path / "x.jsonl.idx").exists()
    folder, cache = str(tmp_path), str(tmp_path / "cache")
    with pytest.raises(datasets.exceptions.DatasetGenerationError):
        datasets.load_dataset(folder, cache_dir=cache)
    loaded = datasets.load_dataset(folder, data_files="*.jsonl", cache_dir=cache)
    assert loaded["train"]["n"][:] == [1, 2]
