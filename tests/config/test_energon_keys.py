"""Keys that Energon has: how they merge over nodes and files, and what they do to leaves."""

import pytest
from tars import write_tar
from yaml_text import parse_metadataset

from energy_data import WorkerConfig, get_loader, get_train_dataset
from energy_data.config.compile import compile_split
from energy_data.config.leaves import leaf_uses
from energy_data.config.load import load
from energy_data.config.opening import Options
from energy_data.errors import SpecError
from energy_data.nodes.leaf import leaves_of


def leaves(path, datasets, mode="train", **options):
    spec = compile_split(
        load(path), "train", open_source=datasets, mode=mode, options=Options(**options)
    )
    return leaves_of(spec)


@pytest.mark.parametrize(
    ("outer", "inner", "merged"),
    [
        ("1", "1", 1),
        ("2", "3", 6),
        ("~", "3", None),
        ("3", "~", None),
        ("-1", "3", -1),
        ("3", "-1", -1),
        ("~", "-1", None),
    ],
)
def test_epochs_that_mix_are_multiplied_over_files(write, datasets, outer, inner, merged):
    name = "shuffle_over_epochs_multiplier"
    write("n.yaml", f"splits: {{train: {{path: x, {name}: {inner}}}}}")
    path = write("m.yaml", f"splits: {{train: {{path: n.yaml, {name}: {outer}}}}}")
    assert [leaf.epochs for leaf in leaves(path, datasets)] == [merged]
    assert [leaf.epochs for leaf in leaves(path, datasets, "val")] == [1]


def test_the_call_counts_as_one_more_file(write, datasets):
    path = write("m.yaml", "splits: {train: {path: x, shuffle_over_epochs_multiplier: 3}}")
    (leaf,) = leaves(path, datasets, shuffle_over_epochs_multiplier=2)
    assert leaf.epochs == 6


def test_an_order_of_its_own_is_a_leaf_of_its_own(write, datasets):
    path = write(
        "m.yaml",
        """
        splits:
          train:
            blend:
              - {path: x}
              - {path: x, shuffle_over_epochs_multiplier: 2}
              - {path: x, split_config: other.yaml}
              - {path: x, dataset_config: crude.yaml, split_config: other.yaml}
              - {path: x, split_config: other.yaml}
        """,
    )
    assert [leaf.id for leaf in leaves(path, datasets)] == [
        "x:train",
        "x:train;epochs=2",
        "x:train;split_config=other.yaml",
        "x:train;split_config=other.yaml;dataset_config=crude.yaml",
        "x:train;split_config=other.yaml",
    ]
    assert [opened[3:] for opened in datasets.opened] == [
        (),
        (("split_config", "other.yaml"),),
        (("split_config", "other.yaml"), ("dataset_config", "crude.yaml")),
    ]


def test_one_id_for_two_orders_of_a_dataset_is_a_fault(write):
    node = "[{path: x, id: a}, {path: x, id: a, shuffle_over_epochs_multiplier: 2}]"
    path = write("m.yaml", f"splits: {{train: {{blend: {node}}}}}")
    with pytest.raises(SpecError, match="the id 'a' stands for two different datasets"):
        load(path).tree("train")


def test_another_number_of_epochs_is_another_fingerprint(write, datasets):
    text = "splits: {{train: {{path: x, id: a, shuffle_over_epochs_multiplier: {}}}}}"
    found = {
        leaf.fingerprint
        for number in (1, 2, -1, "~")
        for leaf in leaves(write("m.yaml", text.format(number)), datasets)
    }
    assert len(found) == 4


