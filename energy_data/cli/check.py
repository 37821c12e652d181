"""`energy-data check`: every fault of every file, at its line and column."""

from __future__ import annotations

import click

from energy_data.cli.stream import is_staged, stream
from energy_data.config.compile import compile_split
from energy_data.config.leaves import leaf_uses
from energy_data.config.load import LoadedMetadataset, load
from energy_data.core.spec import Spec
from energy_data.data.registry import open_source
from energy_data.errors import DataError, SpecError
from energy_data.nodes.leaves import distinct_leaves, leaf_entries


@click.command("check")
@click.argument("meta", nargs=-1, required=True, metavar="META...")
@click.option("--split", help="Check this split only; by default all that a file has.")
@click.option("--no-data", is_flag=True, help="Look at the files only; open no dataset.")
@click.pass_context
def command(ctx: click.Context, meta: tuple[str, ...], split: str | None, no_data: bool) -> None:
    """Check metadatasets, and the datasets they name.

    Prints one line per file that is right. Diagnostics go to stderr, one line each, as
    `file:line:column: where: what is wrong, what was found. What to do.`, and the exit code is 1.
    """
    told: dict[str, None] = {}  # files may name the same faulty file
    for path in meta:
        faults, facts = _check(path, split, with_data=not no_data)
        told |= dict.fromkeys(faults)
        if not faults:
            click.echo(f"{path}: fine; {'; '.join(facts)}")
    for fault in told:
        click.echo(fault, err=True)
    if told:
        ctx.exit(1)


def _check(path: str, split: str | None, *, with_data: bool) -> tuple[list[str], list[str]]:
    """Return the faults of a file with all it names, and the facts of its splits."""
    try:
        metadataset = load(path)
    except SpecError as error:
        return error.faults, []
    # The parts of a single dataset are its own business; training needs one.
    splits = ("train",) if metadataset.root.any_split else metadataset.splits
    faults, facts = [], []
    for name in splits if split is None else (split,):
        try:
            if with_data:
                facts.append(_facts(name, _compiled(metadataset, name)))
            else:
                leaves = {leaf.id for leaf in leaf_uses(metadataset.tree(name))}
                facts.append(f"{name}: {_leaves(len(leaves))}")
        except SpecError as error:
            faults += error.faults
        except DataError as error:
            where = "".join(f"{note}: " for note in getattr(error, "__notes__", []))
            faults.append(f"{where}{error}")
    return faults, facts


def _compiled(metadataset: LoadedMetadataset, split: str) -> Spec:
    if split == "train" and is_staged(metadataset, split):
        return stream(metadataset, split, params={"seq_len": 1})  # what a token is, is not asked
    return compile_split(metadataset, split, open_source=open_source)


def _facts(split: str, spec: Spec) -> str:
    leaves = distinct_leaves([leaf for _, leaf in leaf_entries(spec)])
    samples = sum(leaf.num_samples for leaf in leaves)
    return f"{split}: {_leaves(len(leaves))}, {samples:,} samples"


def _leaves(count: int) -> str:
    return f"{count:,} {'leaf' if count == 1 else 'leaves'}"
