"""Weights that change over a run, in YAML."""

import pytest
from yaml_text import parse_metadataset

from energy_data.config.compile import compile_split
from energy_data.config.draws import describe_tree
from energy_data.config.load import load
from energy_data.errors import SpecError
from energy_data.order.schedule import Schedule


def faults(node):
    with pytest.raises(SpecError) as caught:
        parse_metadataset(f"splits:\n  train: {node}", name="m.yaml")
    return caught.value.faults


def spec_of(node, datasets, split="train"):
    parsed = parse_metadataset(f"splits:\n  {split}: {node}", name="m.yaml")
    return compile_split(parsed, split, open_source=datasets)


def test_a_schedule_is_read_with_its_places_unit_and_curve(datasets):
    node = "{blend: [{path: x, weight: {cosine: {0: 1, 1.5K: 2, 2M: 0.5}, unit: tokens}}]}"
    (part,) = spec_of(node, datasets).parts
    assert part.weight == Schedule("cosine", ((0, 1), (1500, 2), (2_000_000, 0.5)), "tokens")


def test_a_dict_may_have_numbers_as_places(datasets):
    data = {"splits": {"train": {"blend": [{"path": "x", "weight": {"step": {0: 1, 9: 2}}}]}}}
    (part,) = compile_split(load(data), "train", open_source=datasets).parts
    assert part.weight == Schedule("step", ((0, 1), (9, 2)))


def test_a_schedule_may_be_an_alias(datasets):
    node = (
        "{blend: [{path: x, weight: {linear: &up {0: 1, 9: 2}}}, {path: y, weight: {step: *up}}]}"
    )
    kinds = [part.weight.kind for part in spec_of(node, datasets).parts]
    assert kinds == ["linear", "step"]


def test_every_fault_of_a_schedule_has_its_own_place():
    node = "{blend: [{path: x, weight: {linear: {0: 1, 1k: 2, 9: -3}, unti: steps}}]}"
    assert faults(node) == [
        "m.yaml:2:53: splits.train.blend[0].weight.linear: a place must be a whole number from 0, "
        "or one followed by K, M, B or T, found '1k'. Write it like "
        "`weight: {linear: {0: 1, 10K: 3}}`.",
        "m.yaml:2:63: splits.train.blend[0].weight.linear.9: must be a number from 0 to 1e+15, "
        "found the number -3. Write it like `weight: {linear: {0: 1, 10K: 3}}`.",
        "m.yaml:2:68: splits.train.blend[0].weight: unknown key 'unti'. Did you mean 'unit'?",
    ]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ("{linear: {9: 1, 5: 2}}", "{}.linear: places must ascend, found 5 after 9."),
        ("{linear: {1K: 1, 1000: 2}}", "places must ascend, found 1,000 after 1,000."),
        (
            "{step: {0: 1}, unit: step}",
            "{}.unit: must be steps, samples or tokens, found the",
        ),
        ("{step: [1]}", "{}.step: must be a mapping of places to weights, found [1]."),
        ("{unit: steps}", "2:37: {}: must have one of step, linear or cosine, found"),
        (
            "{step: {0: 1, 9: 0}}",
            "2:37: {}: some weight must be > 0, got 1 that are all 0 at step 9.",
        ),
    ],
)
def test_a_fault_of_a_schedule_says_what_is_wrong(weight, expected):
    (line,) = faults(f"{{blend: [{{path: x, weight: {weight}}}]}}")
    assert expected.replace("{}", "splits.train.blend[0].weight") in line


def test_schedules_of_one_blend_have_one_unit():
    node = (
        "{blend: [{path: x, weight: {step: {0: 1}}}, {path: y, weight: {step: {0: 1}, "
        "unit: tokens}}]}"
    )
    assert "must be in one unit, got steps and tokens. Choose one." in faults(node)[0]


@pytest.mark.parametrize(
    "above",
    [
        "{concat: [%s]}",
        "{repeat: {times: 2, of: %s}}",
        "{blend_epochized: [%s]}",
        "{concat: [{epochize: {length: 5, of: %s}}]}",
    ],
)
def test_below_what_is_played_in_passes_weights_do_not_change(above, datasets):
    node = above % "{blend: [{path: x, weight: {linear: {0: 1, 9: 2}}}, {path: y}]}"
    with pytest.raises(SpecError, match=r"m.yaml:2:\d+: .*blend\[0\].weight: weights that change"):
        spec_of(node, datasets)
    spec_of(node, datasets, "val")


@pytest.mark.parametrize(
    "above", ["%s", "{blend: [{weight: 2, blend: [%s]}]}", "{epochize: {length: 5, of: %s}}"]
)
def test_below_what_goes_on_weights_may_change(above, datasets):
    node = above % "{blend: [{path: x, weight: {linear: {0: 1, 9: 2}, unit: samples}}, {path: y}]}"
    metadataset = parse_metadataset(f"splits: {{train: {node}}}")
    assert compile_split(metadataset, "train", open_source=datasets).follows_run


def test_a_share_that_changes_is_told_as_it_is_and_not_as_a_fraction(datasets):
    node = "{blend: [{path: x, weight: {linear: {0: 1, 9: 2}}}, {path: y}, {path: z, weight: 0}]}"
    metadataset = parse_metadataset(f"splits: {{train: {node}}}")
    spec = compile_split(metadataset, "train", open_source=datasets)
    rows = list(describe_tree(metadataset, "train", spec))
    assert [row.fraction for row in rows] == [1, None, None, 0]
    assert rows[1].share == Schedule("linear", ((0, 1), (9, 2)))
