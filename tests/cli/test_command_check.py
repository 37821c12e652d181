"""`energy-data check`: every problem of files and datasets, with its place."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from energy_data.cli import check
from energy_data.data.prepare import prepare
from energy_data.energon import build_filter_index
from energy_data.errors import DataError

GOOD = """\
splits:
  train: {path: ./books}
  val:
    concat: [{path: ./books, split_part: train}, {path: ./books, split_part: train}]
"""


def test_a_file_that_is_right_gets_one_line(energy_data, dataset, write):
    dataset("books", 3, 4)
    write("good.yaml", GOOD)
    done = energy_data("check", "good.yaml")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "good.yaml: fine; train: 1 leaf, 7 samples; val: 1 leaf, 7 samples\n"


def test_all_faults_of_all_files_are_told_with_their_places(energy_data, write):
    write("one.yaml", "splits:\n  train:\n    pth: ./books\n    weight: 3\n")
    write("two.yaml", "splits:\n  train: {blend: [{path: ./books, wieght: -1}]}\n  trian: {}\n")
    done = energy_data("check", "one.yaml", "two.yaml")
    assert done.exit_code == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[0].startswith("one.yaml:3:5: splits.train: unknown key 'pth'. Did you mean 'path'")
    assert any(
        line.startswith("two.yaml:2:35: splits.train.blend[0]: unknown key 'wieght'")
        for line in lines
    )
    assert any(line.startswith("two.yaml:3:3: splits: unknown") for line in lines)


def test_datasets_that_are_not_there_are_reported_with_the_other_faults(
    energy_data, dataset, write
):
    dataset("books", 3)
    (dataset("torn", 3) / "shard-0.tar").write_bytes(b"not a tar at all" * 100)
    paths = "{path: ./books, wieght: 1}, {path: ./boks}, {path: ./other.yaml}, {path: ./b*.tar}"
    write("one.yaml", f"splits:\n  train: {{blend: [{paths}]}}\n  val: {{path: ./gone/x.jsonl}}\n")
    write("other.yaml", "splits:\n  train: {path: ./bookss}\n")
    write("two.yaml", "splits:\n  train: {blend: [{path: ./torn}, {path: ./boks}]}\n")
    done = energy_data("check", "one.yaml", "two.yaml")
    assert done.exit_code == 1
    assert [line.split(" ", 1)[0] for line in done.stderr.splitlines()] == [
        *("one.yaml:2:35:", "one.yaml:2:54:", "one.yaml:3:15:", "other.yaml:2:17:"),
        *("two.yaml:2:26:", "two.yaml:2:42:"),
    ]
    assert "there is no dataset 'boks' in" in done.stderr
    assert "Did you mean 'books'?" in done.stderr
    assert "there is no folder" in done.stderr


def test_a_missing_dataset_is_reported_also_below_a_folder_whose_name_has_brackets(
    energy_data, tmp_path
):
    folder = tmp_path / "[old]"
    folder.mkdir()
    (folder / "meta.yaml").write_text("splits: {train: {path: ./gone}, val: {pth: 1}}\n")
    assert "there is no dataset 'gone'" in energy_data("check", str(folder / "meta.yaml")).stderr


def test_datasets_that_are_not_there_are_faults_at_their_path(energy_data, dataset, write):
    dataset("books", 3)
    write("meta.yaml", "splits:\n  train:\n    blend: [{path: ./boks}, {path: ./books}]\n")
    done = energy_data("check", "meta.yaml")
    assert done.exit_code == 1
    assert done.stderr.startswith("meta.yaml:3:20: splits.train.blend[0]: leaf 'boks:train': ")


def test_without_data_no_dataset_is_opened(energy_data, write):
    write("good.yaml", GOOD)
    done = energy_data("check", "--no-data", "good.yaml")
    assert (done.exit_code, done.stdout) == (0, "good.yaml: fine; train: 1 leaf; val: 1 leaf\n")


def test_a_good_file_beside_a_bad_one_is_still_told(energy_data, dataset, write):
    dataset("books", 3)
    write("good.yaml", GOOD)
    write("bad.yaml", "splits: {train: 7}\n")
    done = energy_data("check", "bad.yaml", "good.yaml")
    assert done.exit_code == 1
    assert done.stdout.startswith("good.yaml: fine;")
    assert done.stderr.startswith("bad.yaml:1:17: splits.train: ")


def test_a_damaged_dataset_is_told_with_the_leaf_that_names_it(energy_data, dataset, write):
    shard = dataset("books", 5) / "shard-0.tar"
    shard.write_bytes(b"not a tar at all" * 100)
    write("good.yaml", GOOD)
    done = energy_data("check", "--split", "train", "good.yaml")
    assert done.exit_code == 1
    assert done.stderr.startswith("good.yaml:2:17: splits.train: leaf 'books:train': ")
    assert "shard-0.tar" in done.stderr


@pytest.mark.parametrize("split", ["{path: ./books}", "{join: [{path: ./books}, {path: ./more}]}"])
def test_a_shard_that_was_written_again_is_reported_until_it_is_indexed(
    energy_data, dataset, write, split
):
    books = dataset("books", 3)
    shutil.copytree(books, books.with_name("more"))
    write("meta.yaml", f"splits:\n  train: {split}\n")
    for name in ("books", "more", "meta.yaml"):
        assert not energy_data("prepare", "--non-interactive", name).exit_code
    shutil.copy(dataset("longer", 40) / "shard-0.tar", books / "shard-0.tar")
    done = energy_data("check", "meta.yaml")
    assert done.exit_code == 1
    assert done.stderr.startswith("meta.yaml:2:")
    assert "shard-0.tar" in done.stderr
    assert "Run `energy-data prepare --tar-index-only`" in done.stderr
    shutil.copy(books.with_name("more") / "shard-0.tar", books / "shard-0.tar")
    assert not energy_data("prepare", "--tar-index-only", "books").exit_code
    assert not energy_data("check", "meta.yaml").exit_code


def test_a_filter_index_that_does_not_fit_is_reported(energy_data, dataset, write):
    folder = dataset("books", 3, 4)
    prepare(folder, split="1,0,0")
    build_filter_index(folder, "some", [1, 2, 5])
    write("good.yaml", "splits: {train: {path: ./books, filter: some}}")
    assert energy_data("check", "good.yaml").stdout == "good.yaml: fine; train: 1 leaf, 3 samples\n"
    np.array([1, 1, 5], "<u8").tofile(folder / ".nv-meta/filter_some.idx")
    done = energy_data("check", "good.yaml")
    assert done.exit_code == 1
    assert "filter_some.idx: its numbers do not increase. Build the filter" in done.stderr


def test_what_is_excluded_of_a_table_must_exist(energy_data, tmp_path, write):
    pq.write_table(pa.table({"n": range(9)}), tmp_path / "pages.parquet")
    assert not energy_data("prepare", tmp_path, "--split-ratio", "1,0,0").exit_code
    split = tmp_path / ".nv-meta/split.yaml"
    split.write_text(split.read_text().replace("exclude: []", "exclude: [pages.parquet/9]"))
    done = energy_data("check", tmp_path)
    assert done.exit_code == 1
    assert "excludes 'pages.parquet/9', which does not exist" in done.stderr


def test_a_dataset_can_be_checked_by_itself(energy_data, dataset):
    dataset("books", 3)
    assert energy_data("check", "books").stdout == "books: fine; train: 1 leaf, 3 samples\n"


def test_damage_in_one_split_hides_no_other(energy_data, dataset, write, monkeypatch):
    def damaged(metadataset, split, **_):
        raise DataError(f"{split} is damaged")

    dataset("books", 3, 4)
    write("good.yaml", GOOD)
    monkeypatch.setattr(check, "compiled", damaged)
    done = energy_data("check", "good.yaml")
    assert done.stderr.splitlines() == ["train is damaged", "val is damaged"]
