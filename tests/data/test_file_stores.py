"""Files by key: what cookers get as `aux` and `primary`."""

from __future__ import annotations

import pickle
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context

import pytest
from tars import sample_files, write_tar

from energy_data.core.sample import SampleSource
from energy_data.data.files.stores import DecodeFileStore, PrimaryFileStore, SystemFileStore
from energy_data.data.prepare import prepare
from energy_data.data.tar.file_store import WebdatasetFileStore
from energy_data.errors import SpecError, StructureError

FILES = {name: data for number in range(12) for name, data in sample_files(number)}
FILES |= {f"{'long' * 60}.txt": b"behind an extended header", "a.b.c.txt": b"", "d/grüße.png": b"x"}


@pytest.fixture
def store(tmp_path):
    files = list(FILES.items())
    write_tar(tmp_path / "in" / "a.tar", files[:18], kind=1)  # GNU
    write_tar(tmp_path / "in" / "b.tar", files[18:], kind=2)  # pax
    prepare(tmp_path / "in", sqlite=True, workers=1)
    return WebdatasetFileStore(tmp_path / "in")


def test_every_file_is_found_by_its_name(store):
    assert {name: store[name][0] for name in FILES} == FILES
    assert {name: size for name, size, _ in store.list_all_sample_parts()} == {
        name: len(data) for name, data in FILES.items()
    }
    assert len(store) == 15
    assert [name for name, _, _ in store.list_sample_parts("d/00003")] == ["txt", "json", "bin"]


def test_a_sample_notes_where_its_files_are_from(store):
    sample = {"__key__": "x"}
    assert store.get("d/00000.txt", sample) == FILES["d/00000.txt"]
    store.get("a.b.c.txt", sample)
    root = store.get_path()
    assert sample["__sources__"] == (
        SampleSource(root, "a.tar", "d/00000.txt"),
        SampleSource(root, "b.tar", "a.b.c.txt"),
    )


def test_an_index_of_old_that_lists_no_parts_says_what_to_do(store, tmp_path):
    with closing(sqlite3.connect(tmp_path / "in" / ".nv-meta" / "index.sqlite")) as database:
        database.execute("DROP TABLE sample_parts")
    old = WebdatasetFileStore(tmp_path / "in")
    with pytest.raises(StructureError, match=r"sample_parts.*prepare --tar-index-only"):
        old["d/00000.txt"]


@pytest.mark.parametrize(
    "key", ["d/00099.txt", "d/00001.png", "d/00001", "", "../in/a.tar", "/etc/passwd"]
)
def test_what_is_not_in_the_tars_is_a_key_error(store, key):
    with pytest.raises(KeyError, match="there is no file"):
        store[key]


def test_an_index_that_does_not_fit_the_tar_is_an_error_and_not_garbage(store, tmp_path):
    write_tar(tmp_path / "in" / "a.tar", [("other.txt", b"other" * 2000)])
    with pytest.raises(StructureError, match="does not fit the tar"):
        [store[name] for name in FILES]


def test_a_damaged_index_and_none_at_all_are_told(store, tmp_path):
    index = tmp_path / "in" / ".nv-meta" / "index.sqlite"
    index.write_bytes(b"SQLite format 3\0" + bytes(5000))
    with pytest.raises(StructureError, match="cannot be read"):
        WebdatasetFileStore(tmp_path / "in")["d/00000.txt"]
    index.unlink()
    with pytest.raises(SpecError, match="prepare --tar-index-only"):
        WebdatasetFileStore(tmp_path / "in")
    with pytest.raises(SpecError, match="no prepared dataset"):
        WebdatasetFileStore(tmp_path)


def first_text(store):
    return store["d/00000.txt"][0]


def test_it_is_small_when_pickled_and_crosses_threads_and_forks(store):
    assert first_text(store) == FILES["d/00000.txt"]
    assert len(pickle.dumps(store)) < 300
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(first_text, [store] * 50)) == {FILES["d/00000.txt"]}
    with get_context("fork").Pool(1) as forked:
        assert forked.map(first_text, [store]) == [FILES["d/00000.txt"]]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files" / "sub").mkdir(parents=True)
    (tmp_path / "files" / "sub" / "x.txt").write_bytes(b"inside")
    (tmp_path / "secret.txt").write_bytes(b"outside")
    return tmp_path / "files"


def test_a_folder_is_a_store(folder):
    store = pickle.loads(pickle.dumps(SystemFileStore(folder)))
    data, source = store["sub/x.txt"]
    assert (data, source) == (b"inside", SampleSource(str(folder), str(folder), "sub/x.txt"))
    assert SystemFileStore()[str(folder / "sub" / "x.txt")][0] == b"inside"
    with pytest.raises(FileNotFoundError):
        store["sub/y.txt"]


@pytest.mark.parametrize("key", ["../secret.txt", "sub/../../secret.txt", "{}/../secret.txt"])
def test_no_key_leads_out_of_a_folder(folder, key):
    with pytest.raises(ValueError, match="leads out"):
        SystemFileStore(folder)[key.format(folder)]


class Text:
    def decode(self, fname, data):
        return fname, data.decode()


def test_stores_decode_and_know_the_sample_at_hand(folder):
    store = PrimaryFileStore(DecodeFileStore(SystemFileStore(folder), decoder=Text()), "sub/x")
    sample = {}
    assert store.get(".txt", sample) == store["sub/x.txt"][0] == ("sub/x.txt", "inside")
    assert [source.index for source in sample["__sources__"]] == ["sub/x.txt"]
    assert store.get_path() == str(folder)
