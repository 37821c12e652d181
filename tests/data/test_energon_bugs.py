"""Bugs of files that Energon had and mended, by the number it gave them; none of them is ours."""

from __future__ import annotations

import os
import sqlite3
import threading

import numpy as np
import pytest
import yaml
from tars import dataset, sample_files, write_tar

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.data.prepare import prepare
from energy_data.data.registry import open_source
from energy_data.data.tar.file_store import WebdatasetFileStore
from energy_data.errors import StructureError


def keys_in_database(folder):
    database = sqlite3.connect(folder / ".nv-meta" / "index.sqlite")
    keys = [row[0] for row in database.execute("SELECT sample_key FROM samples")]
    database.close()
    return keys


def files(*numbers):
    return [part for number in numbers for part in sample_files(number)]


def test_7cdfb8c_preparing_again_leaves_nothing_of_the_old_index(tmp_path):
    write_tar(tmp_path / "a.tar", files(0, 1))
    write_tar(tmp_path / "b.tar", files(2, 3))
    prepare(tmp_path, sqlite=True, workers=1)
    (tmp_path / "b.tar").unlink()
    write_tar(tmp_path / "a.tar", files(1))
    for again in (
        lambda: prepare(tmp_path, sqlite=True, force=True, workers=1),
        lambda: prepare(tmp_path, index_only=True, workers=1),
    ):
        again()
        assert keys_in_database(tmp_path) == ["d/00001"]


def test_173_index_and_data_in_a_read_only_folder_are_read(tmp_path):
    folder = dataset(tmp_path / "a", shards=1, samples=3)
    prepare(folder, sqlite=True, force=True, workers=1)
    for path in (folder / ".nv-meta", folder):
        path.chmod(0o555)
    try:
        assert WebdatasetFileStore(folder)["d/00001.json"][0] == b'{"number": 1}'
        assert len(open_source(folder).read(np.arange(3))) == 3
    finally:
        for path in (folder, folder / ".nv-meta"):
            path.chmod(0o755)


def test_173_an_index_is_read_while_another_process_writes_a_new_one(tmp_path):
    folder = dataset(tmp_path / "a", shards=2, samples=50)
    prepare(folder, sqlite=True, force=True, workers=1)
    failures = []

    def read():
        for number in range(60):
            try:
                WebdatasetFileStore(folder)[f"d/{number:05d}.json"]
            except Exception as error:  # noqa: BLE001 - whatever it is
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(5):
        prepare(folder, sqlite=True, force=True, workers=1)
    reader.join()
    assert not failures


def test_152_other_split_and_dataset_files_count_in_metadatasets(tmp_path):
    folder = dataset(tmp_path / "a", shards=3, samples=4)
    split = {"split_parts": {"train": ["shard-002.tar"]}}
    (folder / ".nv-meta" / "mine.yaml").write_text(yaml.safe_dump(split))
    one = {"path": "a", "split_config": "mine.yaml"}
    text = {"splits": {"train": {"blend_epochized": [{**one, "repetitions": 1}]}}}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(text))
    assert sorted(numbers(tmp_path / "m.yaml")) == [8, 9, 10, 11]


def test_107_every_slice_of_uneven_shards_is_in_range(tmp_path):
    for shard, count in enumerate((1, 7, 2, 13)):
        write_tar(tmp_path / f"{shard}.tar", files(*range(shard * 100, shard * 100 + count)))
    prepare(tmp_path, workers=1)
    source = open_source(tmp_path)
    for start in range(23):
        part = open_source(tmp_path, subset=(start, None))
        both = source.read(np.arange(start, 23)), part.read(np.arange(23 - start))
        assert [one["__key__"] for one in both[0]] == [one["__key__"] for one in both[1]]
    with pytest.raises(IndexError):
        source.read(np.array([23]))


def test_a_shard_that_cannot_be_read_is_no_smaller_dataset(tmp_path):
    """Energon logs such a shard, and goes on without it or fails at a bare assert."""
    write_tar(tmp_path / "a.tar", files(0))
    path = write_tar(tmp_path / "b.tar", files(1))
    os.truncate(path, 700)
    with pytest.raises(StructureError, match=r"b\.tar"):
        prepare(tmp_path, workers=1)
    assert not (tmp_path / ".nv-meta").exists()


def numbers(path, lanes=4):
    config = WorkerConfig(lanes=lanes)
    loader = get_loader(get_train_dataset(path, batch_size=2, repeat=False, worker_config=config))
    return [said["number"] for batch in loader for said in batch["json"]]