@pytest.mark.parametrize("epochs", [1, 2, -1, None])
def test_without_repetition_each_sample_comes_once_whatever_epochs_are_mixed(tmp_path, epochs):
    write_tar(tmp_path / "x.tar", [(f"{n}.txt", b"a") for n in range(10)])
    node = {"path": str(tmp_path / "x.tar"), "shuffle_over_epochs_multiplier": epochs}
    options = {"batch_size": None, "worker_config": WorkerConfig(0, 1, lanes=4)}
    for path in ({"splits": {"train": node}}, tmp_path / "x.tar"):
        loader = get_loader(
            get_train_dataset(path, repeat=False, shuffle_over_epochs_multiplier=epochs, **options)
        )
        for _ in range(2):
            assert sorted(int(sample["__key__"]) for sample in loader) == list(range(10))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("aux", "{a: x}"),
        ("dataset_config", "a.yaml"),
        ("split_config", "a.yaml"),
        ("id", "a"),
        ("subset", "{range: [0, 5]}"),
    ],
)
def test_what_is_of_one_dataset_is_refused_beside_a_metadataset(write, key, value):
    write("n.yaml", "splits: {train: {path: x}}")
    path = write("m.yaml", f"splits: {{train: {{path: n.yaml, {key}: {value}}}}}")
    with pytest.raises(
        SpecError, match=rf"m.yaml:1:\d+: splits.train.{key}: .*found a metadataset"
    ):
        load(path)


def test_an_absolute_range_is_taken_before_those_of_the_files_around_it(write, datasets):
    write("n.yaml", "splits: {train: {blend: [{path: x, subset: {range: [20, 60]}}, {path: y}]}}")
    path = write("m.yaml", "splits: {train: {path: n.yaml, subset: {range: [25%, 50%]}}}")
    assert [leaf.source.subset for leaf in leaves(path, datasets)] == [(30, 40), (25, 50)]


def test_older_files_blend_as_new_ones_do(datasets):
    old = "{datasets: [{path: x, weight: 2, subflavor: s}, {path: y, split_part: val}]}"
    metadataset = parse_metadataset(
        f"{{__module__: megatron.energon, __class__: Metadataset, splits: {{train: {old}}}}}"
    )
    spec = compile_split(metadataset, "train", open_source=datasets)
    found = [(leaf.id, leaf.source.subflavors) for leaf in leaves_of(spec)]
    assert found == [("x:train", {"__subflavor__": "s"}), ("y:val", {})]
    assert [part.weight for part in metadataset.tree("train").parts] == [2, 1.0]


def test_aux_paths_start_at_their_file(write, tmp_path):
    write("n.yaml", "splits: {train: {path: x, aux: {a: ../y, f: 'filesystem://./z'}}}")
    path = write("m.yaml", "splits: {train: {path: n.yaml}}")
    (twig,) = leaf_uses(load(path).tree("train"))
    folder = str(tmp_path.resolve())
    assert {name: (aux.path, aux.kind) for name, aux in twig.aux.items()} == {
        "a": (f"{folder.rpartition('/')[0]}/y", "path"),
        "f": (f"{folder}/z", "fs_path"),
    }


def test_aux_of_a_store_has_its_options(write):
    storage = "storage: {s3://b: {region: r}}\n"
    aux = "{a: s3://b/y, f: filesystem+s3://b/z, r: 'byterange+http://h/z'}"
    path = write("m.yaml", f"{storage}splits: {{train: {{path: x, aux: {aux}}}}}")
    (twig,) = leaf_uses(load(path).tree("train"))
    assert {name: (aux.path, aux.kind, aux.storage) for name, aux in twig.aux.items()} == {
        "a": ("s3://b/y", "path", {"region": "r"}),
        "f": ("s3://b/z", "fs_path", {"region": "r"}),
        "r": ("http://h/z", "byte_ranges", {}),
    }


@pytest.mark.parametrize(
    ("store", "problem"),
    [("nothing", "no such file or folder"), ("filesystem://nothing", "there is no folder")],
)
def test_aux_that_is_not_there_is_a_fault_with_its_place(write, datasets, store, problem):
    path = write("m.yaml", f"splits: {{train: {{path: x, aux: {{a: '{store}'}}}}}}")
    with pytest.raises(SpecError, match=rf"m.yaml:1:32: splits.train: leaf 'x:train': .*{problem}"):
        leaves(path, datasets)


@pytest.mark.parametrize("header", ["__class__: Recipe", "__class__: MetadatasetV2", ""])
def test_the_header_of_every_version_is_accepted(header):
    text = f"__module__: megatron.energon\n{header}\nsplits: {{train: {{path: x}}}}"
    assert parse_metadataset(text).splits == ("train",)


