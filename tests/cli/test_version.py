"""`energy-data --version` says what is installed."""

from importlib.metadata import version

import pytest
from click.testing import CliRunner

from energy_data.cli.main import how_compiled, main
from energy_data.data.tar import native


@pytest.mark.skipif(not (native.TAR and native.COPY), reason="installed without a compiler")
def test_it_says_which_version_and_that_it_is_compiled():
    said = CliRunner().invoke(main, ["--version"], prog_name="energy-data").output
    assert said == f"energy-data, version {version('energy_data')}, compiled\n"


@pytest.mark.parametrize(
    ("tar", "copy", "said"),
    [
        (1, 1, "compiled"),
        (1, None, "not compiled, so slower: copying"),
        (None, None, "not compiled, so slower: reading and copying"),
    ],
)
def test_it_says_what_is_not_compiled(tar, copy, said):
    assert how_compiled({"reading": tar, "copying": copy}) == said
