"""`energy-data inspect`: the tree of a split, and how often a run draws its leaves."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import click
from attrs import asdict

from energy_data.cli.leaves import is_staged, summary
from energy_data.cli.tables import new_table, print_table
from energy_data.config.compile import compile_split, mode_of
from energy_data.config.draws import TreeRow, describe_tree
from energy_data.config.load import load
from energy_data.core.context import LANES_PER_RANK, Context
from energy_data.data.registry import open_source
from energy_data.errors import SpecError
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.order.schedule import Clock, Schedule, shown_schedule


@click.command("inspect")
@click.argument("meta")
@click.option(
    "--split",
    default="train",
    show_default=True,
    metavar="NAME",
    help="`train` is shown as training draws it, other splits as validation reads them.",
)
@click.option(
    "--batches",
    type=click.IntRange(min=1),
    metavar="N",
    help="Show how often each leaf is drawn in the first N micro-batches of all ranks. Needs "
    "--batch-size.",
)
@click.option(
    "--batch-size", type=click.IntRange(min=1), metavar="N", help="Samples per micro-batch."
)
@click.option(
    "--lanes",
    type=click.IntRange(min=1),
    metavar="N",
    default=LANES_PER_RANK,
    show_default=True,
    help="Lanes of the run.",
)
@click.option("--seed", default=0, show_default=True, metavar="N", help="Seed of the run.")
@click.option(
    "--microbatches-per-step",
    type=click.IntRange(min=1),
    metavar="N",
    help="Micro-batches of all ranks per step, for weights that follow steps.",
)
@click.option(
    "--tokens-per-sample",
    type=click.FloatRange(min=0, min_open=True),
    metavar="MEAN",
    help="Mean tokens of a sample, for weights that follow tokens.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(meta: str, *, split: str, as_json: bool, **run: Any) -> None:
    """Show the tree of a metadataset, and what a run draws of it.

    META is a metadataset (.yaml) or a dataset. For one with stages, see `plan`.

    Columns: `tokens` are those of a dataset, where they are known. `weight` is as written (`x 2`: 2
    repetitions), and `%` the share of all draws. `drawn` and `epochs` are of a leaf (one split of
    one dataset), over all places that list it and all lanes. They are computed from the order, not
    by reading, and ignore skipped samples.
    """
    if bool(run["batches"]) != bool(run["batch_size"]):
        raise click.UsageError("--batches and --batch-size go together: give both, or neither.")
    metadataset = load(meta)
    if split == "train" and is_staged(metadataset, split):
        raise SpecError(f"{meta}: its split {split!r} has stages. `energy-data plan` shows them.")
    spec = compile_split(metadataset, split, open_source=open_source)
    rows = list(describe_tree(metadataset, split, spec))
    endless = mode_of(split) == "train"
    drawn = draws(spec, endless=endless, **run) if run["batches"] else {}
    if as_json:
        nodes = [_plain(row, drawn) for row in rows]
        found = {"metadataset": meta, "split": split, "run": run, "nodes": nodes}
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"{meta}, split {split}: {summary(spec)}, {run['lanes']} lanes")
    if drawn:
        click.echo(f"after {run['batches']:,} micro-batches of {run['batch_size']} samples:")
    tokens = ["tokens"] if any(row.num_tokens for row in rows) else []
    amounts = ["samples", *tokens, "weight", "%", *(("drawn", "epochs") if drawn else ())]
    table = new_table("node", *amounts, "leaf id", "where", numbers=amounts)
    for row in rows:
        table.add_row(*_cells(row, drawn, tokens=bool(tokens)))
    print_table(table)


def draws(
    spec: OrderSpec,
    *,
    endless: bool,
    batches: int,
    batch_size: int,
    lanes: int,
    seed: int,
    **clock: Any,
) -> dict[str, int]:
    """Return how often each leaf is drawn in the first micro-batches of a run, by its id.

    endless: training without end; otherwise one pass, dealt to the lanes. clock: how steps and
    tokens are counted in samples. The cost is one computation per lane, independent of the number
    of micro-batches.
    """
    if endless:
        counted = Clock(samples_per_microbatch=batch_size, **clock)
        references = ReferencesSpec(of=spec, clock=counted, batch=batch_size)
        # Micro-batch g is of lane g mod lanes.
        of_lane = [len(range(lane, batches, lanes)) for lane in range(lanes)]
    else:
        references = ReferencesSpec(of=spec, deal=batch_size)
        of_lane = [batches]  # one order for all lanes
    total: Counter[str] = Counter()
    for lane, count in enumerate(of_lane):
        node = references.build(Context(seed=seed, lane=lane, lanes=len(of_lane)))
        node.cursor.draws = count * batch_size
        if not endless:
            node.cursor.draws = min(node.cursor.draws, node.plan.order.begin(1))
        strides = {leaf.id: leaf.cut.stride for leaf in node.leaves}
        for leaf_id, units in node.ledger().items():
            total[leaf_id] += units // strides[leaf_id]
    return dict(total)


def _cells(row: TreeRow, drawn: Mapping[str, int], *, tokens: bool) -> list[str]:
    where = f"{row.place.file}:{row.place.line}" if row.place.line else row.place.file
    percent = "?" if row.fraction is None else f"{100 * row.fraction:.2f}"
    sizes = [row.num_samples, row.num_tokens] if tokens else [row.num_samples]
    amounts = ["" if size is None else f"{size:,}" for size in sizes]
    share = "" if row.share is None else _share(row)
    if isinstance(share, float):
        share = f"{'x ' if row.share_key == 'repetitions' else ''}{share:g}"
    cells = ["  " * row.depth + row.label, *amounts, share, percent]
    if drawn:
        seen, epochs = drawn.get(row.id or "", 0), _epochs(row, drawn)
        cells += ["" if row.id is None else f"{seen:,}", "" if epochs is None else f"{epochs:.3f}"]
    return [*cells, row.id or "", where]


def _plain(row: TreeRow, drawn: Mapping[str, int]) -> dict[str, Any]:
    """Return a row as plain data."""
    node = asdict(row, filter=lambda field, _: field.name not in ("share", "share_key"))
    if row.share is not None and row.share_key is not None:
        node[row.share_key] = _share(row)
    if drawn and row.id is not None:
        node |= {"drawn": drawn.get(row.id, 0), "epochs": _epochs(row, drawn)}
    return node


def _share(row: TreeRow) -> float | str:
    """Return what the parent of a node gives it; a schedule in words."""
    return shown_schedule(row.share) if isinstance(row.share, Schedule) else float(row.share)


def _epochs(row: TreeRow, drawn: Mapping[str, int]) -> float | None:
    return drawn.get(row.id or "", 0) / row.num_samples if row.num_samples else None
