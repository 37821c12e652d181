"""`energy-data check` reports every error of files with its place; `schema` is for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from energy_data.cli.plan import is_staged, stream, summary
from energy_data.config.compile import compile_split
from energy_data.config.leaves import leaf_uses
from energy_data.config.load import LoadedMetadataset, load
from energy_data.config.schema import metadataset_schema
from energy_data.core.spec import Spec
from energy_data.data.registry import open_source
from energy_data.data.source import Source
from energy_data.errors import DataError, SpecError


@click.command("check")
@click.argument("meta", nargs=-1, required=True, metavar="META...")
@click.option("--split", metavar="NAME", help="Check this split only.  [default: all]")
@click.option("--no-data", is_flag=True, help="Read the files only; open no dataset.")
@click.pass_context
def command(ctx: click.Context, meta: tuple[str, ...], split: str | None, no_data: bool) -> None:
    """Check metadatasets, and the datasets they name.

    META is a metadataset (.yaml) or a dataset.

    Prints one line per valid file. Errors go to stderr, one line each, as
    `file:line:column: where: what is wrong, what was found. What to do.`, and the exit code is 1.
    """
    problems: dict[str, None] = {}  # in order, once each: files may name the same wrong file
    for path in meta:
        found, facts = _check(path, split, with_data=not no_data)
        problems |= dict.fromkeys(found)
        if not found:
            click.echo(f"{path}: fine; {'; '.join(facts)}")
    for problem in problems:
        click.echo(problem, err=True)
    if problems:
        ctx.exit(1)


def _check(path: str, split: str | None, *, with_data: bool) -> tuple[list[str], list[str]]:
    """Return the problems of a file and all it names, and a summary of each split."""
    try:
        metadataset = load(path, find_missing=with_data)
    except SpecError as error:
        return error.faults, []
    # A single dataset may have any split; training needs this one.
    splits = ("train",) if metadataset.root.any_split else metadataset.splits
    problems, facts = [], []
    for name in splits if split is None else (split,):
        try:
            if with_data:
                facts.append(f"{name}: {summary(_compiled(metadataset, name))}")
            else:
                count = len({leaf.id for leaf in leaf_uses(metadataset.tree(name))})
                facts.append(f"{name}: {count:,} {'leaf' if count == 1 else 'leaves'}")
        except SpecError as error:
            problems += error.faults
        except DataError as error:
            where = "".join(f"{note}: " for note in getattr(error, "__notes__", []))
            problems.append(f"{where}{error}")
    return problems, facts


def _compiled(metadataset: LoadedMetadataset, split: str) -> Spec:
    if split == "train" and is_staged(metadataset, split):
        params = {"seq_len": 1}  # any length will do
        return stream(metadataset, split, params=params, opened=_checked)
    return compile_split(metadataset, split, open_source=_checked)


def _checked(path: str | Path, **facts: Any) -> Source:
    """Open a dataset, and all files of it. SpecError for damage too: others are checked then."""
    try:
        source = open_source(path, **facts)
        source.check_files()
    except DataError as error:
        raise SpecError(str(error)) from error
    return source


_IN_AN_EDITOR = """\b
energy-data schema > metadataset.schema.json
# first line of the YAML, for the YAML language server:
# yaml-language-server: $schema=metadataset.schema.json
"""


@click.command("schema", epilog=_IN_AN_EDITOR)
def schema_command() -> None:
    """Print the JSON Schema of metadatasets.

    An editor that uses it completes keys and marks errors as you type.
    """
    click.echo(json.dumps(metadataset_schema(), indent=2))
