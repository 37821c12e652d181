"""`energy-data check` reports every error of files with its place; `schema` is for editors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import click

from energy_data.cli.leaves import compiled, open_declared, splits_of, summary
from energy_data.cli.options import counting, progress_option, workers_option
from energy_data.config.leaves import leaf_uses
from energy_data.config.load import load
from energy_data.config.opening import OpenSource
from energy_data.config.schema import metadataset_schema
from energy_data.data.registry import open_source
from energy_data.data.sample_check import check_samples
from energy_data.data.source import Source
from energy_data.errors import DataError, SampleError, SpecError, shown
from energy_data.nodes.leaf import Leaf, leaves_of


@click.command("check")
@click.argument("meta", nargs=-1, required=True, metavar="META...")
@click.option("--split", metavar="NAME", help="Check this split only.  [default: all]")
@click.option("--no-data", is_flag=True, help="Read the files only; open no dataset.")
@click.option(
    "--samples",
    is_flag=True,
    help="Also read and decode every sample, as each dataset.yaml declares.",
)
@workers_option("one per 1,024 samples, at most one per CPU")
@progress_option
@click.pass_context
def command(
    ctx: click.Context,
    meta: tuple[str, ...],
    *,
    split: str | None,
    no_data: bool,
    samples: bool,
    num_workers: int | None,
    progress: bool,
) -> None:
    """Check metadatasets, and the datasets they name.

    META is a metadataset (.yaml) or a dataset.

    Prints one line per valid file. Errors go to stderr, one line each, as
    `file:line:column: where: what is wrong, what was found. What to do.`, and the exit code is 1.

    With --samples, each bad sample is an error that says where it is. Cookers and task encoders do
    not run: they are of the program that trains.
    """
    if no_data and samples:
        raise click.UsageError("--no-data and --samples exclude each other: give one.")
    opened = None if no_data else open_declared if samples else open_source
    problems: dict[str, None] = {}  # in order, once each: files may name the same wrong file
    has_bad_samples = False
    for path in meta:
        found, facts, leaves = _check(path, split, opened)
        problems |= dict.fromkeys(found)
        if samples and not found:
            with counting(progress, "Reading samples") as done:
                bad = _check_samples(path, leaves, num_workers, done)
            has_bad_samples |= bad
            found = [path] if bad else found
        if not found:
            click.echo(f"{path}: fine; {'; '.join(facts)}")
    for problem in problems:
        click.echo(shown(problem), err=True)
    if problems or has_bad_samples:
        ctx.exit(1)


def _check(
    path: str, split: str | None, opened: OpenSource | None
) -> tuple[list[str], list[str], list[Leaf]]:
    """Return the problems of a file and all it names, a summary of each split, and its leaves.

    opened: opens the datasets; None: they are not opened.
    """
    problems, facts, leaves = list[str](), list[str](), list[Leaf]()
    try:
        metadataset = load(path, find_missing=opened is not None)
        for name in splits_of(metadataset, split):
            try:
                if opened is None:
                    count = len({leaf.id for leaf in leaf_uses(metadataset.tree(name))})
                    facts.append(f"{name}: {count:,} {'leaf' if count == 1 else 'leaves'}")
                else:
                    spec = compiled(metadataset, name, opened=partial(_checked, opened))
                    facts.append(f"{name}: {summary(spec)}")
                    leaves += leaves_of(spec)
            except (SpecError, DataError) as error:
                problems += _problems(error)
    except (SpecError, DataError) as error:
        problems += _problems(error)
    return problems, facts, leaves


def _problems(error: SpecError | DataError) -> list[str]:
    if isinstance(error, SpecError):
        return error.faults
    where = "".join(f"{note}: " for note in getattr(error, "__notes__", []))
    return [f"{where}{error}"]


def _checked(opened: OpenSource, path: str | Path, **facts: Any) -> Source:
    """Open a dataset, and all files of it. SpecError for damage too: others are checked then."""
    try:
        source = opened(path, **facts)
        source.check_files()
    except DataError as error:
        raise SpecError(str(error)) from error
    return source


def _check_samples(
    path: str, leaves: Sequence[Leaf], workers: int | None, done: Callable[[int, int], None]
) -> bool:
    """Read and decode all samples; report each that is bad. Return whether there are any."""
    sources = {leaf.id: leaf.source for leaf in leaves}.values()
    total = sum(map(len, sources))
    read = bad = 0
    reported = set[str]()
    example = ""
    with closing(check_samples(list(sources), workers=workers)) as results:
        for found in results:
            read, bad = read + found.samples, bad + found.bad
            for fault in found.faults:
                if (text := str(fault)) not in reported:
                    click.echo(text, err=True)
                    reported.add(text)
                if isinstance(fault, SampleError) and fault.shard:
                    example = example or f"{fault.shard}/{fault.key}"
            done(read, total)
    if bad:
        advice = f", or leave them out: `exclude` in split.yaml takes {example}" if example else ""
        problem = f"{bad:,} of {total:,} samples are bad. Repair them{advice}."
        click.echo(f"{path}: {problem}", err=True)
    return bad > 0


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
