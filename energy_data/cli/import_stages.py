"""`energy-data import-stages`: a trainer's TOML with data stages as a metadataset."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from energy_data.config.toml_metadataset import metadataset_text
from energy_data.config.toml_stages import read_run
from energy_data.errors import SpecError


@click.command("import-stages")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="META",
    help="The metadataset (.yaml) to write.  [default: standard output]",
)
@click.option("--force", is_flag=True, help="Replace a metadataset that exists.")
def command(file: str, output: Path | None, *, force: bool) -> None:
    """Write the data stages of a TOML as a metadataset.

    FILE is the configuration of a trainer, with [[training.data_stages]], or with the data of
    [training] alone. Relative paths in it start at the working folder.

    Comments in the metadataset say how to make the run, and what could not be carried over
    exactly. All problems of FILE are reported together, as `file: key: what is wrong, what was
    found. What to do.`, and the exit code is 1.
    """
    if output is not None and output.suffix not in (".yaml", ".yml"):
        raise click.UsageError(f"--output: a metadataset ends in .yaml, found {output}.")
    run = read_run(file)
    text = metadataset_text(run, file, "." if output is None else output.parent)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.exists() and not force:
        if not sys.stdin.isatty():
            advice = "Pass --force to replace it, or name another file."
            raise SpecError(f"{output}: it exists. {advice}")
        click.confirm(f"{output} exists. Replace it?", abort=True)
    output.write_text(text, encoding="utf-8")
    stages = len(run.stages) + (run.default is not None)
    click.echo(f"{output}: {stages} stage{'' if stages == 1 else 's'}")
