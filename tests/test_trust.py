"""What code files may name."""

import json

import pytest

from energy_data.data.import_policy import ImportPolicy
from energy_data.errors import SpecError


@pytest.mark.parametrize(
    ("module", "allowed"),
    [("json", True), ("json.decoder", True), ("jsonschema", False), ("os", False)],
)
def test_a_module_is_allowed_with_all_in_it(module, allowed):
    assert ImportPolicy.of(["json"]).allows(module) is allowed


def test_what_is_allowed_is_imported():
    assert ImportPolicy.of("json").find("json", "loads") is json.loads
    with pytest.raises(SpecError, match=r"json\.lodas cannot be imported"):
        ImportPolicy.of("json").find("json", "lodas")


def test_the_environment_allows_too(monkeypatch):
    monkeypatch.setenv("ENERGY_DATA_ALLOW_MODULES", "json, os.path")
    assert ImportPolicy.of().modules == {"json", "os.path"}


@pytest.mark.parametrize("module", ["os", "megatron.energon", "energy_data", "megatron.energon.x"])
def test_what_is_not_known_is_refused_with_what_to_do(module):
    with pytest.raises(SpecError, match=r"unknown code.* pass allow_modules=\["):
        ImportPolicy().find(module, "system", {"known": 1})


def test_names_of_energon_are_looked_up_and_never_imported():
    assert ImportPolicy().find("megatron.energon.flavors", "known", {"known": 1}) == 1
    with pytest.raises(SpecError, match="unknown code"):
        ImportPolicy().find("elsewhere", "known", {"known": 1})
