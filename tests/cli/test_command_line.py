import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from energy_data.cli import main as command_line
from energy_data.errors import EnergyDataError

PROGRAM = Path(sys.executable).with_name("energy-data")


def real(*arguments, folder):
    return subprocess.run(
        [PROGRAM, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )


def test_the_installed_program_ends_with_1_and_the_message_alone(tmp_path):
    done = real("inspect", "missing.yaml", folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("missing.yaml: there is no metadataset 'missing.yaml' in ")
    assert "Traceback" not in done.stderr


def test_the_list_of_commands_says_of_each_what_it_does(energy_data):
    lines = energy_data("--help").output.splitlines()
    commands = {name: command_line.main.get_command(None, name) for name in command_line.COMMANDS}
    for name, command in commands.items():
        assert f"  {name:<16}{command.get_short_help_str(100)}" in lines


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_every_command_of_the_table_has_help_and_so_have_its_options(energy_data, name):
    done = energy_data(name, "--help")
    assert done.exit_code == 0
    assert done.output.startswith(f"Usage: main {name} ")
    assert max(map(len, done.output.splitlines())) <= 80
    assert "\\b" not in done.output  # which keeps the lines of a paragraph
    command = command_line.main.get_command(None, name)
    options = [one for one in command.params if isinstance(one, click.Option)]
    assert [one.name for one in options if not one.help] == []


@pytest.mark.parametrize(
    "arguments", [["inspct"], ["inspect"], ["check"], ["prepare", "missing"], ["schema", "--what"]]
)
def test_wrong_usage_ends_with_2(energy_data, arguments):
    assert energy_data(*arguments).exit_code == 2


@pytest.mark.parametrize("name", command_line.OF_ENERGON)
def test_a_command_of_energon_says_what_to_use_instead(energy_data, name):
    done = energy_data(name, "books")
    assert done.exit_code == 2
    assert f"{name!r} is a command of Energon. Instead, " in done.stderr
    named = re.findall("`energy-data ([a-z-]+)", done.stderr)
    assert set(named) <= set(command_line.COMMANDS)


def test_notes_of_an_error_are_told_with_it(energy_data, monkeypatch):
    error = EnergyDataError("shard 3: it is damaged.")
    error.add_note("meta.yaml:4:7: leaf 'books'")
    monkeypatch.setattr("energy_data.cli.check.metadataset_schema", raiser(error))
    done = energy_data("schema")
    assert (done.exit_code, done.stderr) == (
        1,
        "shard 3: it is damaged.\nmeta.yaml:4:7: leaf 'books'\n",
    )


def test_an_error_of_the_system_names_its_file(energy_data, monkeypatch):
    error = PermissionError(13, "Permission denied", "/data/books")
    monkeypatch.setattr("energy_data.cli.check.metadataset_schema", raiser(error))
    done = energy_data("schema")
    assert (done.exit_code, done.stderr) == (1, "/data/books: Permission denied.\n")


def test_a_mistake_of_ours_keeps_its_traceback(energy_data, monkeypatch):
    monkeypatch.setattr("energy_data.cli.check.metadataset_schema", raiser(ZeroDivisionError()))
    assert isinstance(energy_data("schema").exception, ZeroDivisionError)


def raiser(error):
    def raises():
        raise error

    return raises
