import os
import re

import pytest
from yaml_text import parse_metadataset

from energy_data.config import leaves
from energy_data.config.leaves import leaf_uses
from energy_data.config.load import load
from energy_data.errors import SpecError


def faults(path):
    with pytest.raises(SpecError) as caught:
        load(path)
    folder = f"{path.parent}/"
    return [line.replace(folder, "") for line in caught.value.faults]


def fault(path):
    (line,) = faults(path)
    return line


def paths(metadataset, split="train"):
    return [leaf.parts[0].path for leaf in leaf_uses(metadataset.tree(split))]


def test_paths_start_at_the_file_that_holds_them(write, tmp_path):
    write("below/b.yaml", "splits: {train: {blend: [{path: ../coyo}, {path: c/../coco}]}}")
    path = write("a.yaml", "splits: {train: {blend: [{path: ./below/b.yaml}, {path: /abs/x}]}}")
    real = os.path.realpath(tmp_path)
    assert paths(load(path)) == [f"{real}/coyo", f"{real}/below/coco", "/abs/x"]


def test_a_file_is_found_from_the_working_folder(write, tmp_path, monkeypatch):
    write("m/a.yaml", "splits: {train: {path: x}}")
    monkeypatch.chdir(tmp_path / "m")
    expected = [os.path.realpath(tmp_path / "m/x")]
    assert paths(load("a.yaml")) == expected
    assert paths(load("m/a.yaml", base_dir=tmp_path)) == expected


def test_file_text_and_mapping_are_the_same_metadataset(write, tmp_path):
    text = "splits: {train: {path: x, id: y, subset: {range: [5, end]}}}"
    mapping = {"splits": {"train": {"path": "x", "id": "y", "subset": {"range": (5, "end")}}}}
    loaded = [
        load(write("a.yaml", text)),
        parse_metadataset(text, base_dir=tmp_path),
        load(mapping, base_dir=tmp_path),
    ]
    found = {(leaf.id, leaf.data) for m in loaded for leaf in leaf_uses(m.tree("train"))}
    assert len(found) == 1


def test_a_nested_file_gives_the_split_asked_for_or_its_split_part(write):
    write("b.yaml", "splits: {train: {path: x}, val: {path: y}}")
    path = write(
        "a.yaml",
        """
        splits:
          train: {blend: [{path: b.yaml}, {split_part: val, concat: [{path: b.yaml}]}]}
          val: {path: b.yaml}
        """,
    )
    metadataset = load(path)
    assert [
        (leaf.written, leaf.parts[0].split_part) for leaf in leaf_uses(metadataset.tree("train"))
    ] == [
        ("x", "train"),
        ("y", "val"),
    ]
    assert [leaf.id for leaf in leaf_uses(metadataset.tree("val"))] == ["y:val"]


def test_a_file_may_name_another_split_of_itself(write):
    path = write("a.yaml", "splits: {train: {path: a.yaml, split_part: val}, val: {path: x}}")
    assert [leaf.id for leaf in leaf_uses(load(path).tree("train"))] == ["x:val"]


def test_a_nested_metadataset_without_the_split_is_a_fault(write):
    write("below/b.yaml", "splits: {train: {path: x}, test: {path: x}}")
    path = write("a.yaml", "splits:\n  train: {path: below/b.yaml}\n  val: {path: below/b.yaml}\n")
    assert fault(path) == (
        "a.yaml:3:15: splits.val.path: below/b.yaml has no split 'val', it has train or test. Add "
        "the split there, or `split_part` here."
    )


def test_a_cycle_of_files_is_a_fault_that_shows_it(write):
    write("b.yaml", "splits: {train: {blend: [{path: x}, {path: ./b2.yaml}]}}")
    write("b2.yaml", "splits: {train: {path: a.yaml}}")
    path = write("a.yaml", "splits: {train: {path: b.yaml}}")
    assert fault(path) == (
        "b2.yaml:1:24: splits.train.path: the files form a cycle, found a.yaml (train) -> b.yaml "
        "(train) -> b2.yaml (train) -> a.yaml (train). Remove one of these paths."
    )


@pytest.mark.parametrize("name", ["a.yaml", "./././a.yaml", "../m/a.yaml", "link/a.yaml"])
def test_a_file_that_names_itself_is_a_cycle_however_it_is_written(write, tmp_path, name):
    path = write("m/a.yaml", f"splits: {{train: {{path: {name}}}}}")
    (tmp_path / "m/link").symlink_to(tmp_path / "m")
    assert "splits.train.path: the files form a cycle, found a.yaml (train) -> " in fault(path)


def test_a_missing_file_is_a_fault_wherever_it_is_named(write):
    write("bb.yaml", "splits: {train: {path: x}}")
    path = write("a.yaml", "splits:\n  train: {blend: [{path: b.yaml}, {path: b.yaml}]}\n")
    first, second = faults(path)
    assert re.fullmatch(
        r"a.yaml:2:26: splits.train.blend\[0\].path: there is no metadataset 'b.yaml' in '.*'. "
        r"Did you mean 'bb.yaml'\?",
        first,
    )
    assert second.startswith("a.yaml:2:42: splits.train.blend[1].path: there is no metadataset")


@pytest.mark.parametrize("name", ["none.yaml", "none/none.yaml"])
def test_a_missing_outermost_file_is_a_fault(tmp_path, name):
    with pytest.raises(SpecError, match=f"{name}: there is no "):
        load(tmp_path / name)


