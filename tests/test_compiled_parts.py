"""What is compiled may be missing, and is used only with the Python files it was written for."""

import re
import tomllib
from pathlib import Path

import pytest

from energy_data.data.tar import native

PARTS = {"data.tar._tar": native.TAR, "loading._copy": native.COPY}

of_each = pytest.mark.parametrize("name", PARTS)
where_compiled = pytest.mark.skipif(None in PARTS.values(), reason="installed without a compiler")


@where_compiled
@of_each
@pytest.mark.parametrize(("said", "used"), [("0", False), ("1", True), ("", True)])
def test_one_can_do_without_it(monkeypatch, name, said, used):
    monkeypatch.setenv("ENERGY_DATA_COMPILED", said)
    assert (native._load(name, PARTS[name].VERSION) is not None) == used


@where_compiled
@of_each
def test_it_is_not_used_if_it_was_compiled_from_other_sources(monkeypatch, caplog, name):
    monkeypatch.setattr(PARTS[name], "VERSION", 0)
    assert native._load(name, 1) is None
    assert "was compiled from other sources, and is not used" in caplog.text


@of_each
def test_there_may_be_none(name):
    assert native._load(f"{name}_that_was_not_compiled", 1) is None


def test_wheels_are_for_the_versions_of_python_that_the_c_is_for():
    root = Path(__file__).parent.parent
    said = tomllib.loads((root / "pyproject.toml").read_text())
    headers = [*(root / "energy_data").rglob("_*.h")]
    assert len(headers) == len(PARTS)
    for header in headers:
        (hexadecimal,) = re.findall(r"#define Py_LIMITED_API 0x03(..)0000 ", header.read_text())
        tag = f"cp3{int(hexadecimal, 16)}"
        assert said["tool"]["distutils"]["bdist_wheel"]["py-limited-api"] == tag
