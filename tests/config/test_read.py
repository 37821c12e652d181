import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energy_data.config import yaml_nodes
from energy_data.config.yaml_nodes import Diagnostics, read_data, read_text


def read_all(text):
    faults = Diagnostics()
    value = read_text(text, "m.yaml", faults)
    return value, faults.messages()


def plain(text):
    value, faults = read_all(text)
    assert faults == []
    return value.plain()


def fault(text):
    _, faults = read_all(text)
    assert len(faults) == 1, faults
    return faults[0]


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("5", 5),
        ("-1_000", -1000),
        ("0x1F", 31),
        ("2.5", 2.5),
        (".5", 0.5),
        ("1e-3", 0.001),
        ("1.5e+3", 1500.0),
        ("-.inf", -math.inf),
        ("yes", True),
        ("Off", False),
        ("~", None),
        ("2024-01-01", "2024-01-01"),
        ("'5'", "5"),
        ('"yes"', "yes"),
        ("10%", "10%"),
        ("./a-{000..099}.tar", "./a-{000..099}.tar"),
        ("1__0", "1__0"),
        ("-", None),
    ],
)
def test_scalars_mean_what_they_look_like(text, meaning):
    assert plain(f"a: {text}\n" if text != "-" else "a:\n") == {"a": meaning}


def test_not_a_number_is_read_as_a_number():
    assert math.isnan(plain("a: .nan")["a"])


@pytest.mark.parametrize("text", ["010", "1:30", "0b11", "0o7", "-007", "9" * 101, "1e-400"])
def test_numbers_that_readers_disagree_on_are_refused(text):
    assert fault(f"a: {text}").startswith("m.yaml:1:4: invalid number, found '")


def test_keys_and_values_know_their_places():
    value, _ = read_all("a:\n  - b\n  - {cd: e}\n")
    inner = value.data["a"].data[1]
    assert [str(inner.place), str(inner.keys["cd"]), str(inner.data["cd"].place)] == [
        "m.yaml:3:5",
        "m.yaml:3:6",
        "m.yaml:3:10",
    ]


def test_aliases_share_and_merge_keys_fill_in():
    text = "a: &x {p: 1, q: 2}\nb: *x\nc: {<<: *x, q: 3}\nd: {<<: [{p: 4}, *x]}\n'<<': 5\n"
    assert plain(text) == {
        "a": {"p": 1, "q": 2},
        "b": {"p": 1, "q": 2},
        "c": {"p": 1, "q": 3},
        "d": {"p": 4, "q": 2},
        "<<": 5,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "m.yaml:3:1: duplicate key 'a', first used in line 1. Keep one."),
        (
            "a: !!python/object/apply:os.system [x]",
            "m.yaml:1:4: tags are not allowed, found 'tag:yaml.org,2002:python/object/apply:"
            "os.system'. A metadataset is plain data: remove the tag.",
        ),
        (
            "a: !!str 5",
            "m.yaml:1:4: tags are not allowed, found 'tag:yaml.org,2002:str'. A metadataset is "
            "plain data: remove the tag.",
        ),
        ("5: a", "m.yaml:1:1: keys must be text, found the number 5. Quote it."),
        ("on: a", "m.yaml:1:1: keys must be text, found the flag true. Quote it."),
        ("[x]: a", "m.yaml:1:1: keys must be text, found [x]. Quote it."),
        (
            "a: *x",
            "m.yaml:1:4: undefined alias. Define it above with `&name` before a value.",
        ),
        (
            "a: &x [*x]",
            "m.yaml:1:4: the value contains itself through an alias. Remove the alias.",
        ),
        (
            "a: {<<: 5}",
            "m.yaml:1:9: `<<` merges mappings, found the number 5. Use an alias of one.",
        ),
        (
            "a: 1\n---\nb: 2\n",
            "m.yaml:2:1: more than one document in the file. Remove the `---` and everything after "
            "it.",
        ),
        ("", "m.yaml: the file is empty. Write `splits:` with a split."),
        (
            "a: [1, 2\nb: 3\n",
            "m.yaml:2:2: not valid YAML, did not find expected ',' or ']'. Check this line "
            "and the one above for a missing quote, colon or bracket, or a tab.",
        ),
        ("a: \ud800", "m.yaml: not UTF-8, found the character 0xd800. Save the file as UTF-8."),
        (b"a: b\n\xff\n", "m.yaml:2:1: not UTF-8, found the byte 0xff. Save the file as UTF-8."),
    ],
)
def test_faults_say_where_what_and_what_to_do(text, expected):
    assert fault(text) == expected


