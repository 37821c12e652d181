"""What `energy-data prepare` asks, and what it writes by options and answers."""

import json
import os
import pty
import select
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from energy_data.cli.main import main
from energy_data.data.import_policy import ImportPolicy
from energy_data.data.nv_meta import NvMeta
from energy_data.data.typed.wrap import open_typed


def prepare(folder, *options, answers=None):
    arguments = ["prepare", str(folder), *map(str, options)]
    if answers is not None:
        arguments.append("--interactive")
    said = None if answers is None else "".join(f"{answer}\n" for answer in answers)
    done = CliRunner().invoke(main, arguments, input=said)
    assert done.exit_code == 0, done.output
    return done.output


def written(folder, name="dataset.yaml"):
    return yaml.safe_load((folder / ".nv-meta" / name).read_text())


CRUDE = {"__module__": "megatron.energon", "__class__": "CrudeWebdataset"}
TEXT = {"__module__": "megatron.energon", "__class__": "TextSample"}


def test_ratio_type_and_fields_are_asked_for(dataset):
    folder = dataset("books", 3, 4)
    said = prepare(folder, answers=["1,1,0", "y", 8, "y", "txt", "json[number]"])
    assert "2 shards, from shard-0.tar to shard-1.tar." in said
    assert "'number': 0" in said
    assert "8. TextSample" in said
    assert "Samples have no such part. Give another." in said
    assert written(folder) == {"sample_type": TEXT, "field_map": {"text": "json[number]"}}
    assert written(folder, "split.yaml")["split_parts"]["val"] == ["shard-1.tar"]


def test_optional_fields_can_be_left_out(dataset):
    folder = dataset("books", 3)
    prepare(folder, answers=["1,0,0", "y", 1, "y", "json", "", "json[a],json[b]"])
    assert written(folder)["field_map"] == {"image": "json", "label_name": "json[a],json[b]"}


def test_no_dataset_yaml_if_none_is_wanted(dataset):
    folder = dataset("books", 3)
    prepare(folder, answers=["1,0,0", "n"])
    assert not (folder / ".nv-meta" / "dataset.yaml").exists()


def test_crude_samples_need_no_fields(dataset):
    folder = dataset("books", 3)
    prepare(folder, answers=["1,0,0", "", 11])
    assert written(folder) == CRUDE


def test_functions_are_written_to_be_filled_in_and_kept_unless_told(dataset):
    folder = dataset("books", 3)
    prepare(folder, answers=["1,0,0", "y", 8, "n"])
    file = folder / ".nv-meta" / "sample_loader.py"
    assert written(folder)["sample_loader"] == "sample_loader.py:sample_loader"
    assert 'text=raw["FILL IN"],  # str' in file.read_text()
    sample = open_typed(folder, policy=ImportPolicy.of([str(folder)])).read(np.array([0]))[0]
    assert "KeyError: 'FILL IN'" in str(sample)
    file.write_text("mine")
    prepare(folder, "--force", answers=["1,0,0", "y", 8, "n", "n"])
    assert file.read_text() == "mine"
    prepare(folder, "--force", answers=["1,0,0", "y", 8, "n", "y"])
    assert file.read_text() != "mine"


def test_what_is_prepared_is_prepared_again_only_after_a_yes(dataset):
    folder = dataset("books", 3)
    prepare(folder)
    before = (folder / ".nv-meta" / "index.uuid").read_text()
    declined = CliRunner().invoke(main, ["prepare", str(folder), "--interactive"], input="n\n")
    assert declined.exit_code == 1
    assert (folder / ".nv-meta" / "index.uuid").read_text() == before
    prepare(folder, answers=["y", "1,0,0", "n"])
    assert (folder / ".nv-meta" / "index.uuid").read_text() != before


def test_options_leave_nothing_to_ask(dataset):
    folder = dataset("books", 3)
    options = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "TextSample"]
    options += ["--field-map", '{"text": "json[number]"}', "--dataset-yaml-name", "texts.yaml"]
    prepare(folder, *options, "--no-progress")
    assert written(folder, "texts.yaml") == {
        "sample_type": TEXT,
        "field_map": {"text": "json[number]"},
    }
    assert not (folder / ".nv-meta" / "dataset.yaml").exists()
    source = open_typed(folder, dataset_config="texts.yaml")
    assert source.read(np.array([2]))[0].__key__ == "books-0-2"


