"""Every file of examples/ runs, shows something, and is short."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("[0-9]*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_shows_something(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "it leaves something behind"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_less_than_60_lines_and_says_what_it_shows(path):
    lines = path.read_text().splitlines()
    assert len(lines) < 60
    assert lines[0].startswith('"""')


def test_there_are_examples():
    assert len(EXAMPLES) >= 5


def test_the_demo_resumes_exactly_in_new_processes_on_one_rank_and_on_two(tmp_path):
    demo = EXAMPLES[0].with_name("demo.py")
    done = subprocess.run(
        [sys.executable, str(demo)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for ranks in (1, 2):
        assert f"resumed on {ranks} rank(s): all 100 micro-batches are identical" in done.stdout
