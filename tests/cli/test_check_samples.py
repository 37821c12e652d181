"""`energy-data check --samples`: every sample is read and decoded."""

import json

import pytest
from tars import write_tar

from energy_data.data.registry import open_source
from energy_data.data.sample_check import check_samples


def tar_of(folder, name, *texts):
    folder.mkdir(exist_ok=True)
    return write_tar(folder / name, [(f"{n}.json", text) for n, text in enumerate(texts)])


def checked(energy_data, folder, kind, fields):
    """Prepare a dataset of a declared type, and check its samples."""
    declared = ("--sample-type", kind, "--field-map", fields)
    assert not energy_data("prepare", folder, "--non-interactive", *declared).exit_code
    return energy_data("check", "--samples", folder)


def test_good_samples_are_fine(energy_data, dataset):
    dataset("books", 3, 4)
    done = energy_data("check", "--samples", "books")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == "books: fine; train: 1 leaf, 7 samples\n"


def test_each_bad_sample_is_reported_with_its_place(energy_data, tmp_path):
    tar_of(tmp_path / "books", "a.tar", b"{}", b"{", b"{}", b"]")
    assert energy_data("check", "books").exit_code == 0
    done = energy_data("check", "--samples", "books")
    assert (done.exit_code, done.stdout) == (1, "")
    first, second, summary = done.stderr.splitlines()
    where = f"dataset {tmp_path}/books, shard a.tar, key"
    assert first.startswith(f"{where} 1, sample 1, byte 1536: part 'json' cannot be decoded")
    assert second.startswith(f"{where} 3, sample 3, byte ")
    assert summary == (
        "books: 2 of 4 samples are bad. Repair them, or leave them out: `exclude` in split.yaml "
        "takes a.tar/1."
    )


def test_what_is_excluded_as_advised_is_no_longer_bad(energy_data, tmp_path):
    tar_of(tmp_path / "books", "a.tar", b"{}", b"{")
    assert not energy_data("prepare", "books", "--non-interactive").exit_code
    split = tmp_path / "books/.nv-meta/split.yaml"
    split.write_text("split_parts: {train: [a.tar]}\nexclude: [a.tar/1]\n")
    assert energy_data("check", "--samples", "books").exit_code == 0


def test_all_parts_of_a_prepared_dataset_are_checked(energy_data, tmp_path):
    for name, text in {"a.tar": b"{}", "b.tar": b"{"}.items():
        tar_of(tmp_path / "books", name, text)
    split = ("--split-ratio", "1,1", "--no-sqlite")  # the tars have a key in common
    assert not energy_data("prepare", "books", "--non-interactive", *split).exit_code
    done = energy_data("check", "--samples", "books")
    assert "shard b.tar, key 0" in done.stderr
    assert energy_data("check", "--samples", "books", "--split", "train").exit_code == 0


def test_samples_are_made_as_dataset_yaml_declares(energy_data, tmp_path):
    tar_of(tmp_path / "books", "a.tar", b'{"text": "a"}', b"{}")
    done = checked(energy_data, "books", "TextSample", '{"text": "json[text]"}')
    assert done.exit_code == 1
    assert "shard a.tar, key 1" in done.stderr
    assert "cannot make a TextSample from it" in done.stderr


def test_all_datasets_of_a_metadataset_are_checked_once(energy_data, tmp_path, write):
    tar_of(tmp_path / "books", "a.tar", b"{")
    leaf = "{path: ./books, split_part: train}"
    write("m.yaml", f"splits: {{train: {leaf}, val: {{concat: [{leaf}, {leaf}]}}}}\n")
    assert "m.yaml: 1 of 1 samples are bad." in energy_data("check", "--samples", "m.yaml").stderr


def test_a_damaged_file_is_one_error_and_hides_no_other(tmp_path):
    paths = [tar_of(tmp_path / "books", f"{name}.tar", *[b"{}"] * 20) for name in "ab"]
    tar_of(tmp_path / "books", "c.tar", b"{")
    source = open_source(tmp_path / "books")
    paths[0].write_bytes(paths[0].read_bytes()[:512])
    (found,) = check_samples([source], workers=1)
    assert (found.samples, found.bad) == (41, 21)
    assert [fault.shard.rpartition("/")[2] for fault in found.faults] == ["a.tar", "c.tar"]


def test_video_that_cannot_be_opened_is_bad(energy_data, tmp_path):
    pytest.importorskip("av")
    folder = tmp_path / "clips"
    folder.mkdir()
    write_tar(folder / "a.tar", [("0.mp4", b"no video"), ("0.txt", b"text")])
    done = checked(energy_data, "clips", "VidQASample", '{"video": "mp4", "context": "txt"}')
    assert done.exit_code == 1
    assert "key 0" in done.stderr
    assert "'video' cannot be decoded" in done.stderr


def test_processes_find_what_one_finds(tmp_path):
    lines = [json.dumps({"n": n}) if n % 500 else '{"n": nothing}' for n in range(2500)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines))
    source = open_source(tmp_path / "x.jsonl")
    one = [str(fault) for found in check_samples([source], workers=1) for fault in found.faults]
    two = [str(fault) for found in check_samples([source], workers=2) for fault in found.faults]
    assert one == two
    assert len(one) == 5


def test_code_of_a_joiner_runs_if_the_environment_allows_it(
    energy_data, tmp_path, write, monkeypatch
):
    for name in "ab":
        tar_of(tmp_path / name, "x.tar", b"{}")
    write("my_joins.py", "def first(one, other):\n    return one\n")
    joiner = "joiner: {__module__: my_joins, __function__: first}"
    write(
        "m.yaml",
        f"splits:\n  train:\n    join: [{{path: ./a}}, {{path: ./b}}]\n    {joiner}\n",
    )
    assert "ENERGY_DATA_ALLOW_MODULES=my_joins" in energy_data("check", "m.yaml").stderr
    monkeypatch.setenv("ENERGY_DATA_ALLOW_MODULES", "my_joins")
    monkeypatch.syspath_prepend(tmp_path)
    assert energy_data("check", "--samples", "m.yaml").exit_code == 0


def test_options_that_exclude_each_other_are_wrong_usage(energy_data):
    assert energy_data("check", "--samples", "--no-data", "books").exit_code == 2
