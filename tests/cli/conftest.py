"""Small datasets, and the command line in this process."""

import io
import json
import tarfile
from textwrap import dedent

import pytest
from click.testing import CliRunner

from energy_data.cli.main import main


@pytest.fixture
def dataset(tmp_path):
    """Return a function that writes shards of so many samples each, and returns their folder."""

    def dataset(name, *sizes):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for shard, size in enumerate(sizes):
            with tarfile.open(folder / f"shard-{shard}.tar", "w") as tar:
                for number in range(size):
                    data = json.dumps({"number": number}).encode()
                    member = tarfile.TarInfo(f"{name}-{shard}-{number}.json")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        return folder

    return dataset


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a text file into the folder of the test."""

    def write(name, text):
        path = tmp_path / name
        path.write_text(dedent(text))
        return path

    return write


@pytest.fixture
def energy_data(tmp_path, monkeypatch):
    """Return a function that runs a command in the folder of the test.

    answers: what is typed.
    """
    monkeypatch.chdir(tmp_path)

    def energy_data(*arguments, answers=None):
        return CliRunner().invoke(main, [str(argument) for argument in arguments], answers)

    return energy_data
