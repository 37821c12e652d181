from itertools import islice

import pytest

from energy_data import WorkerConfig, get_loader, get_train_dataset


def keys(path, batches):
    dataset = get_train_dataset(path, batch_size=4, worker_config=WorkerConfig(lanes=2))
    return [batch["__key__"] for batch in islice(get_loader(dataset), batches)]


def test_prepared_tars_train_as_the_same_tars_did_before(energy_data, dataset):
    folder = dataset("books", 10, 7, 5)
    before = keys(folder, 20)
    assert energy_data("prepare", folder).exit_code == 0
    assert keys(folder, 20) == before


def test_the_summary_has_the_samples_and_shards_of_each_part(energy_data, dataset):
    dataset("books", 3, 4, 5, 6)
    done = energy_data("prepare", "books", "--split-ratio", "2,1,1")
    assert done.exit_code == 0
    first, *lines = done.stdout.splitlines()
    assert first.startswith("books: 18 samples in 4 shards, ")
    assert [line.split() for line in lines] == [
        ["train", "7", "samples", "in", "2", "shards"],
        ["val", "5", "samples", "in", "1", "shard"],
        ["test", "6", "samples", "in", "1", "shard"],
        ["each", "sample", "has", "some", "of:", "json"],
    ]


def test_shards_are_split_by_patterns_with_two_workers_too(energy_data, dataset):
    dataset("books", 3, 4, 5)
    parts = ["--split-parts", "train:shard-[01].*", "--split-parts", "val:shard-2.tar"]
    done = energy_data("prepare", "books", *parts, "--num-workers", 2, "--non-interactive")
    assert done.exit_code == 0, done.stderr
    assert "train           7 samples in 2 shards\n" in done.stdout
    assert "val             5 samples in 1 shard\n" in done.stdout


def test_only_force_prepares_again(energy_data, dataset):
    dataset("books", 3)
    energy_data("prepare", "books")
    again = energy_data("prepare", "books")
    assert (again.exit_code, again.stdout) == (1, "")
    assert again.stderr.startswith("books: it is prepared. Use ")
    for option in ("--force", "--force-overwrite"):
        assert energy_data("prepare", "books", option).exit_code == 0


def test_excluded_shards_are_left_out_and_sqlite_is_written_on_demand(energy_data, dataset):
    folder = dataset("books", 3, 4)
    done = energy_data("prepare", "books", "--exclude", "shard-0", "--sqlite")
    assert done.stdout.startswith("books: 4 samples in 1 shard, ")
    assert (folder / ".nv-meta" / "index.sqlite").exists()


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (["--split-ratio", "1,1", "--split-parts", "train:.*"], 2, "exclude each other"),
        (["--split-parts", "train"], 1, "split part 'train': it must be PART:PATTERN"),
        (["--split-ratio", "1,0,0,4"], 1, "split ratio '1,0,0,4': give up to three numbers"),
        (["--split-ratio", "8,1,1"], 1, "leaves no shard for 'train'"),
        (["--split-parts", "train:page.*"], 1, "no shard matches the pattern 'page.*'"),
        (["--num-workers", "0"], 2, "--num-workers"),
    ],
)
def test_what_cannot_be_done_is_said(energy_data, dataset, arguments, exit_code, said):
    folder = dataset("books", 3)
    done = energy_data("prepare", "books", *arguments)
    assert done.exit_code == exit_code
    assert said in done.stderr
    assert not (folder / ".nv-meta" / "split.yaml").exists()


def test_a_folder_without_tars_is_an_error(energy_data, tmp_path):
    (tmp_path / "empty").mkdir()
    done = energy_data("prepare", "empty")
    assert done.exit_code == 1
    assert done.stderr.startswith("empty: there are no .jsonl, .jsonl.zst, ")
