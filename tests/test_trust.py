"""What code files may name."""

import json
import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from types import ModuleType

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


class Base:
    pass


class Derived(Base):
    pass


def test_a_derived_class_that_is_imported_may_be_named_and_nothing_else():
    assert ImportPolicy().find(__name__, "Derived", base=Base) is Derived
    for name in ("json", "no_such_name", "find_spec"):
        with pytest.raises(SpecError, match=f"import {__name__} before, pass allow_modules="):
            ImportPolicy().find(__name__, name, base=Base)
    with pytest.raises(SpecError, match="unknown code"):
        ImportPolicy().find(__name__, "Derived", base=SpecError)


def test_looking_for_an_imported_class_imports_and_runs_nothing(monkeypatch):
    spec = find_spec("this")  # which prints a poem when it is run
    spec.loader = LazyLoader(spec.loader)
    lazy, asked = module_from_spec(spec), ModuleType("asked")
    spec.loader.exec_module(lazy)
    asked.__getattr__ = None  # to call it would be a TypeError
    monkeypatch.setitem(sys.modules, "this", lazy)
    monkeypatch.setitem(sys.modules, "asked", asked)
    for name in ("asked", "this", "antigravity"):
        with pytest.raises(SpecError, match="unknown code"):
            ImportPolicy().find(name, "Derived", base=Base)
    assert type(lazy) is not ModuleType  # as long as it waits
    assert "antigravity" not in sys.modules
