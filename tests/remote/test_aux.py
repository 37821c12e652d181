"""Files for cookers in object stores: by key out of tars, by path, and ranges of them."""

from __future__ import annotations

import pickle
from itertools import islice

import pytest

from energy_data import TaskEncoder, WorkerConfig, get_loader, get_train_dataset
from energy_data.data.files.stores import ByteRangeStore, SystemFileStore
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_store
from energy_data.errors import StructureError
from energy_data.tasks.functions import Cooker, basic_sample_keys, cooker

from . import data
from .test_sources import upload


@cooker
def with_files(sample, images, notes, ranges):
    number = int(sample["__key__"].rpartition("/")[2])
    return {
        **basic_sample_keys(sample),
        "image": images.get(f"{number:06d}.txt", sample).decode(),
        "note": notes.get(f"{number % 5}.txt", sample).decode(),
        "range": ranges.get(f"0.txt#bytes={number % 5}:2", sample).decode(),
    }


class Encoder(TaskEncoder):
    decoder = None
    cookers = (Cooker(with_files),)


def test_cookers_in_workers_get_files_out_of_stores(s3, inside, cache, tmp_path):
    data.tars(tmp_path / "images")
    prepare(tmp_path / "images", sqlite=True, workers=1)
    upload(s3, tmp_path / "images", "images")
    for number in range(5):
        body = f"note {number}".encode()
        inside.s3.put_object(Bucket="data", Key=f"notes/{number}.txt", Body=body)
    meta = {
        "storage": {"s3://data/notes": {"endpoint": inside.endpoint, "profile": "inside"}},
        "splits": {
            "train": {
                "path": "s3://data/images",
                "aux": {
                    "images": "s3://data/images",
                    "notes": "filesystem+s3://data/notes",
                    "ranges": "byterange+s3://data/notes",
                },
            }
        },
    }
    run = WorkerConfig(0, 1, 1, lanes=2)
    dataset = get_train_dataset(meta, batch_size=4, task_encoder=Encoder(), worker_config=run)
    with get_loader(dataset) as loader:
        for batch in islice(loader, 5):
            for key, image, note, part in zip(
                batch["__key__"], batch["image"], batch["note"], batch["range"], strict=True
            ):
                number = int(key.split("/")[-1])
                assert image == f"text {number} " * 40
                assert note == f"note {number % 5}"
                assert part == "note 0"[number % 5 :][:2]


def test_a_folder_at_a_url_is_read_by_path_and_not_listed(http, cache):
    (http.folder / "files" / "deep").mkdir(parents=True, exist_ok=True)
    (http.folder / "files" / "deep" / "a.json").write_bytes(b"[1, 2, 3]")
    store = pickle.loads(pickle.dumps(SystemFileStore(f"{http.url}/files")))
    for _ in range(2):
        assert store["deep/a.json"][0] == b"[1, 2, 3]"
    assert store["deep/a.json"][1].dataset == f"{http.url}/files"
    assert len(http.requests("HEAD")) == len(http.requests("GET")) == 1
    with pytest.raises(FileNotFoundError, match=r"files/none: there is no such object"):
        store["none"]
    with pytest.raises(ValueError, match="leads out of the folder"):
        store["../x.jsonl"]


def test_a_range_of_an_object_is_fetched_alone_and_one_beyond_its_end_is_an_error(http, cache):
    (http.folder / "long.bin").write_bytes(bytes(range(256)) * 4096)
    store = ByteRangeStore(http.url)
    assert store["long.bin#bytes=258:4"][0] == bytes([2, 3, 4, 5])
    assert [line["range"] for line in http.requests()] == ["bytes=258-261"]
    with pytest.raises(StructureError, match=r"long\.bin.*the object has 1048576"):
        store.read_range("long.bin", 1 << 20, 1)


def test_media_of_a_folder_without_facts_are_an_error_that_says_so(http, cache):
    with pytest.raises(Exception, match="prepare-media"):
        SystemFileStore(http.url).get_media_metadata("x.png")


def test_a_store_of_tars_behind_http_has_its_files(http, cache):
    data.tars(http.folder / "keyed", count=20)
    prepare(http.folder / "keyed", sqlite=True, workers=1)
    assert open_store(f"{http.url}/keyed")["000007.txt"][0] == b"text 7 " * 40
