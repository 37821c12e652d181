"""The compiled part may be missing, and is used only with the Python files it was written for."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from energy_data.data.tar import native

where_compiled = pytest.mark.skipif(native.TAR is None, reason="installed without a compiler")


@where_compiled
@pytest.mark.parametrize(("setting", "used"), [("0", False), ("1", True), ("", True)])
def test_the_environment_may_disable_it(monkeypatch, setting, used):
    monkeypatch.setenv("ENERGY_DATA_COMPILED", setting)
    assert (native._load() is not None) == used


@where_compiled
def test_it_is_not_used_if_it_was_compiled_from_other_sources(monkeypatch, caplog):
    monkeypatch.setattr(native.TAR, "VERSION", 0)
    assert native._load() is None
    assert "was compiled from other sources and is not used" in caplog.text


def test_it_may_be_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "energy_data.data.tar._tar", None)  # importing it fails
    assert native._load() is None


def test_wheels_are_for_the_versions_of_python_that_the_c_is_for():
    root = Path(__file__).parent.parent
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    (header,) = (root / "energy_data").rglob("_*.h")
    (hexadecimal,) = re.findall(r"#define Py_LIMITED_API 0x03(..)0000 ", header.read_text())
    tag = f"cp3{int(hexadecimal, 16)}"
    assert settings["tool"]["distutils"]["bdist_wheel"]["py-limited-api"] == tag
