"""`energy-data`: runs a command and prints its errors without a traceback."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import IO, Any

import click

from energy_data.data.tar import native
from energy_data.errors import MIRROR, EnergyDataError, shown

COMMANDS = {
    "check": ("energy_data.cli.check", "Check metadatasets, and the datasets they name."),
    "import-stages": (
        "energy_data.cli.import_stages",
        "Write the data stages of a TOML as a metadataset.",
    ),
    "info": ("energy_data.cli.info", "Show what datasets hold: samples, shards, sizes, fields."),
    "inspect": (
        "energy_data.cli.inspect",
        "Show the tree of a metadataset, and what a run draws of it.",
    ),
    "plan": ("energy_data.cli.plan", "Show the stages of a run, and what an edit changes."),
    "prepare": ("energy_data.cli.prepare", "Prepare a dataset, or the joins in a metadataset."),
    "prepare-media": (
        "energy_data.cli.prepare_media",
        "Record sizes and lengths of media files below a folder.",
    ),
    "prepare-tokens": (
        "energy_data.cli.prepare_tokens",
        "Count the tokens of each text or conversation.",
    ),
    "preview": ("energy_data.cli.preview", "Show samples, or write their parts as files."),
    "schema": ("energy_data.cli.check:schema_command", "Print the JSON Schema of metadatasets."),
    "simulate": (
        "energy_data.cli.simulate",
        "Show what a run would ask of an object store.",
    ),
    "state": ("energy_data.cli.state", "Show and merge saved states."),
}
"""Name of a command -> its module, with the attribute if it is not `command`; and what it does."""

OF_ENERGON = {
    "analyze-debug": "read `__restore_key__` and `loader.stats()` in the program",
    "checkpoint": "run `energy-data state`",
    "lint": "run `energy-data check --samples`",
    "mount": "run `energy-data preview --save`",
}
"""Name of a command of Energon -> what does it here."""

_COMPILED = "compiled" if native.TAR else "not compiled: reading tars is slower"


class Failure(click.ClickException):
    """An error of this package, shown as its message alone; exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message to stderr, as it is: its lines begin with a place."""
        click.echo(self.message, file=file, err=file is None)


class Commands(click.Group):
    """The commands of `COMMANDS`; each is imported when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute or "command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write what the commands do. Imports none of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command. UsageError that says what to use in place of one of Energon."""
        if (instead := OF_ENERGON.get(args[0])) is not None:
            ctx.fail(f"{args[0]!r} is a command of Energon. Instead, {instead}.")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Errors of this package and of files are shown without a traceback."""
        try:
            return super().invoke(ctx)
        except EnergyDataError as error:
            raise Failure("\n".join([str(error), *getattr(error, "__notes__", [])])) from error
        except click.UsageError as error:
            if MIRROR not in error.message:
                raise
            raise click.UsageError(shown(error.message), error.ctx) from error
        except OSError as error:
            if error.filename is None:  # such as a closed pipe, which click handles
                raise
            raise Failure(f"{error.filename}: {error.strerror}.") from error


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("energy_data"), message=f"%(prog)s, version %(version)s, {_COMPILED}")
def main() -> None:
    """Prepare, check and inspect the datasets and metadatasets that energy_data trains on.

    A metadataset is a YAML file that says which datasets a run reads, and how often.
    """


if __name__ == "__main__":
    main()