def test_tags_are_subflavors(write, datasets):
    write("n.yaml", "splits: {train: {path: x, tags: {a: 1, b: 2}}}")
    path = write("m.yaml", "splits: {train: {path: n.yaml, subflavors: {b: 3}}}")
    assert [leaf.source.subflavors for leaf in leaves(path, datasets)] == [{"a": 1, "b": 3}]


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        (
            "{path: x, subflavors: {a: 1}, tags: {b: 2}}",
            "m.yaml:1:47: splits.train: 'tags' is another name of 'subflavors'. Keep one of them.",
        ),
        (
            "{weight_unit: tokens, blend_weight_unit: tokens, blend: [{path: x}]}",
            "m.yaml:1:39: splits.train: 'blend_weight_unit' is another name of 'weight_unit'. "
            "Keep one of them.",
        ),
        (
            "{blend_weight_unit: pixels, blend: [{path: x}]}",
            "m.yaml:1:37: splits.train.blend_weight_unit: must be 'samples' or 'tokens', found the "
            "text 'pixels'. Give another size as `tokens_per_sample`, or by a "
            "`@sample_size_metric` that is called tokens.",
        ),
        (
            "{path: x, filter: ../keep}",
            "m.yaml:1:35: splits.train.filter: must be the name of a filter index: letters, digits,"
            " '_', '-' and '.', found the text '../keep'. Write it like `filter: quality_v1`.",
        ),
    ],
)
def test_a_key_of_energon_8_that_is_wrong_is_reported(node, problem):
    with pytest.raises(SpecError) as caught:
        parse_metadataset(f"splits: {{train: {node}}}", name="m.yaml")
    assert str(caught.value) == problem


def test_a_filter_is_of_one_dataset_and_part_of_its_id(write, datasets):
    path = write("m.yaml", "splits: {train: {blend: [{path: x}, {path: x, filter: keep}]}}")
    assert [leaf.id for leaf in leaves(path, datasets)] == ["x:train", "x:train;filter=keep"]
    assert [opened[3:] for opened in datasets.opened] == [(), (("filter", "keep"),)]
    outer = write("o.yaml", "splits: {train: {path: m.yaml, filter: keep}}")
    with pytest.raises(SpecError, match="filter: it is for a single dataset, found a metadataset"):
        load(outer)


def test_a_join_has_no_filter(write):
    path = write("m.yaml", "splits: {train: {join: [{path: x, filter: keep}, {path: y}]}}")
    with pytest.raises(SpecError, match="'filter' does not belong here"):
        load(path)


def test_a_blend_by_tokens_may_have_the_name_of_energon_8(write, datasets):
    node = "[{path: x, tokens_per_sample: 2}, {path: y, tokens_per_sample: 1}]"
    path = write("m.yaml", f"splits: {{train: {{blend_weight_unit: tokens, blend: {node}}}}}")
    spec = compile_split(load(path), "train", open_source=datasets)
    assert spec.weights == (1, 2)


def test_every_key_of_a_recipe_is_accepted():
    leaf = (
        "{path: x, split_part: val, dataset_config: d.yaml, split_config: s.yaml, filter: keep,"
        " subset: {range: [5, end]}, shuffle_over_epochs_multiplier: -1, tags: {a: 1},"
        " aux: {b: ./b, c: 'filesystem://c', d: 'byterange://d'}, weight: 2.0}"
    )
    inner = "subset: {range: [0%, 50%]}, tags: {a: 1}, blend_weight_unit: samples"
    text = f"""
        __module__: megatron.energon
        __class__: Recipe
        splits:
          train: {{blend: [{leaf}, {{{inner}, weight: 1, blend: [{leaf}]}}]}}
          val: {{blend_epochized: [{{path: x, repetitions: 1.5, subflavors: {{a: 1}}}}]}}
          test: {{join: {{a: {{path: x}}, b: {{path: y, nonmatch: skip}}}}}}
        """
    assert parse_metadataset(text).splits == ("train", "val", "test")
