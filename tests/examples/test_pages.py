"""README.md, CONTRIBUTING.md and docs/*.md tell the truth.

A page is one session in one folder. Its blocks marked `runnable` run from top to bottom: `python`
as one module, or it is written to the file that its first line names; `yaml` is checked and written
likewise, `toml` is written; of a `console` the commands behind `$` run and print what is shown
(`...` stands for anything). Tests, files and links that a page names must exist.
"""

import os
import re
import subprocess
import sys
import tomllib
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from functools import cache
from pathlib import Path

import pytest
from yaml_text import parse_metadataset

from energy_data.config.schema import KINDS
from energy_data.data import registry
from energy_data.loading.checkpoint.run_state import VERSION

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|yaml|toml|console) runnable\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
FILE = re.compile(r"`([a-z_/]+/\w+\.(?:py|c|h))`")
LINK = re.compile(r"\]\((?!\w+:|#)([^)#]+)(?:#[^)]*)?\)")


def run_python(text, names):
    if name := re.match(r"# (\S+\.py)\n", text):
        Path(name[1]).write_text(text)
        return
    exec(compile(text, "page", "exec"), names)


def run_yaml(text, names):
    parse_metadataset(text, base_dir=Path.cwd())
    name = re.match(r"# (\S+\.yaml)\n", text)
    if name:
        Path(name[1]).write_text(text)


def run_toml(text, names):
    Path(re.match(r"# (\S+\.toml)\n", text)[1]).write_text(text)


def run_console(text, names):
    scripts = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        done = subprocess.run(
            command,
            shell=True,
            env={**os.environ, "PATH": scripts},
            capture_output=True,
            text=True,
            check=False,
        )
        printed = done.stdout + done.stderr
        fits = OutputChecker().check_output(shown, printed, ELLIPSIS | NORMALIZE_WHITESPACE)
        assert fits, f"$ {command}\nprinted\n{printed}\nand not\n{shown}"


RUN = {"python": run_python, "yaml": run_yaml, "toml": run_toml, "console": run_console}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_runnable_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(KINDS, "repeat", KINDS["repeat"])  # pages may add to it
    monkeypatch.setattr(sys, "path", [*sys.path])  # and install packages
    installed = cache(registry.installed_formats.__wrapped__)
    monkeypatch.setattr(registry, "installed_formats", installed)
    names = {"__name__": "page"}
    for kind, text in BLOCK.findall(page.read_text()):
        RUN[kind](text, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_and_links_of_a_page_exist(page):
    text = page.read_text()
    for file, name in TEST.findall(text):
        assert (ROOT / file).is_file(), file
        assert not name or f"def {name}(" in (ROOT / file).read_text(), name
    for file in FILE.findall(text):
        assert any((root / file).is_file() for root in (ROOT, ROOT / "energy_data")), file
    for link in LINK.findall(text):
        assert (page.parent / link).exists(), link


def test_the_page_about_states_describes_the_version_of_the_code():
    assert f"# State format, version {VERSION}\n" in (ROOT / "docs" / "state.md").read_text()


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_a_page_shows_the_layers_of_the_import_rule(page):
    rule = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (layers,) = (
        one["layers"] for one in rule["tool"]["importlinter"]["contracts"] if "layers" in one
    )
    assert "\n".join(["```text", *layers, "```"]) in (ROOT / page).read_text()


def test_the_readme_is_short_and_has_blocks_of_every_kind():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert {kind for kind, _ in BLOCK.findall(text)} == {"python", "yaml", "console"}


def test_the_page_about_guarantees_names_a_test_for_each():
    rows = re.findall(r"^\| [^|]+\. \| (.*) \|$", (ROOT / "docs/guarantees.md").read_text(), re.M)
    assert len(rows) >= 40
    assert all(TEST.search(row) for row in rows)