def test_all_faults_of_all_files_are_told_at_once(write):
    write("b.yaml", "splits: {train: {paht: x}}")
    write("c.yaml", "splits: {train: {path: ftp://x/y, weight: 1}}")
    write("d.yaml", "splits: {train: {path: ftp://x/y}}")
    path = write(
        "a.yaml",
        """\
        splits:
          train: {blend: [{path: b.yaml}, {path: c.yaml}, {path: b.yaml}, {path: d.yaml}]}
          val: {path: e.yaml}
        """,
    )
    assert [line.split(": ")[0] for line in faults(path)] == [
        "b.yaml:1:18",
        "c.yaml:1:24",
        "c.yaml:1:35",
        "d.yaml:1:24",
        "a.yaml:3:15",
    ]


@pytest.mark.parametrize("path", ["wasb://bucket/x", "ftp://b/x.yaml", "HTTP://h/shard-{0..9}.tar"])
def test_a_path_of_an_unknown_scheme_is_an_error_and_never_joined(write, path):
    assert fault(write("a.yaml", f"splits: {{train: {{path: '{path}'}}}}")) == (
        f"a.yaml:1:24: splits.train.path: '{path}' has none of the schemes s3://, gs://, az://, "
        "http://, https://, msc://, file://."
    )


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("id: x", "it is for a single dataset, found a metadataset. Write it there."),
        (
            "subset: {range: [0, 5]}",
            "numbers of samples are for single datasets, found a metadataset. Use percentages.",
        ),
    ],
)
def test_a_nested_file_takes_no_keys_of_single_datasets(write, key, expected):
    write("b.yaml", "splits: {train: {path: x}}")
    assert fault(write("a.yaml", f"splits: {{train: {{path: b.yaml, {key}}}}}")).endswith(expected)


def test_files_that_name_each_other_many_times_are_a_fault_not_a_hang(write, monkeypatch):
    monkeypatch.setattr(leaves, "MAX_NODES", 5000)
    write("f0.yaml", "splits: {train: {blend: [{path: x}, {path: y}]}}")
    for number in range(1, 40):
        below = f"f{number - 1}.yaml"
        write(
            f"f{number}.yaml",
            f"splits: {{train: {{blend: [{{path: {below}}}, {{path: {below}}}]}}}}",
        )
    assert "too large with nested files written out, found more than 5,000 nodes" in fault(
        write("a.yaml", "splits: {train: {path: f39.yaml}}")
    )


def test_a_long_chain_of_files_is_a_fault_not_a_crash(write):
    write("f0.yaml", "splits: {train: {path: x}}")
    for number in range(1, 1000):
        write(f"f{number}.yaml", f"splits: {{train: {{path: f{number - 1}.yaml}}}}")
    assert "more than 64 files below each other" in fault(
        write("a.yaml", "splits: {train: {path: f999.yaml}}")
    )


def test_nodes_are_not_nested_without_measure(write, monkeypatch):
    monkeypatch.setattr(leaves, "MAX_DEPTH", 3)
    assert "found more than 3 nodes below each other" in fault(
        write("a.yaml", "splits: {train: {concat: [{concat: [{concat: [{path: x}]}]}]}}")
    )


@pytest.mark.parametrize("name", ["coco", "coco.tar", "shard-{000..009}.tar", "coco/"])
def test_a_dataset_is_loaded_like_a_metadataset_that_names_it(tmp_path, name):
    metadataset = load(tmp_path / name if name != "coco/" else f"{tmp_path}/coco/")
    assert metadataset.splits == ("train", "val", "test")
    (leaf,) = leaf_uses(metadataset.tree("my_part"))
    name = name.rstrip("/")
    assert (leaf.id, leaf.parts[0].split_part) == (f"{name}:my_part", "my_part")
    assert leaf.parts[0].path == f"{os.path.realpath(tmp_path)}/{name}"


def test_a_folder_that_is_called_yaml_is_a_dataset(tmp_path):
    (tmp_path / "x.yaml").mkdir()
    assert paths(load(tmp_path / "x.yaml")) == [os.path.realpath(tmp_path / "x.yaml")]


def test_loading_asks_no_store_for_a_dataset(write):
    (train,) = paths(load("s3://b/x"))
    assert train == "s3://b/x"
    (train,) = paths(load(write("a.yaml", "splits: {train: {path: s3://b/x}}")))
    assert train == "s3://b/x"


def test_loading_looks_at_no_dataset(write):
    path = write("a.yaml", "splits: {train: {blend: [{path: not/there}, {path: x.tar}]}}")
    assert load(path).splits == ("train",)


def test_a_file_that_is_no_file_is_a_fault(tmp_path):
    os.mkfifo(tmp_path / "a.yaml")
    assert "there is no metadataset 'a.yaml'" in fault(tmp_path / "a.yaml")


def test_an_unknown_split_names_those_that_exist(write):
    metadataset = load(write("a.yaml", "splits: {train: {path: x}, val: {path: x}}"))
    with pytest.raises(
        SpecError, match=r"a.yaml: splits: there is no split 'test', it has train or"
    ):
        metadataset.tree("test")


def test_a_file_with_faults_does_not_hide_those_of_the_files_it_names(write):
    write("b.yaml", "splits: {train: {concat: [{path: c.yaml}, {path: a.yaml}]}}")
    write("c.yaml", "splits: {train: {path: ftp://x, wieght: 1}}")
    text = "splits: {vla: {path: b.yaml}, train: {blnd: [{path: none.yaml}]}}"
    assert [line.split(": ")[0] for line in faults(write("a.yaml", text))] == [
        "a.yaml:1:10",
        "a.yaml:1:39",
        "c.yaml:1:24",
        "c.yaml:1:33",
    ]


def test_a_chain_of_files_with_faults_is_read_to_its_end(write):
    for number in range(500):
        write(f"f{number}.yaml", f"splits: {{train: {{path: f{number - 1}.yaml, x: 1}}}}")
    assert len(faults(write("a.yaml", "splits: {train: {path: f499.yaml}}"))) == 501
