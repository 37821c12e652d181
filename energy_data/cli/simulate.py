"""`energy-data simulate`: what a run would ask of an object store, and how long it would wait."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from math import ceil, inf
from typing import TYPE_CHECKING, Any

import click
from attrs import asdict

from energy_data.cli.leaves import summary
from energy_data.cli.plan import DEFAULTS, stream
from energy_data.cli.tables import new_table, print_table
from energy_data.config.load import load
from energy_data.core.context import LANES_PER_RANK, Context
from energy_data.errors import MissingExtraError, SpecError
from energy_data.remote.mirror_paths import size_of

if TYPE_CHECKING:  # obstore, which the fetcher needs, is optional
    from energy_data.loading.simulation import SimulatedRun, Simulation

_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s)", re.IGNORECASE)
_RANKS_PER_NODE = 8
_MOST_DRAWS = 400_000  # samples of a node that are simulated by default; about 5 seconds


@click.command("simulate")
@click.argument("meta")
@click.option(
    "--split", default="train", show_default=True, metavar="NAME", help="The split to train on."
)
@click.option(
    "--latency",
    default="50ms",
    show_default=True,
    metavar="TIME",
    help="Until the first byte of an answer.",
)
@click.option(
    "--bandwidth",
    default="1GB/s",
    show_default=True,
    metavar="BYTES/s",
    help="From the store to one node.",
)
@click.option("--cache", metavar="BYTES", help="Size of the cache of a node.  [default: any]")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Ranks of the run.",
)
@click.option(
    "--ranks-per-node",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Ranks that share a cache and a bandwidth.  [default: {_RANKS_PER_NODE}, or all]",
)
@click.option(
    "--lanes",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Lanes of the run.  [default: {LANES_PER_RANK} per rank]",
)
@click.option("--seed", default=0, show_default=True, metavar="N", help="Seed of the run.")
@click.option(
    "--batches-per-second",
    type=click.FloatRange(min=0, min_open=True),
    metavar="X",
    help="Micro-batches that each rank uses per second.  [default: as many as the store feeds]",
)
@click.option(
    "--batches",
    type=click.IntRange(min=1),
    metavar="N",
    help="Micro-batches of each rank to simulate.  [default: an epoch, "
    f"or {_MOST_DRAWS:,} samples of a node]",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=DEFAULTS["batch_size"],
    show_default=True,
    metavar="N",
    help="Samples per micro-batch.",
)
@click.option(
    "--microbatches-per-step",
    type=click.IntRange(min=1),
    metavar="N",
    help="Micro-batches of all ranks per step, for what is counted in steps.",
)
@click.option(
    "--shuffle-buffer-size",
    type=click.IntRange(min=0),
    default=DEFAULTS["shuffle_buffer_size"],
    show_default=True,
    metavar="N",
    help="Draws that are shuffled together.",
)
@click.option(
    "--max-samples-per-sequence",
    type=click.IntRange(min=0),
    default=DEFAULTS["max_samples_per_sequence"],
    show_default=True,
    metavar="N",
    help="Neighbouring samples that are read together, by one request.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    meta: str,
    *,
    split: str,
    latency: str,
    bandwidth: str,
    cache: str | None,
    ranks: int,
    ranks_per_node: int | None,
    lanes: int | None,
    seed: int,
    batches_per_second: float | None,
    batches: int | None,
    as_json: bool,
    **facts: Any,
) -> None:
    """Show what a run would ask of an object store.

    Below the numbers, it says what to change. META is a metadataset (.yaml) or a dataset, on a disk
    or in a store. The run is one of training, of samples that are not packed. Indices are read, and
    no samples.

    The order of the samples decides what is fetched when, as in a run; the store is a model. All
    numbers are of one node. `start` are the first micro-batches of each lane, which nothing was
    read ahead for. Workers are not part of the model: they hide more waits.
    """
    if find_spec("obstore") is None:
        raise MissingExtraError("A simulation of an object store", "remote")
    from energy_data.loading.simulation import (  # noqa: PLC0415 - obstore is optional
        ANY_SIZE,
        SimulatedRun,
        batches_of_epoch,
    )
    from energy_data.loading.store_advice import advice  # noqa: PLC0415 - likewise
    from energy_data.remote.model import Link  # noqa: PLC0415 - likewise

    lanes, on_node = lanes or LANES_PER_RANK * ranks, ranks_per_node or min(ranks, _RANKS_PER_NODE)
    _check_ranks(ranks, on_node, lanes)
    spec = stream(load(meta), split, run=Context(seed=seed, lanes=lanes), **facts)
    batch_size = facts["batch_size"]
    rounds = min(batches_of_epoch(spec, batch_size, ranks), _MOST_DRAWS // (batch_size * on_node))
    run = SimulatedRun(
        spec=spec,
        seed=seed,
        lanes=lanes,
        ranks=ranks,
        ranks_per_node=on_node,
        batch_seconds=1 / batches_per_second if batches_per_second else 0.0,
        batches=batches or max(rounds, 2 * ceil(lanes / ranks)),
        link=Link(latency=_seconds(latency), bandwidth=_rate(bandwidth)),
        cache=ANY_SIZE if cache is None else size_of(cache, "--cache: "),
    )
    found = run.simulate()
    changes = list(advice(run, found, facts["max_samples_per_sequence"]))
    if as_json:
        click.echo(json.dumps({"metadataset": meta, **asdict(found), "advice": changes}, indent=2))
        return
    click.echo(f"{meta}, split {split}: {summary(spec)}, {lanes:,} lanes")
    for line in [*_shown(run, found), *changes]:
        click.echo(line)


def _shown(run: SimulatedRun, found: Simulation) -> list[str]:
    """Print the leaves; return the lines below them."""
    amounts = ("drawn", "fetched MB", "cached MB", "requests", "kB each", "wait s", "epoch MB")
    table = new_table("leaf id", *amounts, numbers=amounts)
    for leaf in found.leaves:
        sizes = (leaf.fetched_bytes, leaf.cached_bytes, leaf.epoch_bytes)
        fetched, cached, epoch = (f"{size / 1e6:,.1f}" for size in sizes)
        each = f"{leaf.fetched_bytes / leaf.requests / 1e3:,.1f}" if leaf.requests else ""
        cells = (f"{leaf.drawn:,}", fetched, cached, f"{leaf.requests:,}", each)
        table.add_row(leaf.id, *cells, f"{leaf.wait_s:,.1f}", epoch)
    print_table(table)
    rate = 1 / run.batch_seconds if run.batch_seconds else found.most_batches_per_second(run.link)
    return [
        f"{found.batches:,} micro-batches of each rank, "
        f"{run.ranks_per_node} of {run.ranks:,} ranks",
        f"start: {found.start_wait_s:,.2f} s for the first {found.start_batches:,}; "
        f"then {found.wait_share:.1%} of the time waited",
        "store: nothing is fetched in a long run"
        if rate == inf
        else f"store: {found.bytes_per_batch * rate / 1e6:,.1f} MB/s and "
        f"{found.requests_per_batch * rate:,.1f} requests/s",
        f"cache: {found.window_bytes:,} bytes at least, {found.ahead_bytes:,} to read ahead",
    ]


def _check_ranks(ranks: int, on_node: int, lanes: int) -> None:
    if on_node > ranks:
        raise click.UsageError(f"--ranks-per-node: must be at most {ranks}, the ranks of the run.")
    if lanes % ranks:
        raise click.UsageError(f"--lanes: must be a multiple of {ranks}, the ranks of the run.")


def _seconds(text: str) -> float:
    found = _SECONDS.fullmatch(text.strip())
    if found is None:
        raise SpecError(f"--latency: {text!r} is no time. Write such as 50ms or 0.1s.")
    return float(found[1]) / (1000 if found[2].lower() == "ms" else 1)


def _rate(text: str) -> float:
    return size_of(text.strip().removesuffix("/s"), "--bandwidth: ") or inf
