from textwrap import dedent

import pytest
from yaml_text import parse_metadataset

from energy_data.config.load import load
from energy_data.errors import SpecError


def faults(text):
    with pytest.raises(SpecError) as caught:
        parse_metadataset(dedent(text), name="m.yaml")
    return caught.value.faults


def fault(text):
    (line,) = faults(text)
    return line


def train(node):
    """Return the fault of a node that stands below `splits: train:`."""
    return fault(f"splits:\n  train: {node}\n")


PATH = "Write it like `path: ./coco`."


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("{paht: x}", "2:11: splits.train: unknown key 'paht'. Did you mean 'path'?"),
        ("{blnd: [{path: x}]}", "2:11: splits.train: unknown key 'blnd'. Did you mean 'blend'?"),
        (
            "{path: x, subflavours: {}}",
            "2:20: splits.train: unknown key 'subflavours'. Did you mean 'subflavors'?",
        ),
        (
            "{path: x, zebra: red}",
            "2:20: splits.train: unknown key 'zebra'. Known here: split_part, subflavors, "
            "tags, subflavor, subset, id, shuffle_over_epochs_multiplier, "
            "tokens_per_sample, max_repetitions, columns, config_name, seq_len, stride, "
            "max_seq_len, add_bos, add_eos, cu_seqlens, dtype, path, dataset_config, split_config, "
            "filter, aux.",
        ),
        (
            "{path: x, weight: 2}",
            "2:20: splits.train: 'weight' does not belong here. It is for children of `blend`.",
        ),
        (
            "{concat: [{path: x, repetitions: 2}]}",
            "2:30: splits.train.concat[0]: 'repetitions' does not belong here. It is for children "
            "of `blend_epochized`.",
        ),
        (
            "{concat: [{path: x}], id: y}",
            "2:32: splits.train: 'id' does not belong here. It is for nodes with `path` or `join`.",
        ),
        (
            "{path: x, length: 5}",
            "2:20: splits.train: 'length' does not belong here. It is for the mapping below "
            "`epochize`.",
        ),
        (
            "{path: x, blend: [{path: y}]}",
            "2:20: splits.train: a node has one kind, found 'path' and 'blend'. Keep one, or list "
            "them in a `blend`.",
        ),
        (
            "{id: x}",
            "2:10: splits.train: the node has no kind, found {id: x}. Add one of path, join, "
            "blend, blend_epochized, concat, epochize, repeat, mix, staged, datasets or "
            "docs_per_step.",
        ),
        (
            "./coco",
            "2:10: splits.train: must be a node: a mapping with `path`, `blend` or another kind, "
            "found the text './coco'. If it is a path, write `path: ./coco`.",
        ),
        (
            "[{path: x}]",
            "2:10: splits.train: must be a node: a mapping with `path`, `blend` or another kind, "
            "found [{path: x}]. To mix a list, write `blend:` before it.",
        ),
        (
            "{blend: []}",
            "2:18: splits.train.blend: must be a list of nodes, not empty, found []. "
            "Write it like `blend: [{path: ./coco, weight: 2}, {path: ./coyo}]`.",
        ),
        (
            "{path: 5}",
            "2:17: splits.train.path: must be text, not empty, without control characters, found "
            f"the number 5. {PATH}",
        ),
        (
            '{path: "a\\0b"}',
            "2:17: splits.train.path: must be text, not empty, without control characters, found "
            f"the text 'a\\x00b'. {PATH}",
        ),
        (
            "{path: x, subflavors: [a]}",
            "2:32: splits.train.subflavors: must be a mapping of names to plain data, found [a]. "
            "Write it like `subflavors: {task: captioning}`.",
        ),
        (
            "{epochize: {lenght: 5, of: {path: x}}}",
            "2:22: splits.train.epochize: unknown key 'lenght'. Did you mean 'length'?",
        ),
        (
            "{epochize: {length: 5}}",
            "2:21: splits.train.epochize: the key 'of' is missing, found {length: 5}. "
            "Add it, such as `of: {path: ./coco}`.",
        ),
        (
            "{epochize: {length: 0.5, of: {path: x}}}",
            "2:30: splits.train.epochize.length: must be a whole number >= 1, found the number "
            "0.5. Write it like `length: 100000`.",
        ),
        (
            "{repeat: [5]}",
            "2:19: splits.train.repeat: must be a mapping, found [5]. Write it like "
            "`repeat: {times: 3, of: {path: ./coco}}`.",
        ),
        (
            "{blend: [{path: x, weight: 0}, {path: y, weight: 0.0}]}",
            "2:18: splits.train.blend: no child has weight > 0. Give at least one weight > 0.",
        ),
        (
            "{blend_epochized: [{path: x, repetitions: 0}]}",
            "2:28: splits.train.blend_epochized: no child has repetitions > 0. Give at least "
            "one repetitions > 0.",
        ),
        (
            "{path: x, __class__: Boom}",
            "2:20: splits.train: '__class__' does not belong here. A metadataset is data and runs "
            "no code; the header may stand at the top of a file. Remove it.",
        ),
    ],
)
def test_a_fault_of_a_node_names_its_place_and_what_to_do(node, expected):
    assert train(node) == f"m.yaml:{expected}"


