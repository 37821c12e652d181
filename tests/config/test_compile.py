from fractions import Fraction
from time import process_time

import pytest
from yaml_text import parse_metadataset

from energy_data.config.compile import compile_split
from energy_data.config.draws import describe_tree
from energy_data.config.load import load
from energy_data.errors import SpecError, StructureError
from energy_data.nodes.blend import BlendEpochizedSpec, BlendSpec
from energy_data.nodes.leaf import distinct_leaves, leaves_of
from energy_data.nodes.passes import ConcatSpec, EpochizeSpec, RepeatSpec
from energy_data.nodes.references import LeafSpec


def compiled(node, datasets, split="train", **options):
    metadataset = parse_metadataset(f"splits: {{{split}: {node}}}", base_dir="/data", name="m.yaml")
    return compile_split(metadataset, split, open_source=datasets, **options)


def shape(spec):
    """Return the kind of a spec, its own number or its children's, and its children."""
    if isinstance(spec, LeafSpec):
        return spec.leaf.id
    numbers = {
        BlendSpec: lambda: [part.weight for part in spec.parts],
        BlendEpochizedSpec: lambda: [part.repetitions for part in spec.parts],
        EpochizeSpec: lambda: spec.length,
        RepeatSpec: lambda: spec.times,
        ConcatSpec: lambda: None,
    }[type(spec)]()
    return spec.kind, numbers, [shape(child) for child in spec.children.values()]


BLEND = "{blend: [{path: a, weight: 5}, {path: b, weight: 0}, {path: c}]}"
EPOCHIZED = "{blend_epochized: [{path: a, repetitions: 1.1}, {path: b, repetitions: 0}, {path: c}]}"


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("{path: a}", "a:train"),
        (BLEND, ("blend", [5, 0, 1], ["a:train", "b:train", "c:train"])),
        (
            EPOCHIZED,
            ("blend_epochized", [Fraction(11, 10), 0, 1], ["a:train", "b:train", "c:train"]),
        ),
        ("{concat: [{path: a}, {path: b}]}", ("concat", None, ["a:train", "b:train"])),
        ("{epochize: {length: 7, of: {path: a}}}", ("epochize", 7, ["a:train"])),
        ("{epochize: {length: 1e6, of: {path: a}}}", ("epochize", 10**6, ["a:train"])),
        ("{repeat: {times: 3, of: {path: a}}}", ("repeat", 3, ["a:train"])),
        (
            "{blend: [{blend: [{path: a}, {path: b}], weight: 2}, {path: c}]}",
            ("blend", [2, 1], [("blend", [1, 1], ["a:train", "b:train"]), "c:train"]),
        ),
    ],
)
def test_every_kind_compiles_to_its_spec(node, expected, datasets):
    assert shape(compiled(node, datasets)) == expected


@pytest.mark.parametrize("node", [BLEND, EPOCHIZED])
@pytest.mark.parametrize("split", ["val", "test"])
def test_in_validation_children_come_once_one_after_another_and_never_those_with_zero(
    node, split, datasets
):
    spec = compiled(node, datasets, split)
    assert shape(spec) == ("concat", None, [f"a:{split}", f"c:{split}"])


def test_the_mode_can_be_chosen_apart_from_the_split(datasets):
    assert isinstance(compiled(BLEND, datasets, "val", mode="train"), BlendSpec)
    assert isinstance(compiled(BLEND, datasets, mode="val"), ConcatSpec)


def test_a_dataset_listed_twice_is_one_leaf_with_two_entries(datasets):
    spec = compiled(
        "{blend: [{path: a, subflavors: {x: 1}}, {path: ./a, subflavors: {x: 2}}]}", datasets
    )
    entries = leaves_of(spec)
    assert [leaf.source.subflavors for leaf in entries] == [{"x": 1}, {"x": 2}]
    assert len(distinct_leaves(spec)) == 1


def test_places_that_say_the_same_share_one_source(datasets):
    spec = compiled("{blend: [{path: a}, {path: b}, {path: a}]}", datasets)
    sources = [leaf.source for leaf in leaves_of(spec)]
    assert sources[0] is sources[2]
    assert [path for path, *_ in datasets.opened] == ["/data/a", "/data/b"]


def test_absolute_and_relative_ranges_are_opened_as_numbers(datasets):
    compiled("{blend: [{path: a, subset: {range: [25%, 50%]}}, {path: b}]}", datasets)
    assert datasets.opened == [
        ("/data/a", "train", None),
        ("/data/a", "train", (25, 50)),
        ("/data/b", "train", None),
    ]


