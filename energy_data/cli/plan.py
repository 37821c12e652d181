"""The plan of a staged run, as `energy-data inspect` shows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from energy_data.nodes.run_plan import Plan, PlannedStage, data_end_note, short

LINE_WIDTH = 1_000  # characters: ids stay in one piece, to be copied


def show_plan(plan: Plan) -> None:
    """Print the stages, with what each draws of each leaf."""
    console = Console(markup=False, emoji=False, highlight=False, width=LINE_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    columns = ("steps", "micro-batches", "samples", "tokens", "%", "epochs")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("asked, parameters")
    for one in plan.stages:
        for row in _rows(one):
            table.add_row(*row)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _rows(one: PlannedStage) -> Iterator[list[str]]:
    stage = one.stage
    steps = "?" if one.first_step is None else _range(one.first_step, one.steps)
    amounts = [short(amount) if amount else "" for amount in (one.samples, one.tokens)]
    said = [f"{stage.asked}"] if stage.asked else []
    said += [data_end_note(stage)] if stage.data_end else []
    said += ["restart"] if stage.on_enter == "restart" else []
    said += [f"{name}={value}" for name, value in stage.params.items() if value is not None]
    batches = "?" if stage.counts == "steps" else _range(stage.begin, one.microbatches)
    yield [one.name, steps, batches, *amounts, "", "", ", ".join(said)]
    for leaf in one.leaves:
        share = "?" if leaf.share is None else f"{100 * leaf.share:.2f}"
        drawn = "" if leaf.drawn is None else short(leaf.drawn)
        epochs = "" if leaf.epochs is None else f"{leaf.epochs:.3f}"
        yield [f"  {leaf.leaf.id}", "", "", drawn, "", share, epochs, ""]


def _range(begin: int, count: int | None) -> str:
    return f"{begin:,} -> " if count is None else f"{begin:,} -> {begin + count:,}"


def plain_plan(plan: Plan) -> list[dict[str, Any]]:
    """Return the stages as plain data."""
    return [
        {
            "name": one.name,
            "begin": one.stage.begin,
            "end": one.stage.end,
            "first_step": one.first_step,
            "steps": one.steps,
            "samples": one.samples,
            "tokens": one.tokens,
            "asked": one.stage.asked,
            "asked_end": one.stage.end if one.stage.data_end is None else one.stage.data_end.asked,
            "unread": None if one.stage.data_end is None else one.stage.data_end.unread,
            "on_enter": one.stage.on_enter,
            "seed": one.stage.seed,
            "params": dict(one.params),
            "leaves": [
                {
                    "id": leaf.leaf.id,
                    "share": leaf.share,
                    "drawn": leaf.drawn,
                    "epochs": leaf.epochs,
                }
                for leaf in one.leaves
            ],
        }
        for one in plan.stages
    ]
