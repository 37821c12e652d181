"""No change of a good file is accepted silently, and nothing but a SpecError comes out."""

from copy import deepcopy

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from yaml_text import parse_metadataset

from energy_data.config.load import load
from energy_data.errors import SpecError

GOOD = {
    "__module__": "megatron.energon",
    "__class__": "MetadatasetV2",
    "splits": {
        "train": {
            "blend": [
                {"weight": 5, "path": "./coco", "subflavors": {"a": 1}, "id": "coco"},
                {
                    "weight": 2.5,
                    "subset": {"range": ["0%", "50%"]},
                    "blend_epochized": [
                        {"path": "x", "repetitions": 1.5, "split_part": "val"},
                        {"path": "y", "repetitions": 2, "subset": {"range": [10, "end"]}},
                    ],
                },
                {"epochize": {"length": 1000, "of": {"path": "z", "tokens_per_sample": 5}}},
                {"repeat": {"times": 3, "of": {"concat": [{"path": "a"}, {"path": "b"}]}}},
                {
                    "join": [
                        {"path": "d", "split_config": "s.yaml"},
                        {"path": "e", "nonmatch": "skip"},
                    ],
                    "joiner": {"__module__": "m", "__class__": "C"},
                },
            ]
        },
        "val": {
            "path": "./coco",
            "subflavor": "s",
            "aux": {"a": "filesystem://f"},
            "dataset_config": "d.yaml",
            "shuffle_over_epochs_multiplier": 3,
        },
    },
}
REQUIRED = {"path", "blend", "blend_epochized", "epochize", "repeat", "concat", "length", "of"}
REQUIRED |= {"times", "range", "splits", "join"}
OR_NULL = {"subset", "subflavors", "subflavor", "split_part", "dataset_config", "split_config"}
OR_NULL |= {"aux", "shuffle_over_epochs_multiplier", "id", "joiner", "tokens_per_sample"}
OR_NULL |= {"__class__"}
FREE = {"a"}  # names of the user's own


def places(data, path=()):
    """Yield the path of every key of a mapping in `data`."""
    if isinstance(data, dict):
        for name, value in data.items():
            if name not in FREE:
                yield (*path, name)
                yield from places(value, (*path, name))
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from places(value, (*path, number))


def changed(path, change):
    """Return GOOD after `change(mapping, key)` at a path."""
    data = deepcopy(GOOD)
    *above, name = path
    mapping = data
    for step in above:
        mapping = mapping[step]
    change(mapping, name)
    return data


def faults(data):
    """Return the faults of data, which must be the same as YAML and as a mapping."""
    with pytest.raises(SpecError) as as_text:
        parse_metadataset(yaml.safe_dump(data, sort_keys=False), name="m.yaml")
    with pytest.raises(SpecError) as as_mapping:
        load(data)
    assert sorted(line.split(": ", 1)[1] for line in as_text.value.faults) == sorted(
        line.split(": ", 1)[1] for line in as_mapping.value.faults
    )
    assert all(line.startswith("m.yaml:") for line in as_text.value.faults)
    return as_text.value.faults


PLACES = list(places(GOOD))
IDS = [".".join(map(str, path)) for path in PLACES]


def test_the_file_itself_is_good():
    assert parse_metadataset(yaml.safe_dump(GOOD, sort_keys=False)).splits == ("train", "val")


@pytest.mark.parametrize("path", PLACES, ids=IDS)
def test_a_key_with_a_typing_error_is_never_accepted(path):
    def misspell(mapping, name):
        mapping[name[:-2] + name[-1] + name[-2] if name[-1] != name[-2] else name + "s"] = (
            mapping.pop(name)
        )

    lines = faults(changed(path, misspell))
    assert any("unknown" in line or "must be" in line for line in lines)


@pytest.mark.parametrize("path", PLACES, ids=IDS)
@pytest.mark.parametrize("wrong", [{"x": 1}, [], [[]], None, -1, "", float("nan"), {}, "\x00"])
def test_a_value_of_another_type_is_never_accepted(path, wrong):
    if path[-1] == "subflavors" and isinstance(wrong, dict):
        pytest.skip("subflavors may be any mapping")
    if (path[-1], wrong) in (("aux", {}), ("shuffle_over_epochs_multiplier", -1)):
        pytest.skip("these are fine")
    if path[-1] in OR_NULL and wrong is None:
        pytest.skip("nothing there is the default, as in Energon")
    lines = faults(changed(path, lambda mapping, name: mapping.update({name: wrong})))
    assert lines


@pytest.mark.parametrize("path", PLACES, ids=IDS)
def test_a_key_that_is_missing_is_a_fault_or_its_default(path):
    data = changed(path, lambda mapping, name: mapping.pop(name))
    if path[-1] in REQUIRED or "joiner" in path[:-1]:
        assert faults(data)
    else:
        assert load(data).splits


@pytest.mark.parametrize("path", PLACES, ids=IDS)
def test_a_key_given_twice_is_never_accepted(path):
    text = yaml.safe_dump(
        changed(path, lambda mapping, name: mapping.update({"DUP": mapping[name]}))
    )
    with pytest.raises(SpecError, match=f"duplicate key '{path[-1]}', first used in line"):
        parse_metadataset(text.replace("DUP", path[-1]))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["path", "blend", "weight", "splits", "train", "of", "length", "repeat"]
            )
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(PLAIN, st.sampled_from(PLACES))
def test_any_data_anywhere_is_accepted_or_a_spec_error(data, path):
    try:
        load(changed(path, lambda mapping, name: mapping.update({name: data})))
    except SpecError as error:
        assert error.faults  # noqa: PT017 - both ways are right


@given(st.binary(max_size=300))
def test_any_bytes_are_a_spec_error(data):
    with pytest.raises(SpecError):
        parse_metadataset(data)


@given(st.integers(0, 2000), st.sampled_from(list("{}[],:&*!<-? \n#'\"%|>\t\x00")))
def test_any_sign_put_into_a_good_file_is_accepted_or_a_spec_error(at, sign):
    text = yaml.safe_dump(GOOD, sort_keys=False)
    at %= len(text)
    try:
        parse_metadataset(text[:at] + sign + text[at:])
    except SpecError as error:
        assert error.faults  # noqa: PT017 - both ways are right