def test_without_a_terminal_nothing_is_asked_and_samples_are_crude(dataset):
    folder = dataset("books", 3)
    prepare(folder)
    assert written(folder) == CRUDE


def test_a_dataset_yaml_can_be_skipped(dataset):
    folder = dataset("books", 3)
    prepare(folder, "--skip-dataset-yaml")
    assert not (folder / ".nv-meta" / "dataset.yaml").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sample-type", "Text"], "'Text' is not one of 'CaptioningSample',"),
        (["--sample-type", "TextSample", "--field-map", "{"], "must be a JSON object"),
        (
            ["--sample-type", "TextSample", "--field-map", "[1]"],
            "must be a JSON object",
        ),
        (["--field-map", "{}"], "it needs a --sample-type"),
        (["--media-metadata-by-header", "--no-sqlite"], "they need a new index.sqlite"),
        (["--media-metadata-by-header", "--media-metadata-by-glob", "*"], "exclude each other"),
    ],
)
def test_options_that_cannot_be_are_named_before_anything_is_written(dataset, options, said):
    folder = dataset("books", 3)
    done = CliRunner().invoke(main, ["prepare", str(folder), *options])
    assert (done.exit_code, said in done.output) == (2, True), done.output
    assert not (folder / ".nv-meta").exists()


def test_indices_alone_are_made_again(dataset):
    folder = dataset("books", 3, 4)
    prepare(folder, "--split-ratio", "1,1,0")
    index = folder / "shard-1.tar.idx"
    good, split = index.read_bytes(), (folder / ".nv-meta" / "split.yaml").read_text()
    index.unlink()
    prepare(folder, "--tar-index-only")
    assert index.read_bytes() == good
    assert (folder / ".nv-meta" / "split.yaml").read_text() == split


def test_indices_alone_of_an_old_layout_bring_it_up_to_date(dataset):
    folder = dataset("books", 3, 4)
    prepare(folder, "--no-sqlite")
    meta = folder / ".nv-meta"
    said = json.loads((meta / ".info.json").read_text())
    (meta / ".info.json").unlink()
    (meta / "index.uuid").unlink()
    (meta / ".info.yaml").write_text(yaml.safe_dump({"shard_counts": said["shard_counts"]}))
    prepare(folder, "--tar-index-only")
    assert NvMeta.of(folder).counts == said["shard_counts"]
    assert (meta / ".info.json").exists()
    assert (meta / "index.sqlite").exists()


def test_indices_alone_of_other_tars_keep_the_splits(dataset, tmp_path):
    folder = dataset("books", 3, 4, 5)
    prepare(folder, "--split-ratio", "1,1,1")
    (folder / "shard-0.tar").write_bytes((folder / "shard-2.tar").read_bytes())
    (folder / "shard-3.tar").write_bytes((folder / "shard-1.tar").read_bytes())
    said = prepare(folder, "--tar-index-only", "--no-sqlite")
    for part, count in (("train", 5), ("val", 4), ("test", 5)):
        assert f"  {part:<6} {count:>10} samples in 1 shard\n" in said
    assert list(NvMeta.of(folder).counts.values()) == [5, 4, 5]


def test_force_keeps_the_splits_and_names_new_shards(dataset):
    folder = dataset("books", 3, 4)
    prepare(folder, "--split-ratio", "1,1,0")
    (dataset("more", 5) / "shard-0.tar").rename(folder / "shard-2.tar")
    said = prepare(folder, "--force")
    assert "in no part: 1 shard, shard-2.tar first" in said
    assert written(folder, "split.yaml")["split_parts"]["val"] == ["shard-1.tar"]
    prepare(folder, "--force", answers=["keep", "n"])
    assert written(folder, "split.yaml")["split_parts"]["val"] == ["shard-1.tar"]
    prepare(folder, "--force", "--split-ratio", "2,1,0")
    assert written(folder, "split.yaml")["split_parts"]["val"] == ["shard-2.tar"]


