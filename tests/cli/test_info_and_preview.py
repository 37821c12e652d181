"""`energy-data info` and `energy-data preview`: what datasets hold, and what their samples are."""

import io
import json

import numpy as np
import pytest
import torch
from rich.console import Console
from tars import write_tar

from energy_data.cli.values import describe, picture
from energy_data.data.filter_writer import build_filter_index


@pytest.fixture
def books(tmp_path, energy_data):
    """Two tars with a part of text and one of bytes, split in two."""
    for shard in range(2):
        parts = [
            part
            for n in range(3)
            for part in (
                (f"{shard}/{n}.txt", f"page {n}".encode()),
                (f"{shard}/{n}.bin", b"\x00ab"),
            )
        ]
        write_tar(tmp_path / f"books/{shard}.tar", parts)
    done = energy_data("prepare", "books", "--non-interactive", "--split-ratio", "1,1")
    assert done.exit_code == 0, done.stderr
    return tmp_path / "books"


def test_info_has_a_row_for_each_part_that_has_shards(energy_data, books):
    train, val = json.loads(energy_data("info", "books", "--json").stdout)
    assert train == {
        "id": "books:train",
        "samples": 3,
        "shards": 1,
        "bytes": (books / "0.tar").stat().st_size,
        "tokens": None,
        "sample_type": "dict",
        "fields": ["txt", "bin"],
    }
    assert val["id"] == "books:val"
    head, first, _ = energy_data("info", "books").stdout.splitlines()
    assert head.split() == ["leaf", "id", "samples", "shards", "size", "sample", "type", "fields"]
    assert first.split() == ["books:train", "3", "1", "10.2", "kB", "dict", "txt,", "bin"]


def test_info_of_a_metadataset_is_of_all_its_datasets_once(energy_data, books, write):
    write("x.jsonl", '{"n": 1}\n')
    write("m.yaml", "splits: {train: {blend: [{path: ./books}, {path: x.jsonl}, {path: ./books}]}}")
    found = json.loads(energy_data("info", "m.yaml", "--json").stdout)
    assert [one["id"] for one in found] == ["books:train", "x.jsonl:train"]


def test_info_shows_the_declared_type(energy_data, books):
    kind = ["--sample-type", "TextSample", "--field-map", '{"text": "txt"}']
    energy_data("prepare", "books", "--force", "--non-interactive", *kind)
    (train, _) = json.loads(energy_data("info", "books", "--json").stdout)
    assert (train["sample_type"], train["fields"]) == ("TextSample", ["text"])


def test_preview_shows_the_first_samples_of_each_part(energy_data, books):
    lines = energy_data("preview", "books", "-n", "1").stdout.splitlines()
    assert lines[0] == (f"books:train, 0 of 3: dataset {books}, shard 0.tar, key 0/0, sample 0")
    assert lines[1:3] == ["  txt  str, 6 characters: 'page 0'", "  bin  bytes, 3: b'\\x00ab'"]
    assert lines[3].startswith("books:val, 0 of 3: ")


@pytest.mark.parametrize("key", ["1/2", "1.tar/1/2"])
def test_a_sample_is_found_by_its_key(energy_data, books, key):
    done = energy_data("preview", "books", "--key", key)
    assert done.stdout.startswith("books:val, 2 of 3: ")
    assert done.stdout.count("books:") == 1


def test_a_key_that_no_sample_has_is_an_error(energy_data, books):
    done = energy_data("preview", "books", "--key", "2/0")
    assert (done.exit_code, done.stderr) == (
        1,
        "books: there is no sample '2/0'. Check the key.\n",
    )


def test_keys_of_samples_that_are_excluded_or_before_the_subset_are_not_found(
    energy_data, books, write
):
    split = books / ".nv-meta/split.yaml"
    split.write_text("split_parts: {train: [0.tar, 1.tar]}\nexclude: [0.tar/0/1]\n")
    assert "books:train, 1 of 5" in energy_data("preview", "books", "--key", "0/2").stdout
    assert energy_data("preview", "books", "--key", "0/1").exit_code == 1
    write("m.yaml", "splits: {train: {path: ./books, subset: {range: [2, 5]}}}\n")
    assert ", 0 of 3: " in energy_data("preview", "m.yaml", "--key", "1/0").stdout
    assert energy_data("preview", "m.yaml", "--key", "0/2").exit_code == 1


def test_lines_of_jsonl_files_are_found_by_file_and_number(energy_data, tmp_path):
    (tmp_path / "pages").mkdir()
    for name in "ab":
        (tmp_path / f"pages/{name}.jsonl").write_text(f'{{"n": 0}}\n{{"n": "{name}"}}\n')
    done = energy_data("preview", "pages", "--key", "b.jsonl/1")
    assert "json  {'n': 'b'}" in done.stdout


def test_samples_are_chosen_by_number_or_at_random(energy_data, books):
    by_number = energy_data("preview", "books", "--split", "train", "--index", "2", "--index", "0")
    assert [line[:14] for line in by_number.stdout.splitlines()[::3]] == [
        "books:train, 2",
        "books:train, 0",
    ]
    one, same, other = (
        energy_data("preview", "books", "-n", "2", "--random", "--seed", seed).stdout
        for seed in (1, 1, 4)
    )
    assert one == same != other
    assert "--index: there is no sample 3" in energy_data("preview", "books", "--index", "3").stderr
    assert energy_data("preview", "books", "--index", "1", "--key", "x").exit_code == 2