def test_all_errors_of_a_text_are_reported_from_top_to_bottom():
    _, faults = read_all("a: !x 1\na: 010\n5: y\n")
    assert [line.split(" ")[0] for line in faults] == [
        "m.yaml:1:4:",
        "m.yaml:2:1:",
        "m.yaml:2:4:",
        "m.yaml:3:1:",
    ]


def test_a_bomb_of_aliases_is_an_error_not_a_hang():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    assert "too large, more than 1,000,000 values" in fault("\n".join(lines))


def test_a_bomb_of_merge_keys_is_an_error_not_a_hang(monkeypatch):
    monkeypatch.setattr(yaml_nodes, "MAX_VALUES", 1000)
    lines = ["a0: &a0 {" + ", ".join(f"k{n}: [x, x]" for n in range(20)) + "}"]
    lines += [f"a{n}: &a{n} {{<<: *a{n - 1}}}" for n in range(1, 50)]
    assert "too large" in fault("\n".join(lines))


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_is_an_error_not_a_crash(opening):
    assert "nested too deeply, more than 100 levels" in fault(opening * 50_000)


def test_a_huge_file_is_not_read(monkeypatch):
    monkeypatch.setattr(yaml_nodes, "MAX_BYTES", 10)
    assert fault("a: " + "b" * 10).startswith("m.yaml: too large, found 13 bytes where 10")


def test_python_data_and_its_yaml_are_the_same_value():
    data = {"a": [1, 2.5, None, True, "x"], "b": {"c": ("y",)}}
    faults = Diagnostics()
    value = read_data(data, "<mapping>", faults)
    assert value.plain() == plain("a: [1, 2.5, ~, true, x]\nb: {c: [y]}")
    assert faults.messages() == []


def test_python_data_that_is_not_plain_is_an_error_that_names_the_key():
    faults = Diagnostics()
    read_data({"a": [{1, 2}], 5: 6}, "<mapping>", faults)
    assert faults.messages() == [
        "<mapping>: a[0]: must be plain data, found a set. Use dict, list, str, numbers, bool or "
        "None.",
        "<mapping>: 5: keys must be text, found the number 5. Quote it.",
    ]


def test_python_data_that_contains_itself_is_an_error():
    data = {}
    data["a"] = [data, data]
    faults = Diagnostics()
    assert read_data(data, "<mapping>", faults) is None
    assert "too deeply" in faults.messages()[0]


@given(st.binary(max_size=200) | st.text(max_size=200))
def test_any_text_is_a_value_or_faults(text):
    value, faults = read_all(text)
    assert value is not None or faults


@given(st.text("{}[],:&*!<-? \n#'\"ab01%|>\t", max_size=60))
def test_any_punctuation_is_a_value_or_faults(text):
    value, faults = read_all(text)
    assert value is not None or faults


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("~", "nothing"),
        ("yes", "the flag true"),
        ("x", "the text 'x'"),
        ('"a\\nb"', "the text 'a\\nb'"),
        ("2.5", "the number 2.5"),
        ("[a, ~, {b: [off]}]", "[a, null, {b: [false]}]"),
        (f"[{'x' * 60}]", "a list of 1"),
        ('{"a": "\\n"}', "a mapping with 'a'"),
        (f"{{{', '.join(f'key{n}: x' for n in range(20))}}}",
         "a mapping with 'key0, key1, key2, key3, key4, key5, key6, key7, key8, key...'"),
    ],
)  # fmt: skip
def test_what_was_found_is_reported_on_one_short_line(text, found):
    value, _ = read_all(text)
    assert value.describe() == found
