import shutil

import pytest
from yaml_text import parse_metadataset

from energy_data.config.compile import compile_split
from energy_data.config.leaves import leaf_uses
from energy_data.config.load import load
from energy_data.errors import SpecError
from energy_data.nodes.leaf import leaves_of


def leaves(metadataset, split="train"):
    return list(leaf_uses(metadataset.tree(split)))


def ids(nodes, base_dir="/data"):
    text = f"splits: {{train: {{blend: [{nodes}]}}}}"
    return [leaf.id for leaf in leaves(parse_metadataset(text, base_dir=base_dir))]


@pytest.mark.parametrize(
    ("node", "leaf_id"),
    [
        ("{path: coco}", "coco:train"),
        ("{path: ./a//b/../coco/}", "a/coco:train"),
        ("{path: ../coco, split_part: val}", "../coco:val"),
        ("{path: /abs/coco}", "/abs/coco:train"),
        ("{path: coco, subset: {range: [10, 20]}}", "coco:train[10:20]"),
        ("{path: coco, subset: {range: [10, end]}}", "coco:train[10:end]"),
        ("{path: coco, subset: {range: [12.50%, end]}}", "coco:train[12.5%:100%]"),
        ("{path: coco, subset: {range: [0%, 100.0%]}}", "coco:train"),
        ("{path: coco, subset: {range: [0, end]}}", "coco:train"),
        ("{path: 's-{00..09}.tar'}", "s-{00..09}.tar:train"),
        ("{path: coco, id: my coco}", "my coco"),
    ],
)
def test_an_id_is_given_or_the_path_as_written_with_part_and_range(node, leaf_id):
    assert ids(node) == [leaf_id]


def test_ids_join_the_paths_of_nested_files_and_not_the_place_of_the_outermost(write, tmp_path):
    write("meta/below/c.yaml", "splits: {train: {blend: [{path: ../x}, {path: /abs/y}]}}")
    write("meta/b.yaml", "splits: {train: {path: below/c.yaml}}")
    write("meta/a.yaml", "splits: {train: {path: ./b.yaml}}")
    expected = ["x:train", "/abs/y:train"]
    assert [leaf.id for leaf in leaves(load(tmp_path / "meta/a.yaml"))] == expected
    shutil.move(tmp_path / "meta", tmp_path / "moved")
    assert [leaf.id for leaf in leaves(load(tmp_path / "moved/a.yaml"))] == expected


def test_a_nested_file_named_absolutely_makes_ids_absolute(write, tmp_path):
    nested = write("b.yaml", "splits: {train: {path: x}}")
    path = write("a.yaml", f"splits: {{train: {{path: {nested}}}}}")
    assert [leaf.id for leaf in leaves(load(path))] == [f"{tmp_path}/x:train"]


def test_the_same_dataset_written_in_two_ways_is_one_leaf(tmp_path):
    (tmp_path / "coco").mkdir()
    (tmp_path / "a_link").symlink_to(tmp_path / "coco")
    nodes = "{path: coco}, {path: a_link}, {path: ./coco/../coco}"
    assert ids(nodes, tmp_path) == ["a_link:train"] * 3
    assert (
        ids(f"{{path: {tmp_path}/coco}}, {{path: coco}}", tmp_path)
        == [f"{tmp_path}/coco:train"] * 2
    )


def test_a_dataset_with_an_id_and_without_is_one_leaf():
    assert ids("{path: coco}, {path: coco, id: mine}, {path: coyo}") == [
        "mine",
        "mine",
        "coyo:train",
    ]


def test_two_ids_of_one_dataset_are_two_leaves():
    assert ids("{path: coco}, {path: coco, id: b}, {path: coco, id: c}") == ["coco:train", "b", "c"]


def test_other_parts_and_ranges_are_other_leaves():
    nodes = "{path: x}, {path: x, split_part: val}, {path: x, subset: {range: [0%, 50%]}}"
    assert len(set(ids(nodes))) == 3


def test_an_id_for_two_datasets_is_a_fault_with_both_places():
    text = "splits:\n  train:\n    blend:\n    - {id: a, path: x}\n    - {path: y, id: a}\n"
    with pytest.raises(SpecError) as caught:
        parse_metadataset(text, name="m.yaml").tree("train")
    assert caught.value.faults == [
        "m.yaml:5:21: splits.train.blend[1]: the id 'a' stands for two different datasets, found "
        "y:train here and x:train at m.yaml:4:7. Give one of them another `id`."
    ]


