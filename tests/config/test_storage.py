"""`storage` in a metadataset: options of stores by prefixes of URLs, and never a credential."""

from __future__ import annotations

import pytest
import yaml
from jsonschema import Draft202012Validator

from energy_data.config.leaves import leaf_uses
from energy_data.config.load import load
from energy_data.config.schema import metadataset_schema
from energy_data.errors import SpecError

PATHS = "splits: {{train: {{blend: [{}]}}}}"
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY00"


def options(metadataset):
    return [dict(part.storage) for leaf in leaf_uses(load(metadataset).tree("train"))
            for part in leaf.parts]  # fmt: skip


def meta(storage, *paths):
    blend = ", ".join(f"{{path: '{path}'}}" for path in paths)
    return f"storage: {storage}\n{PATHS.format(blend)}\n"


def is_valid(storage):
    """Whether the JSON Schema accepts it."""
    return Draft202012Validator(metadataset_schema()).is_valid(
        yaml.safe_load(meta(storage, "s3://a/x"))
    )


def errors(path):
    with pytest.raises(SpecError) as caught:
        load(path)
    return str(caught.value)


def test_a_url_has_the_options_of_its_longest_prefix_only(write):
    storage = "{s3://a: {region: r}, s3://a/b: {endpoint: 'http://m'}, s3://a/b/c: {}}"
    urls = ("s3://a/x", "s3://a/b/x", "s3://a//b/x", "s3://a/bb/x", "s3://a/b/c/x", "s3://ab/x")
    m, r = {"endpoint": "http://m"}, {"region": "r"}
    assert options(write("m.yaml", meta(storage, *urls))) == [r, m, m, r, {}, {}]


def test_datasets_of_a_join_have_options_of_their_own(write):
    join = "splits: {train: {join: [{path: s3://a/x}, {path: s3://b/x}]}}"
    found = options(write("m.yaml", f"storage: {{s3://b: {{region: r}}}}\n{join}"))
    assert found == [{}, {"region": "r"}]


def test_all_files_have_the_options_of_all(write):
    write("in.yaml", meta("{s3://b: {region: inner}}", "s3://a/x", "s3://b/x"))
    outer = meta("{s3://a: {region: outer}}", "in.yaml", "s3://b/y")
    found = options(write("out.yaml", outer))
    assert [one["region"] for one in found] == ["outer", "inner", "inner"]


def test_two_files_with_other_options_for_a_prefix_are_an_error_with_both_places(write):
    write("in.yaml", meta("{s3://a: {region: r2}}", "s3://a/x"))
    found = errors(write("out.yaml", meta("{s3://a: {region: r1}}", "in.yaml")))
    assert "in.yaml:1:11: storage: s3://a has other options at " in found
    assert "out.yaml:1:11, found {'region': 'r2'} and {'region': 'r1'}." in found


def test_two_files_with_the_same_options_are_fine(write):
    write("in.yaml", meta("{s3://a: {region: r, anonymous: false}}", "s3://a/x"))
    found = options(write("out.yaml", meta("{s3://a: {region: r}}", "in.yaml")))
    assert found == [{"region": "r"}]


@pytest.mark.parametrize(
    "storage",
    [
        f"{{s3://a: {{access_key: {SECRET}}}}}",
        f"{{s3://a: {{aws_secret_access_key: {SECRET}}}}}",
        f"{{s3://a: {{session_token: {SECRET}}}}}",
        f"{{az://a: {{account_key: {SECRET}}}}}",
        f"{{az://a: {{sas: {SECRET}}}}}",
        f"{{gs://a: {{token: {SECRET}}}}}",
        f"{{s3://a: {{profile: {SECRET}}}}}",
        f"{{s3://a: {{endpoint: 'http://me:{SECRET}@host'}}}}",
        f"{{s3://a: {{endpoint: 'http://host?key={SECRET}'}}}}",
        f"{{'s3://me:{SECRET}@a': {{}}}}",
        f"{{'https://host/?{SECRET}': {{}}}}",
        f"{{s3://a: {SECRET}}}",
        f"[{SECRET}]",
        SECRET,
    ],
)
def test_a_credential_is_refused_and_not_shown(storage, write):
    found = errors(write("m.yaml", meta(storage, "s3://a/x")))
    assert found.startswith("m.yaml:1:") or "/m.yaml:1:" in found
    assert SECRET not in found
    assert not is_valid(storage)


@pytest.mark.parametrize(
    ("storage", "problem"),
    [
        ("{s3://a: {token: x}}", "1:20: storage.s3://a: 'token' is a credential, and a metadataset"
         " has none. Set it in the environment, or write it into a profile"),
        ("{s3://a: {profile: AKIAIOSFODNN7EXAMPLE}}", "must be the name of a profile in ~/.aws"),
        ("{s3://a: {regoin: x}}", "unknown option 'regoin'. Did you mean 'region'?"),
        ("{gs://a: {endpoint: x}}", "unknown option 'endpoint', known here: anonymous."),
        ("{s3://a: {anonymous: maybe}}", "1:31: storage.s3://a.anonymous: must be true or false"),
        ("{s3://a: {anonymous: true, profile: x}}", "requests are anonymous, or of a profile."),
        ("{https://a: {}}", "'https://a' is no bucket or folder of s3://, gs:// or az://."),
        ("{s3://a/*.tar: {}}", "is no bucket or folder of"),
        ("{s3://a: x}", "must be a mapping of options"),
        ("x", "must be a mapping of prefixes of URLs to options"),
    ],
)  # fmt: skip
def test_an_error_names_the_place_and_what_to_do(storage, problem, write):
    assert problem in errors(write("m.yaml", meta(storage, "s3://a/x")))
    assert not is_valid(storage)


@pytest.mark.parametrize(
    "storage",
    [
        "~",
        "{}",
        "{s3://a: {}, s3://a/b/c-d: {endpoint: 'https://h:9000/x', region: eu-west-1}}",
        "{s3://a: {profile: my profile}, az://c: {account: ours, anonymous: true}}",
        "{gs://a: {anonymous: false}}",
    ],
)
def test_options_load_and_editors_accept_them(storage, write):
    load(write("m.yaml", meta(storage, "s3://a/x")))
    assert is_valid(storage)


def test_options_change_neither_ids_nor_the_tree(write):
    plain = write("plain.yaml", meta("{}", "s3://a/x", "s3://b/y"))
    other = write("other.yaml", meta("{s3://a: {endpoint: 'http://m'}}", "s3://a/x", "s3://b/y"))
    ids = [[leaf.id for leaf in leaf_uses(load(one).tree("train"))] for one in (plain, other)]
    assert ids[0] == ids[1] == ["s3://a/x:train", "s3://b/y:train"]
