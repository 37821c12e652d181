"""`energy-data --version` says what is installed."""

from importlib.metadata import version

from click.testing import CliRunner

from energy_data import compiled
from energy_data.cli.main import main


def test_it_says_whether_it_is_compiled():
    said = CliRunner().invoke(main, ["--version"], prog_name="energy-data").output
    told = "compiled" if compiled.TAR and compiled.COPY else "not compiled: takes longer"
    assert said == f"energy-data, version {version('energy_data')}, {told}\n"