def test_a_bad_sample_is_an_error_and_others_are_shown(energy_data, tmp_path):
    write_tar(tmp_path / "x.tar", [("0.json", b"{"), ("1.json", b"{}")])
    done = energy_data("preview", "x.tar")
    assert done.exit_code == 1
    assert "key 0, sample 0" in done.stderr
    assert "key 1, sample 1" in done.stdout


def test_parts_of_tars_are_saved_as_they_are(energy_data, books, tmp_path):
    done = energy_data("preview", "books", "--key", "1/2", "--save", "out")
    assert done.exit_code == 0
    found = {
        str(one.relative_to(tmp_path)): one.read_bytes()
        for one in tmp_path.glob("out/**/*.*")
        if one.is_file()
    }
    assert found == {"out/books/1.tar/1/2.txt": b"page 2", "out/books/1.tar/1/2.bin": b"\x00ab"}
    (tmp_path / "out/books/1.tar/1/2.txt").write_text("mine")
    again = energy_data("preview", "books", "--key", "1/2", "--save", "out")
    assert "it is there, and is another file. Give another folder." in again.stderr


def test_values_of_other_formats_are_saved_by_their_type(energy_data, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    png = b"\x89PNG\r\n\x1a\n and so on"
    table = {
        "text": ["a\u00e9"],
        "ids": [[1, 2]],
        "info": [{"a": 1}],
        "file": [png],
        "none": [None],
    }
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    assert energy_data("preview", "x.parquet", "--save", "out").exit_code == 0
    folder = tmp_path / "out/x.parquet"
    assert (folder / "0.text.txt").read_text("utf-8") == "a\u00e9"
    assert np.load(folder / "0.ids.npy").tolist() == [1, 2]
    assert json.loads((folder / "0.info.json").read_text()) == {"a": 1}
    assert (folder / "0.file.png").read_bytes() == png
    assert len(list(folder.iterdir())) == 4


def test_a_key_that_leads_out_of_the_folder_is_refused(energy_data, tmp_path):
    write_tar(tmp_path / "x.tar", [("a/../../../../b.txt", b"text")])
    done = energy_data("preview", "x.tar", "--save", "out/deep")
    assert done.exit_code == 1
    assert "leads out of it" in done.stderr
    assert not list(tmp_path.glob("**/b.txt"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\x1b[2J", "str, 5 characters: 'a\\x1b[2J'"),
        ("a" * 500, "str, 500 characters: '" + "a" * 400 + "'..."),
        (b"\xff\xd8\xff" + b"0" * 60, "bytes, 63 (jpg): b'\\xff\\xd8\\xff" + "0" * 21 + "'..."),
        (torch.arange(3), "tensor int64 [3]: 0, 1, 2"),
        (torch.full((3, 2, 4), 0.25), "tensor float32 [3, 2, 4]: " + "0.25, " * 16 + "..."),
        (np.zeros((0, 2), "u1"), "array uint8 [0, 2]: "),
        (7, "7"),
        ({"a": list(range(20))}, "{'a': [0, 1, 2, 3, 4, 5, 6, 7, ... +12]}"),
    ],
)
def test_values_are_described(value, shown):
    assert describe(value) == shown


@pytest.mark.parametrize(
    "image",
    [
        torch.tensor([[[255, 0]], [[0, 0]], [[0, 255]]], dtype=torch.uint8),
        torch.tensor([[[1.0, 0]], [[0, 0]], [[0, 1.0]]]),
        np.array([[[255, 0, 0], [0, 0, 255]]], "u1"),
    ],
)
def test_an_image_is_a_picture_of_its_colours(image):
    terminal = Console(file=io.StringIO(), force_terminal=True, color_system="truecolor", width=80)
    for line in picture(image, 80):
        terminal.print(line)
    shown = terminal.file.getvalue()
    assert "38;2;255;0;0;48;2;255;0;0m" in shown
    assert "38;2;0;0;255;48;2;0;0;255m" in shown


def test_a_large_image_fits_the_terminal():
    lines = list(picture(torch.zeros(3, 1000, 4000), 60))
    assert (len(lines), len(lines[0])) == (8, 60)
    assert len(list(picture(torch.zeros(1, 4000, 100), 60))) == 24


@pytest.mark.parametrize(
    "value", [torch.zeros(3, 4), torch.zeros(3, 0, 4), np.zeros((2, 2)), "text"]
)
def test_other_values_are_no_pictures(value):
    assert not list(picture(value, 60))


def test_keys_of_samples_that_a_filter_leaves_out_are_not_found(energy_data, books, write):
    build_filter_index(books, "some", [1, 4])
    write("m.yaml", "splits: {train: {path: ./books, filter: some, split_part: val}}\n")
    assert ", 0 of 1: " in energy_data("preview", "m.yaml", "--key", "1/1").stdout
    assert energy_data("preview", "m.yaml", "--key", "1/0").exit_code == 1