@pytest.mark.parametrize(
    "weight", ["-1", ".nan", ".inf", "-.inf", "1e300", "true", "'5'", "~", "[]"]
)
def test_a_weight_is_a_finite_number_from_zero(weight):
    line = train(f"{{blend: [{{path: x, weight: {weight}}}]}}")
    assert line.startswith(
        "m.yaml:2:37: splits.train.blend[0].weight: must be a number from 0 to 1e+15, or "
    )
    assert line.endswith("Write it like `weight: 2.5`.")


@pytest.mark.parametrize("repetitions", ["-1", ".nan", ".inf", "1e10", "yes", "two"])
def test_repetitions_are_a_finite_number_from_zero(repetitions):
    line = train(f"{{blend_epochized: [{{path: x, repetitions: {repetitions}}}]}}")
    assert "splits.train.blend_epochized[0].repetitions: must be a number from 0 to 1e+09" in line


@pytest.mark.parametrize(
    "bounds",
    ["[10, 20%]", "[10%, 20]", "[10%]", "[a, b]", "[-1, 5]", "[0%, 101%]", "5", "[end, 5]",
     "[10.5, 20]", "[true, 5]", "[0%, 10%, 20%]", "[-5%, 5%]"],
)  # fmt: skip
def test_a_range_is_two_percentages_or_two_numbers(bounds):
    line = train(f"{{path: x, subset: {{range: {bounds}}}}}")
    assert "splits.train.subset: must be `range: [start, end]` with two percentages or" in line


@pytest.mark.parametrize("bounds", ["[5, 5]", "[9, 3]", "[50%, 50%]", "[60%, 10.5%]"])
def test_an_empty_range_is_a_fault(bounds):
    line = train(f"{{path: x, subset: {{range: {bounds}}}}}")
    assert line.endswith("The range is empty: its end must be greater than its start.")


