"""`energy-data --version` says what is installed."""

from importlib.metadata import version

from click.testing import CliRunner

from energy_data.cli.main import main
from energy_data.sources.compiled import TAR


def test_it_says_whether_reading_is_compiled():
    said = CliRunner().invoke(main, ["--version"], prog_name="energy-data").output
    told = "compiled" if TAR else "not compiled: reading takes longer"
    assert said == f"energy-data, version {version('energy_data')}, {told}\n"
