"""`energy-data --version` reports what is installed."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest

from energy_data.data.tar import native

COMMAND = [sys.executable, "-m", "energy_data.cli.main", "--version"]


@pytest.mark.parametrize(("setting", "how"), [("1", "compiled"), ("0", "not compiled: reading")])
def test_it_reports_the_version_and_whether_it_is_compiled(setting, how):
    if setting == "1" and native.TAR is None:
        pytest.skip("installed without a compiler")
    environ = os.environ | {"ENERGY_DATA_COMPILED": setting}
    output = subprocess.run(COMMAND, env=environ, capture_output=True, text=True, check=True).stdout
    assert f"version {version('energy_data')}, {how}" in output