def test_all_that_is_wrong_with_datasets_is_told_at_once(datasets):
    datasets.num_samples = {"/empty": 0, "/few": 3}
    datasets.missing = ["/missing"]
    text = """\
    splits:
      train:
        blend:
          - {path: missing}
          - {path: empty}
          - {path: fine}
          - {path: few, subset: {range: [0%, 10%]}}
          - {path: few, subset: {range: [1, 4]}, id: f}
          - {path: empty, weight: 0}
    """
    metadataset = parse_metadataset(text, base_dir="/data", name="m.yaml")
    with pytest.raises(SpecError) as caught:
        compile_split(metadataset, "train", open_source=datasets)
    assert caught.value.faults == [
        "m.yaml:4:20: splits.train.blend[0]: leaf 'missing:train': /data/missing: there is no such "
        "dataset. Look at the path.",
        "m.yaml:5:20: splits.train.blend[1]: leaf 'empty:train': it has no samples, found 0 in the "
        "part 'train' of /data/empty. Remove it, or check its split.yaml.",
        "m.yaml:7:33: splits.train.blend[3]: leaf 'few:train[0%:10%]': it has no samples in the "
        "range [0%:10%], found 3 in the part 'train' of /data/few. Give a range within them.",
        "m.yaml:8:33: splits.train.blend[4]: leaf 'f': the range [1:4] exceeds the dataset, "
        "found 3 in the part 'train' of /data/few. Give a range within them.",
        "m.yaml:9:20: splits.train.blend[5]: leaf 'empty:train': it has no samples, found 0 in the "
        "part 'train' of /data/empty. Remove it, or check its split.yaml.",
    ]


def test_a_damaged_dataset_stays_what_it_is_and_says_where_it_is_listed():
    def damaged(path, **options):
        raise StructureError("its index is cut off.", dataset=path)

    with pytest.raises(StructureError, match="dataset /data/a: its index is cut off") as caught:
        compiled("{path: a}", damaged)
    assert caught.value.__notes__ == ["m.yaml:1:24: splits.train: leaf 'a:train'"]


def test_a_dataset_itself_compiles_to_a_leaf(datasets, tmp_path):
    spec = compile_split(load(tmp_path / "coco"), "val", open_source=datasets)
    assert shape(spec) == "coco:val"


def test_five_thousand_datasets_compile_in_seconds(write, datasets):
    nodes = "".join(f"      - {{path: d{n}, weight: {n + 1}}}\n" for n in range(5000))
    path = write("a.yaml", f"splits:\n  train:\n    blend:\n{nodes}")
    start = process_time()
    spec = compile_split(load(path), "train", open_source=datasets)
    assert process_time() - start < 10
    assert len(datasets.opened) == len(spec.children) == 5000


TREE = """
splits:
  train:
    blend:
      - {path: a, weight: 3}
      - weight: 1
        blend_epochized: [{path: b, repetitions: 0.5}, {path: c, repetitions: 2}]
      - {path: d, weight: 0}
  val: {blend: [{path: a, weight: 9}, {repeat: {times: 2, of: {path: c}}}]}
"""


def rows(split, datasets):
    datasets.num_samples = {"/b": 200, "/c": 50}
    metadataset = parse_metadataset(TREE, name="m.yaml")
    spec = compile_split(metadataset, split, open_source=datasets)
    return list(describe_tree(metadataset, split, spec))


def test_rows_tell_what_is_drawn_how_much_and_where_it_is_written(datasets):
    found = rows("train", datasets)
    assert [
        (r.depth, r.kind, r.label, r.share, r.fraction, r.num_samples, r.id) for r in found
    ] == [
        (0, "blend", "blend", None, 1.0, None, None),
        (1, "path", "a", 3, 0.75, 100, "a:train"),
        (1, "blend_epochized", "blend_epochized", 1, 0.25, None, None),
        (2, "path", "b", 0.5, 0.125, 200, "b:train"),
        (2, "path", "c", 2, 0.125, 50, "c:train"),
        (1, "path", "d", 0, 0.0, 100, "d:train"),
    ]
    assert [str(row.place) for row in found[:3]] == ["m.yaml:4:5", "m.yaml:5:9", "m.yaml:6:9"]


def test_in_validation_fractions_follow_the_sizes(datasets):
    assert [row.fraction for row in rows("val", datasets)] == [1.0, 0.5, 0.5, 0.5]


def test_weights_by_tokens_show_the_share_of_samples(datasets):
    leaves = "{path: x, tokens_per_sample: 10}, {path: y, tokens_per_sample: 30}"
    node = f"{{weight_unit: tokens, blend: [{leaves}]}}"
    metadataset = parse_metadataset(f"splits: {{train: {node}}}")
    spec = compile_split(metadataset, "train", open_source=datasets)
    assert [row.fraction for row in describe_tree(metadataset, "train", spec)] == [1, 0.75, 0.25]
