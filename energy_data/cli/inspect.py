"""`energy-data inspect`: the tree of a split, what it draws, and how far a run gets in it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click
from attrs import asdict, field, frozen
from rich.console import Console
from rich.table import Table

from energy_data.cli.plan import plain_plan, show_plan
from energy_data.cli.stream import is_staged, params_of, stream
from energy_data.config.compile import compile_split, mode_of
from energy_data.config.inspect import TreeRow, describe_tree
from energy_data.config.load import LoadedMetadataset, load
from energy_data.core.context import LANES_PER_RANK, Context
from energy_data.core.spec import Spec
from energy_data.data.registry import open_source
from energy_data.nodes.leaf import distinct_leaves, leaf_entries
from energy_data.nodes.references import OrderSpec, ReferencesSpec
from energy_data.nodes.run_plan import RunPlan
from energy_data.order.schedule import Clock, Schedule
from energy_data.order.weight_rule import shown_schedule

LINE_WIDTH = 1_000  # characters: ids and places stay in one piece, to be copied


def _or_zero(number: int | None) -> int:
    return number or 0


@frozen(kw_only=True)
class DrawSettings:
    """The settings of a run that determine how often each leaf is drawn."""

    batches: int = field(converter=_or_zero)  # micro-batches of all ranks; 0: draws are not counted
    batch_size: int = field(converter=_or_zero)
    lanes: int
    seed: int
    microbatches_per_step: int | None = None
    tokens_per_sample: float | None = None

    @property
    def clock(self) -> Clock:
        """How places of the run are counted."""
        return Clock(
            samples_per_microbatch=self.batch_size or 1,
            microbatches_per_step=self.microbatches_per_step,
            tokens_per_sample=self.tokens_per_sample,
        )


@click.command("inspect")
@click.argument("meta")
@click.option("--split", default="train", show_default=True, help="The split to look at.")
@click.option(
    "--batches",
    type=click.IntRange(min=1),
    help="Show how often each leaf has been seen after so many micro-batches of all ranks.",
)
@click.option("--batch-size", type=click.IntRange(min=1), help="Samples per micro-batch.")
@click.option(
    "--lanes",
    type=click.IntRange(min=1),
    default=LANES_PER_RANK,
    show_default=True,
    help="Lanes of the run.",
)
@click.option("--seed", default=0, show_default=True, help="Seed of the run.")
@click.option(
    "--microbatches-per-step",
    type=click.IntRange(min=1),
    help="Micro-batches of all ranks per step, for what is counted in steps.",
)
@click.option(
    "--tokens-per-sample",
    type=click.FloatRange(min=0, min_open=True),
    help="Mean tokens of a sample, for weights that follow tokens.",
)
@click.option(
    "--param", multiple=True, help="A parameter of the task encoder, for stages: `seq_len=4096`."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    meta: str,
    *,
    split: str,
    param: tuple[str, ...],
    as_json: bool,
    **facts: Any,
) -> None:
    """Show the tree of a metadataset, or of a dataset.

    `weight` is as written (`x 2`: 2 repetitions), `%` the share of all draws. `drawn` and `epochs`
    are of a leaf, over all places that list it and all lanes; they are computed from the order, not
    by reading, and ignore skipped samples.
    """
    run = DrawSettings(**facts)
    metadataset = load(meta)
    if split == "train" and is_staged(metadataset, split):
        spec = stream(
            metadataset,
            split,
            batch_size=run.batch_size or 1,
            microbatches_per_step=run.microbatches_per_step or 1,
            params=params_of(param),
            run=Context(seed=run.seed, lanes=run.lanes),
        )
        _show_stages(meta, metadataset, spec, as_json=as_json)
        return
    if bool(run.batches) != bool(run.batch_size):
        raise click.UsageError("--batches and --batch-size go together: give both, or neither.")
    spec = compile_split(metadataset, split, open_source=open_source)
    rows = list(describe_tree(metadataset, split, spec))
    drawn = draws(spec, run, endless=mode_of(split, None) == "train") if run.batches else {}
    if as_json:
        click.echo(json.dumps(_plain(meta, split, rows, drawn, run), indent=2))
        return
    click.echo(f"{meta}, split {split}: {_summary(spec)}, {run.lanes} lanes")
    if drawn:
        click.echo(f"after {run.batches:,} micro-batches of {run.batch_size} samples:")
    _show(rows, drawn)


def _show_stages(meta: str, metadataset: LoadedMetadataset, spec: Spec, *, as_json: bool) -> None:
    """Show a split with stages: its plan, and what each stage draws from."""
    plan = RunPlan(spec)
    rows = list(describe_tree(metadataset, "train", spec))
    if as_json:
        nodes = _plain(
            meta, "train", rows, {}, DrawSettings(batches=0, batch_size=0, lanes=0, seed=0)
        )
        click.echo(json.dumps({**nodes, "plan": plain_plan(plan)}, indent=2))
        return
    click.echo(f"{meta}, split train: {_summary(spec)}, {len(plan.stages)} stages")
    show_plan(plan)
    click.echo("")
    _show(rows, {})


def draws(spec: OrderSpec, run: DrawSettings, *, endless: bool) -> dict[str, int]:
    """Return how often each leaf is drawn in the first micro-batches of a run, by its id.

    endless: training without end; otherwise one pass, dealt to the lanes. The cost is one
    computation per lane, independent of the number of micro-batches.
    """
    if endless:
        references = ReferencesSpec(of=spec, clock=run.clock)
        # Micro-batch g is of lane g mod lanes.
        of_lane = [len(range(lane, run.batches, run.lanes)) for lane in range(run.lanes)]
    else:
        references = ReferencesSpec(of=spec, deal=run.batch_size)
        of_lane = [run.batches]  # one order for all lanes
    total: dict[str, int] = {}
    for lane, batches in enumerate(of_lane):
        node = references.build(Context(seed=run.seed, lane=lane, lanes=len(of_lane)))
        node.cursor.draws = batches * run.batch_size
        if not endless:
            node.cursor.draws = min(node.cursor.draws, node.plan.order.begin(1))
        for leaf, count in zip(node.leaves, node.ledger().tolist(), strict=True):
            total[leaf.id] = total.get(leaf.id, 0) + count
    return total


def _summary(spec: Spec) -> str:
    leaves = distinct_leaves([leaf for _, leaf in leaf_entries(spec)])
    samples = sum(leaf.num_samples for leaf in leaves)
    return f"{len(leaves)} {'leaf' if len(leaves) == 1 else 'leaves'}, {samples:,} samples"


def _show(rows: Sequence[TreeRow], drawn: Mapping[str, int]) -> None:
    # Ids contain brackets, which are markup for rich.
    console = Console(markup=False, emoji=False, highlight=False, width=LINE_WIDTH)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node")
    for name in ("samples", "weight", "%", *(("drawn", "epochs") if drawn else ())):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("leaf id")
    table.add_column("where", style="dim")
    for row, share in _with_shares(rows):
        table.add_row(*_cells(row, share, drawn), style=None if row.id else "bold")
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())


def _shown(name: str, share: float | Schedule) -> str:
    """Return what a parent gives a child."""
    if isinstance(share, Schedule):
        return shown_schedule(share)
    return f"{'x ' if name == 'repetitions' else ''}{float(share):g}"


def _cells(row: TreeRow, share: Mapping[str, Any], drawn: Mapping[str, int]) -> list[str]:
    where = f"{row.place.file}:{row.place.line}" if row.place.line else row.place.file
    percent = "?" if row.fraction is None else f"{100 * row.fraction:.2f}"
    samples = "" if row.num_samples is None else f"{row.num_samples:,}"
    given = [_shown(name, value) for name, value in share.items()]
    cells = ["  " * row.depth + row.label, samples, *(given or [""]), percent]
    if drawn and row.id is not None:
        epochs = _epochs(row, drawn)
        cells += [f"{drawn.get(row.id, 0):,}", "" if epochs is None else f"{epochs:.3f}"]
    elif drawn:
        cells += ["", ""]
    return [*cells, row.id or "", where]


def _with_shares(rows: Iterable[TreeRow]) -> Iterator[tuple[TreeRow, dict[str, Any]]]:
    """Yield each row with the weight or the repetitions that its parent gives it, by that name."""
    kinds: dict[int, str] = {}  # by depth
    for row in rows:
        kinds[row.depth] = row.kind
        name = "repetitions" if kinds.get(row.depth - 1) == "blend_epochized" else "weight"
        yield row, {} if row.share is None else {name: row.share}


def _epochs(row: TreeRow, drawn: Mapping[str, int]) -> float | None:
    return drawn.get(row.id or "", 0) / row.num_samples if row.num_samples else None


def _plain(
    meta: str, split: str, rows: Sequence[TreeRow], drawn: Mapping[str, int], run: DrawSettings
) -> dict[str, Any]:
    """Return what is shown as plain data."""
    nodes = []
    for row, share in _with_shares(rows):
        given = {name: _plain_share(value) for name, value in share.items()}
        node = {**asdict(row, filter=lambda field, _: field.name != "share"), **given}
        if drawn and row.id is not None:
            node |= {"drawn": drawn.get(row.id, 0), "epochs": _epochs(row, drawn)}
        nodes.append(node)
    return {"metadataset": meta, "split": split, "run": asdict(run), "nodes": nodes}


def _plain_share(share: float | Schedule) -> Any:
    return shown_schedule(share) if isinstance(share, Schedule) else float(share)