def test_a_ratio_that_cannot_be_is_asked_for_again(dataset):
    folder = dataset("books", 3, 4)
    said = prepare(folder, answers=["many", "8,1,1", "1,1,0", "n"])
    assert "give up to three numbers" in said
    assert "leaves no shard for" in said
    assert written(folder, "split.yaml")["split_parts"]["val"] == ["shard-1.tar"]


@pytest.mark.parametrize("answers", [[], ["1,1,0"], ["1,1,0", "y", 8, "y"]])
def test_stopping_at_a_question_prepares_nothing(dataset, answers):
    folder = dataset("books", 3, 4)
    said = "".join(f"{answer}\n" for answer in answers)  # then the end of the input, as Ctrl-D
    done = CliRunner().invoke(main, ["prepare", str(folder), "--interactive"], input=said)
    assert done.exit_code == 1
    assert not list(folder.glob(".nv-meta*"))


def test_shuffled_shards_are_split_as_energon_does(dataset):
    folder = dataset("books", *[1] * 10)
    prepare(folder, "--split-ratio", "5,3,2", "--shuffle-tars")
    parts = written(folder, "split.yaml")["split_parts"]
    assert parts["train"] == [f"shard-{n}.tar" for n in (7, 3, 2, 8, 5)]


def test_a_jsonl_file_is_indexed(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    assert prepare(path) == f"{path}: 2 samples\n"
    assert np.fromfile(f"{path}.idx", "<u8").tolist() == [0, 9, 18]


@pytest.mark.parametrize("option", ["--split-ratio=8,1,1", "--split-parts=val:x", "--exclude=x"])
def test_a_jsonl_file_is_not_split(tmp_path, option):
    path = tmp_path / "x.jsonl"
    path.write_text("{}\n")
    done = CliRunner().invoke(main, ["prepare", str(path), option])
    assert done.exit_code == 2
    assert f"{option.partition('=')[0]}: it is for folders, found" in done.output
    assert not path.with_name("x.jsonl.idx").exists()


def test_it_asks_on_a_terminal(dataset):
    folder = dataset("books", 3, 4)
    main_end, other_end = pty.openpty()
    command = [sys.executable, "-m", "energy_data.cli.main", "prepare", str(folder)]
    process = subprocess.Popen(
        command, stdin=other_end, stdout=other_end, stderr=other_end, close_fds=True
    )
    os.close(other_end)
    answers = [("such as 8,1,1: ", "1,1,0"), ("a type? [Y/n]: ", "y"), ("of the type", "8")]
    answers += [("functions for it)? [Y/n]: ", "y"), ("Where is text (str): ", "json[number]")]
    seen = ""
    for question, answer in answers:
        seen = read_until(main_end, seen, question)
        os.write(main_end, f"{answer}\n".encode())
    assert process.wait(60) == 0
    os.close(main_end)
    assert written(folder) == {"sample_type": TEXT, "field_map": {"text": "json[number]"}}


def read_until(end, seen, text):
    deadline = time.monotonic() + 100
    while text not in seen:
        assert select.select([end], [], [], max(0, deadline - time.monotonic()))[0], seen
        seen += os.read(end, 4096).decode()
    return seen.partition(text)[2]


def test_the_joins_of_a_metadataset_are_computed(dataset, tmp_path):
    for name in ("a", "b"):
        folder = dataset(name, 3)
        prepare(folder)
    (tmp_path / "b" / "shard-0.tar").write_bytes((tmp_path / "a" / "shard-0.tar").read_bytes())
    prepare(tmp_path / "b", "--force")
    text = {"splits": {"train": {"join": [{"path": "a"}, {"path": "b"}]}}}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(text))
    said = prepare(tmp_path / "m.yaml")
    assert said.startswith(f"{tmp_path}/m.yaml: train: join(a:train,b:train): 3 samples, ")
    assert any((tmp_path / "m.yaml.cache").iterdir())