def test_an_id_that_another_dataset_has_by_default_is_a_fault():
    with pytest.raises(SpecError, match="the id 'x:train' stands for two different datasets"):
        ids("{path: x}, {path: y, id: 'x:train'}")


def test_subflavors_merge_down_and_the_outermost_counts(write):
    write(
        "b.yaml",
        "splits: {train: {path: x, subflavor: inner, subflavors: {a: 1, b: 1, c: 1}}}",
    )
    path = write(
        "a.yaml",
        """
        splits:
          train:
            subflavors: {a: 3}
            blend:
              - {path: b.yaml, subflavors: {a: 2, b: 2}}
              - {path: y, subflavor: s, subflavors: {__subflavor__: t}}
              - path: z
        """,
    )
    assert [leaf.parts[0].subflavors for leaf in leaves(load(path))] == [
        {"__subflavor__": "inner", "a": 3, "b": 2, "c": 1},
        {"__subflavor__": "t", "a": 3},
        {"a": 3},
    ]


def test_the_innermost_split_part_counts():
    text = "splits: {train: {split_part: a, blend: [{path: x}, {path: y, split_part: b}]}}"
    assert [leaf.parts[0].split_part for leaf in leaves(parse_metadataset(text))] == ["a", "b"]


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("[0%, 50%]", "[25%, 75%]", (25, 50)),
        ("[50%, 100%]", "[10, 30]", (20, 30)),
        ("[50%, end]", "[20, end]", (60, 100)),
        ("[0%, 100%]", "[29%, 58%]", (29, 58)),
        ("[33.3%, 66.6%]", "[0%, 100%]", (33, 66)),
    ],
)
def test_an_outer_range_is_taken_of_what_the_inner_one_leaves(outer, inner, expected, datasets):
    text = f"""
    splits:
      train: {{subset: {{range: {outer}}}, blend: [{{path: x, subset: {{range: {inner}}}}}]}}
    """
    spec = compile_split(parse_metadataset(text), "train", open_source=datasets)
    (leaf,) = leaves_of(spec)
    assert leaf.source.subset == expected


TREE = """
splits:
  train:
    subflavors: {a: 1}
    blend:
      - {weight: 5, path: coco, subflavors: {a: 2, b: 3}}
      - {weight: 2, path: below/b.yaml, subset: {range: [0%, 12.5%]}}
      - {weight: 0, path: coco}
      - weight: 1.5
        blend_epochized:
          - {repetitions: 1.5, path: ../z}
          - {repetitions: 2, epochize: {length: 7, of: {path: coco}}}
      - repeat: {times: 3, of: {concat: [{path: q}, {path: r, id: s, split_part: val}]}}
"""
NESTED = """
splits:
  train: {blend: [{path: ../coco, subset: {range: [10, 90]}}, {path: coyo}]}
"""


def test_nested_files_are_written_out_with_all_that_leaves_inherit(write, datasets):
    write("below/b.yaml", NESTED)
    spec = compile_split(load(write("a.yaml", TREE)), "train", open_source=datasets)
    found = [(leaf.id, leaf.source.subset, leaf.source.subflavors) for leaf in leaves_of(spec)]
    assert found == [
        ("coco:train", (0, 100), {"a": 1, "b": 3}),
        ("coco:train[10:90][0%:12.5%]", (10, 20), {"a": 1}),
        ("below/coyo:train[0%:12.5%]", (0, 12), {"a": 1}),
        ("coco:train", (0, 100), {"a": 1}),
        ("../z:train", (0, 100), {"a": 1}),
        ("coco:train", (0, 100), {"a": 1}),
        ("q:train", (0, 100), {"a": 1}),
        ("s", (0, 100), {"a": 1}),
    ]


def test_a_relative_part_of_a_range_to_the_end(datasets):
    leaf = "{path: x, subset: {range: [20, end]}}"
    text = f"splits: {{train: {{subset: {{range: [50%, 100%]}}, concat: [{leaf}]}}}}"
    spec = compile_split(parse_metadataset(text), "train", open_source=datasets)
    (leaf,) = leaves_of(spec)
    assert (leaf.id, leaf.source.subset) == ("x:train[20:end][50%:100%]", (60, 100))
