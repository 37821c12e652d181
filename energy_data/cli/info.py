"""`energy-data info`: what datasets hold."""

from __future__ import annotations

import json
from pathlib import Path

import click
import numpy as np
from attrs import asdict, frozen
from rich.filesize import decimal

from energy_data.cli.leaves import compiled, open_declared, splits_of
from energy_data.cli.tables import new_table, print_table
from energy_data.config.load import load
from energy_data.core.sample import values_of
from energy_data.data.shards import PartShards
from energy_data.errors import SampleError
from energy_data.nodes.leaf import Leaf, leaves_of


@frozen(kw_only=True)
class LeafInfo:
    """What is known of a leaf: one split part of one dataset, or a join."""

    id: str
    samples: int
    shards: int | None  # with samples; None: it has none
    bytes: int | None  # of the shards
    tokens: int | None  # of all samples; None: not known
    sample_type: str | None  # the class of its first sample; None: it is bad
    fields: list[str]  # of the first sample


@click.command("info")
@click.argument("meta", nargs=-1, required=True, metavar="META...")
@click.option(
    "--split", metavar="NAME", help="This split only.  [default: all, or all parts of a dataset]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(meta: tuple[str, ...], *, split: str | None, as_json: bool) -> None:
    """Show what datasets hold: samples, shards, sizes, fields.

    META is a dataset, or a metadataset (.yaml) for all datasets that it names. A row is a leaf: one
    split part of one dataset. Its type and fields are those of its first sample, made as its
    dataset.yaml declares.

    `inspect` shows how often a run draws each leaf, and `preview` shows samples.
    """
    found = [info for path in meta for info in _infos(path, split)]
    infos = list({info.id: info for info in found}.values())
    if as_json:
        click.echo(json.dumps([asdict(info) for info in infos], indent=2))
        return
    tokens = ["tokens"] if any(info.tokens for info in infos) else []
    amounts = ["samples", "shards", "size", *tokens]
    table = new_table("leaf id", *amounts, "sample type", "fields", numbers=amounts)
    for info in infos:
        table.add_row(*_cells(info, tokens=bool(tokens)))
    print_table(table)


def _infos(path: str, split: str | None) -> list[LeafInfo]:
    metadataset = load(path)
    specs = [
        compiled(metadataset, one, opened=open_declared) for one in splits_of(metadataset, split)
    ]
    return [_info(leaf) for spec in specs for leaf in leaves_of(spec)]


def _info(leaf: Leaf) -> LeafInfo:
    (sample,) = leaf.source.read(np.zeros(1, np.int64))
    is_bad = isinstance(sample, SampleError)
    part: PartShards | None = getattr(leaf.source, "part", None)
    counts = enumerate(part.counts if part else ())
    shards = [part.paths(number)[0] for number, count in counts if part and count]
    return LeafInfo(
        id=leaf.id,
        samples=leaf.num_samples,
        shards=len(shards) or None,
        bytes=sum(Path(shard).stat().st_size for shard in shards) or None,
        tokens=leaf.num_tokens,
        sample_type=None if is_bad else type(sample).__name__,
        fields=[] if is_bad else list(values_of(sample)),
    )


def _cells(info: LeafInfo, *, tokens: bool) -> list[str]:
    numbers = [info.samples, info.shards, *([info.tokens] if tokens else [])]
    cells = ["" if number is None else f"{number:,}" for number in numbers]
    cells.insert(2, "" if info.bytes is None else decimal(info.bytes))
    return [info.id, *cells, info.sample_type or "the first is bad", ", ".join(info.fields)]
