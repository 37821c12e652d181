"""Commands start fast: they import what they need. `--version` reports what is installed."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from energy_data.data.tar import native

IMPORTED = """
import sys
from click.testing import CliRunner

def imported():
    heavy = ("numpy", "rich", "torch", "energy_data.public", "energy_data.loading")
    return [name for name in heavy if name in sys.modules]

import energy_data
print("package", *imported())
from energy_data.cli.main import main
for arguments in (["--version"], ["--help"], ["check", sys.argv[1]]):
    assert CliRunner().invoke(main, arguments).exit_code == 0
    print(arguments[0], *imported())
print(energy_data.WorkerConfig().num_workers, "torch" in sys.modules)
"""


@pytest.mark.parametrize(("setting", "how"), [("1", "compiled"), ("0", "not compiled: reading")])
def test_it_reports_the_version_and_whether_it_is_compiled(setting, how):
    if setting == "1" and native.TAR is None:
        pytest.skip("installed without a compiler")
    command = [sys.executable, "-m", "energy_data.cli.main", "--version"]
    environ = os.environ | {"ENERGY_DATA_COMPILED": setting}
    output = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    assert f"version {version('energy_data')}, {how}" in output


def test_the_package_and_its_commands_import_no_more_than_they_need(dataset, write):
    parts = [f"{{path: {dataset(name, 2)}, weight: 1}}" for name in "abc"]
    meta = write("meta.yaml", f"splits: {{train: {{blend: [{', '.join(parts)}]}}}}")
    command = [sys.executable, "-c", IMPORTED, str(meta)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["package", "--version", "--help", "check numpy", "0 True"]
