"""`energy-data plan`: the stages of a run, and what an edit does to each leaf before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import frozen
from rich.console import Console
from rich.table import Table

from energy_data.cli.saved import drawn_by, saved_run
from energy_data.cli.stream import params_of, stream
from energy_data.config.load import load
from energy_data.core.context import Context
from energy_data.core.spec import Spec
from energy_data.errors import StateMismatchError
from energy_data.loading.checkpoint.diff import Stages, differences, misfits
from energy_data.loading.checkpoint.restore import clock_of
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.checkpoint.saved_run import SavedTree
from energy_data.nodes.run_plan import RunPlan, data_end_note, short
from energy_data.nodes.stage import Resume
from energy_data.nodes.staged import StagedSpec

LINE_WIDTH = 1_000  # characters: ids stay in one piece, to be copied


def show_plan(plan: RunPlan) -> None:
    """Print the stages, with what each draws of each leaf."""
    console = Console(markup=False, emoji=False, highlight=False, width=LINE_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage")
    columns = ("steps", "micro-batches", "samples", "tokens", "%", "epochs")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("asked, parameters")
    for number in range(len(plan.stages)):
        for row in _rows(plan, number):
            table.add_row(*row)
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _rows(plan: RunPlan, number: int) -> Iterator[list[str]]:
    stage, first = plan.stages[number], plan.first_steps[number]
    steps = "?" if first is None else _range(first, stage.num_steps)
    amounts = [short(amount) if amount else "" for amount in (stage.num_samples, stage.num_tokens)]
    said = [f"{stage.asked}"] if stage.asked else []
    said += [data_end_note(stage)] if stage.data_end else []
    said += ["restart"] if stage.on_enter == "restart" else []
    said += [f"{name}={value}" for name, value in stage.params.items() if value is not None]
    batches = "?" if stage.counts == "steps" else _range(stage.begin, stage.num_batches)
    yield [stage.name, steps, batches, *amounts, "", "", ", ".join(said)]
    for leaf in plan.leaves[number]:
        share = "?" if leaf.share is None else f"{100 * leaf.share:.2f}"
        drawn = "" if leaf.drawn is None else short(leaf.drawn)
        epochs = "" if leaf.epochs is None else f"{leaf.epochs:.3f}"
        yield [f"  {leaf.leaf.id}", "", "", drawn, "", share, epochs, ""]


def _range(begin: int, count: int | None) -> str:
    return f"{begin:,} -> " if count is None else f"{begin:,} -> {begin + count:,}"


def plain_plan(plan: RunPlan) -> list[dict[str, Any]]:
    """Return the stages as plain data."""
    return [
        {
            "name": stage.name,
            "begin": stage.begin,
            "end": stage.end,
            "first_step": first_step,
            "steps": stage.num_steps,
            "samples": stage.num_samples,
            "tokens": stage.num_tokens,
            "asked": stage.asked,
            "asked_end": stage.end if stage.data_end is None else stage.data_end.asked,
            "unread": None if stage.data_end is None else stage.data_end.unread,
            "on_enter": stage.on_enter,
            "seed": stage.seed,
            "params": dict(stage.params),
            "leaves": [
                {
                    "id": leaf.leaf.id,
                    "share": leaf.share,
                    "drawn": leaf.drawn,
                    "epochs": leaf.epochs,
                }
                for leaf in leaves
            ],
        }
        for stage, first_step, leaves in zip(
            plan.stages, plan.first_steps, plan.leaves, strict=True
        )
    ]


@click.command("plan")
@click.argument("meta")
@click.option(
    "--against",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="The metadataset (.yaml) before an edit, or a saved state; the states of all ranks.",
)
@click.option("--split", default="train", show_default=True, help="The split to look at.")
@click.option("--batch-size", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--microbatches-per-step", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--lanes", type=click.IntRange(min=1), help="Lanes of the run. Default: the state's.")
@click.option("--seed", type=int, help="Seed of the run. Default: the state's; without one, 0.")
@click.option("--param", multiple=True, help="A parameter of the task encoder: `seq_len=4096`.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    meta: str,
    against: tuple[Path, ...],
    split: str,
    lanes: int | None,
    seed: int | None,
    param: tuple[str, ...],
    **facts: int,
) -> None:
    """Show the stages of a run, and what its edit does to each leaf.

    With --against, prints what differs, what becomes of each leaf, and whether a state would be
    restored; the exit code is 1 if not. Pass the values that the run uses, so that steps and tokens
    are counted alike.
    """
    is_yaml = bool(against) and (against[0].is_dir() or against[0].suffix in (".yaml", ".yml"))
    saved = saved_run(against) if against and not is_yaml else None
    if saved is not None:
        lanes, seed = lanes or saved.lanes, saved.seed if seed is None else seed
    run = None if lanes is None else Context(seed=seed or 0, lanes=lanes)
    params = params_of(param)
    spec = stream(load(meta), split, params=params, run=run, **facts)
    show_plan(RunPlan(spec))
    if not against:
        return
    old = stream(load(str(against[0])), split, params=params, run=run, **facts) if is_yaml else None
    edit = _Edit.of(old, spec, saved)
    for line in edit.lines():
        click.echo(line)
    wrong = edit.misfits()
    for problem in wrong:
        click.echo(f"refused: {problem}", err=True)
    if wrong:
        ctx.exit(1)
    at = "" if saved is None else f" at micro-batch {saved.batch:,}"
    click.echo(f"a state{at} would be restored (resume: {edit.rule})")


@frozen
class _Edit:
    """A tree before an edit and after it, and how far the run is."""

    before: SavedTree
    now: SavedTree
    plans: Sequence[RunPlan]
    rule: Resume
    saved: RunState | None

    @classmethod
    def of(cls, old: Spec | None, new: Spec, saved: RunState | None) -> _Edit:
        """Return the edit from an old tree, or that of a state, to a new one."""
        if old is None:
            assert saved is not None
            before = SavedTree.unpack(saved.tree)
        else:
            before = SavedTree.unpack(SavedTree.pack(old))
        plans = [RunPlan(old or before.spec), RunPlan(new)]
        rules = [spec.resume for _, spec in new.walk() if isinstance(spec, StagedSpec)]
        now = SavedTree.unpack(SavedTree.pack(new))
        return cls(before, now, plans, rules[0] if rules else "strict", saved)

    def misfits(self) -> list[str]:
        """Return why a state would be refused."""
        now = Stages.of(self.now)
        if now is None:
            is_moved = self.saved is not None and self.saved.batch
            return differences(self.before, self.now) if is_moved else []
        try:
            clock = 0 if self.saved is None else clock_of(self.saved, now)
        except StateMismatchError as error:
            return [str(error)]
        before = Stages.of(self.before) or Stages.single(self.before, now)
        return misfits(before, now, clock, self.rule)

    def lines(self) -> Iterator[str]:
        """Yield what differs, and what becomes of each leaf."""
        before, now = self.before.leaves, self.now.leaves
        yield from differences(self.before, self.now) or ["the order of the data is the same"]
        drawn = (self.saved and drawn_by(self.saved)) or Counter()
        for leaf_id in sorted(before.keys() | now.keys()):
            if leaf_id not in now:
                fate = "is no longer drawn from"
            elif leaf_id not in before:
                fate = "begins"
            elif before[leaf_id][1] != now[leaf_id][1]:
                fate = "begins again: its samples are others"
            else:
                fate = "continues"
            shares = " -> ".join(_shares(plan, leaf_id) for plan in self.plans)
            yield f"leaf {leaf_id}: {fate} after {drawn[leaf_id]:,} samples; {shares}"


def _shares(plan: RunPlan, leaf_id: str) -> str:
    """Return the share of a leaf in each stage."""
    found = []
    for stage, leaves in zip(plan.stages, plan.leaves, strict=True):
        for planned in leaves:
            if planned.leaf.id == leaf_id:
                share = "some" if planned.share is None else f"{100 * planned.share:.3g} %"
                epochs = "" if planned.epochs is None else f" ({planned.epochs:.3g} epochs)"
                found.append(f"{share} of {stage.name}{epochs}")
    return ", ".join(found) or "nothing"