def test_an_inner_node_takes_no_numbers_of_samples():
    line = train("{subset: {range: [0, 5]}, blend: [{path: x}]}")
    assert line.endswith("Numbers of samples are for single datasets: use percentages here.")


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (
            "{join: [{path: x}]}",
            "2:17: splits.train.join: a join needs at least two datasets, found 1. Add one, or "
            "write `path`.",
        ),
        (
            "{join: [{path: x, nonmatch: none}, {path: y}]}",
            "2:38: splits.train.join[0].nonmatch: the others are matched to the first dataset, "
            "found 'none' for the first itself. Remove it, or put another dataset first.",
        ),
        (
            "{join: {a: {path: x, nonmatch: skip}, b: {path: y}}}",
            "2:41: splits.train.join.a.nonmatch: the others are matched to the first dataset, "
            "found 'skip' for the first itself. Remove it, or put another dataset first.",
        ),
        (
            "{join: [{path: x}, {path: y, subset: {range: [0, 5]}}]}",
            "2:39: splits.train.join[1]: 'subset' does not belong here. It is of the join as a "
            "whole: write it next to `join`.",
        ),
        (
            "{join: [{path: x}, {blend: [{path: y}]}]}",
            "2:30: splits.train.join[1]: must have `path`, found 'blend'. Name datasets by their "
            "`path`.",
        ),
        (
            "{join: [{path: x}, {path: y}], dataset_config: z.yaml}",
            "2:41: splits.train: 'dataset_config' does not belong here. It is for nodes with "
            "`path`.",
        ),
        (
            "{path: x, nonmatch: skip}",
            "2:20: splits.train: 'nonmatch' does not belong here. It is for children of `join`.",
        ),
        (
            "{path: x, shuffle_over_epochs_multiplier: 0}",
            "2:52: splits.train.shuffle_over_epochs_multiplier: must be a whole number >= 1, or "
            "-1, or null, found the number 0. Write it like `shuffle_over_epochs_multiplier: 3`.",
        ),
        (
            "{path: x, split_config: ../s.yaml}",
            "2:34: splits.train.split_config: must be the name of a file, found the text "
            "'../s.yaml'. It is the name of a file in `.nv-meta`, without folders above it.",
        ),
        (
            "{path: x, aux: {a: 'filesystem://s3://b/c'}}",
            "2:25: splits.train.aux: must be a mapping of names to paths, of prepared datasets or "
            "after `filesystem://` of folders, found {a: 'filesystem://s3://b/c'}. 'a' is a "
            "folder: write filesystem:// before its path, or filesystem+ before its URL.",
        ),
        (
            "{path: x, aux: {a: 'ftp://b/c'}}",
            "2:25: splits.train.aux: must be a mapping of names to paths, of prepared datasets or "
            "after `filesystem://` of folders, found {a: 'ftp://b/c'}. 'a' has none of the "
            "schemes s3, gs, az, http, https, msc or file.",
        ),
        (
            "{blend: [{datasets: [{path: x}]}]}",
            "2:20: splits.train.blend[0]: must have `path`, `join`, `blend`, `blend_epochized`, "
            "`concat`, `epochize`, `repeat`, `mix` or `staged`, found 'datasets'. It is of the "
            "older `Metadataset`: write `blend` in its place.",
        ),
    ],
)
def test_a_fault_of_what_energon_has_too(node, expected):
    assert train(node) == f"m.yaml:{expected}"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("vla", "val"), ("Train", "train"), ("tran", "train"), ("tets", "test"), ("vall", None)],
)
def test_a_split_may_have_any_name_that_is_no_slip(written, meant):
    text = f"splits: {{{written}: {{path: x}}, dev: {{path: x}}, valid: {{path: x}}}}"
    if meant:
        assert fault(text).endswith(f"unknown split '{written}'. Did you mean '{meant}'?")
    else:
        assert parse_metadataset(text).splits == (written, "dev", "valid")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "splits: {vla: {path: x}}",
            "m.yaml:1:10: splits: unknown split 'vla'. Did you mean 'val'?",
        ),
        (
            "splits: {}",
            "m.yaml:1:9: splits: must be a mapping with one or more splits, such as train, val and "
            "test, found {}. Write it like `splits: {train: {path: ./coco}}`.",
        ),
        (
            "__module__: megatron.energon",
            "m.yaml:1:1: the key 'splits' is missing, found {__module__: "
            "megatron.energon}. Add it, "
            "such as `splits: {train: {path: ./coco}}`.",
        ),
        (
            "train: {path: x}\nsplits: {train: {path: x}}",
            "m.yaml:1:1: 'train' does not belong here. It is for the mapping below `splits`.",
        ),
        (
            "- x",
            "m.yaml:1:1: must be a mapping with `splits`, found [x]. Write `splits: "
            "{train: {path: ./coco}}`.",
        ),
        (
            "__module__: os\nsplits: {train: {path: x}}",
            "m.yaml:1:13: __module__: must be 'megatron.energon' or 'energy_data', found the text "
            "'os'. A metadataset is data and runs no code, so nothing else can be named here: "
            "remove the line.",
        ),
        (
            "__class__: MetadatasetV3\nsplits: {train: {path: x}}",
            "m.yaml:1:12: __class__: must be 'Recipe', 'MetadatasetV2' or 'Metadataset', found the "
            "text 'MetadatasetV3'. A metadataset is data and runs no code, so nothing else can be "
            "named here: remove the line.",
        ),
    ],
)
def test_a_fault_of_the_top_of_a_file(text, expected):
    assert fault(text) == expected


def test_every_fault_of_a_file_is_told_at_once():
    lines = faults(
        """\
        __module__: os
        splits:
          train:
            blend:
              - wieght: 5
                path: ./coco
              - weight: -2
                path: 5
              - weight: 1
                blend:
                  - {}
                  - {path: x, aux: y, subset: {range: [5]}}
          vla: {path: x}
          val: {epochize: {length: many}}
        """
    )
    assert [line.split(" ")[0] for line in lines] == [
        f"m.yaml:{place}:"
        for place in (
            "1:13", "5:9", "7:17", "8:15", "11:13", "12:28", "12:39", "13:3", "14:19", "14:28",
        )
    ]  # fmt: skip


def test_a_fault_behind_an_alias_is_told_once():
    line = fault("splits: {train: &x {path: 5}, val: *x, test: *x}")
    assert line.startswith("m.yaml:1:27: splits.train.path: must be text")


def test_a_mapping_has_the_same_faults_with_keys_for_places():
    with pytest.raises(SpecError) as caught:
        load({"splits": {"train": {"blend": [{"path": "x", "wieght": 5}]}}})
    assert caught.value.faults == [
        "<mapping>: splits.train.blend[0]: unknown key 'wieght'. Did you mean 'weight'?"
    ]


@pytest.mark.parametrize("module", ["megatron.energon", "energy_data"])
def test_the_header_of_energon_is_accepted(module):
    text = f"__module__: {module}\n__class__: MetadatasetV2\nsplits: {{train: {{path: x}}}}"
    assert parse_metadataset(text).splits == ("train",)


@pytest.mark.parametrize("wrong", [{"repeat": {}}, {"blend": None}])
def test_equal_faults_of_a_dict_are_told_for_each_key(wrong):
    with pytest.raises(SpecError) as caught:
        load({"splits": {"train": {"blend": [wrong, wrong]}}})
    for number in (0, 1):
        assert any(f"splits.train.blend[{number}]." in line for line in caught.value.faults)
