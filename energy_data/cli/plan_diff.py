"""`energy-data plan-diff`: what an edited metadataset would do to a run, before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from attrs import field, frozen

from energy_data.cli.saved import saved_run
from energy_data.cli.stream import params_of, stream
from energy_data.config.load import load
from energy_data.core.context import Context
from energy_data.core.spec import Spec
from energy_data.errors import StateError, StateMismatchError
from energy_data.loading.checkpoint.ledger import Ledgers
from energy_data.loading.checkpoint.restore import clock_of, misfits
from energy_data.loading.checkpoint.run_state import RunState, merge
from energy_data.loading.checkpoint.stages import Plan as Remembered
from energy_data.loading.checkpoint.stages import edits
from energy_data.loading.checkpoint.tree import TreeRecord, differences
from energy_data.nodes.run_plan import Plan
from energy_data.nodes.stage import Resume
from energy_data.nodes.staged import StagedSpec


@click.command("plan-diff")
@click.argument("old")
@click.argument("new")
@click.option("--split", default="train", show_default=True, help="The split to look at.")
@click.option(
    "--state",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="A saved state of OLD (JSON, or of torch.save); more than once for those of all ranks.",
)
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
    old: str,
    new: str,
    split: str,
    state: tuple[Path, ...],
    lanes: int | None,
    seed: int | None,
    param: tuple[str, ...],
    **facts: int,
) -> None:
    """Tell what NEW would do to each leaf of a run that was begun with OLD.

    Prints what differs, what becomes of each leaf, and whether a state would be taken; the exit
    code is 1 if not. Give what the run is called with, so that steps and tokens are counted alike.
    """
    saved = merge([saved_run(state)]) if state else None
    if saved is not None:
        lanes, seed = lanes or saved.lanes, saved.seed if seed is None else seed
    run = None if lanes is None else Context(seed=seed or 0, lanes=lanes)
    params = params_of(param)
    specs = [stream(load(path), split, params=params, run=run, **facts) for path in (old, new)]
    edit = _Edit(specs[0], specs[1], saved)
    for line in edit.lines():
        click.echo(line)
    wrong = edit.misfits()
    for problem in wrong:
        click.echo(f"refused: {problem}", err=True)
    if wrong:
        ctx.exit(1)
    at = "" if saved is None else f" at micro-batch {saved.batch:,}"
    click.echo(f"a state{at} would be taken (resume: {edit.rule})")


@frozen
class _Edit:
    """An old tree, a new one, and how far the run is."""

    old: Spec
    new: Spec
    saved: RunState | None
    records: list[TreeRecord] = field(init=False)

    @records.default
    def _remembered(self) -> list[TreeRecord]:
        return [TreeRecord.unpack(TreeRecord.of(spec).pack()) for spec in (self.old, self.new)]

    @property
    def rule(self) -> Resume:
        found = [inner.resume for _, inner in self.new.walk() if isinstance(inner, StagedSpec)]
        return found[0] if found else "strict"

    def misfits(self) -> list[str]:
        """Return why a state would be refused."""
        before, now = self.records
        plans = [Remembered.of(record) for record in self.records]
        if plans[1] is None:
            return differences(before, now) if self.saved and self.saved.batch else []
        try:
            clock = 0 if self.saved is None else clock_of(self.saved, plans[1])
        except StateMismatchError as error:
            return [str(error)]
        old = plans[0] or Remembered.plain(before, plans[1])
        return misfits(old, plans[1], clock, self.rule)

    def lines(self) -> Iterator[str]:
        """Yield what differs, and what becomes of each leaf."""
        before, now = self.records
        yield from self.differences() or ["the order of the data is the same"]
        drawn, plans = self.drawn(), [Plan(self.old), Plan(self.new)]
        for leaf_id in sorted(before.leaves.keys() | now.leaves.keys()):
            so_far = drawn[leaf_id]
            if leaf_id not in now.leaves:
                fate = "is no longer drawn from"
            elif leaf_id not in before.leaves:
                fate = "begins"
            elif before.leaves[leaf_id][1] != now.leaves[leaf_id][1]:
                fate = "begins anew: its samples are others"
            else:
                fate = "goes on"
            shares = " -> ".join(self.shares(plan, leaf_id) for plan in plans)
            yield f"leaf {leaf_id}: {fate} after {so_far:,} samples; {shares}"

    def differences(self) -> list[str]:
        """Return how the trees differ."""
        found = differences(*self.records)
        plans = [Remembered.of(record) for record in self.records]
        if plans[0] is None or plans[1] is None:
            return found
        return [*edits(plans[0], plans[1]), *(one for one in found if "(staged) was" not in one)]

    def shares(self, plan: Plan, leaf_id: str) -> str:
        """Return the share of a leaf in each stage."""
        found = []
        for one in plan.stages:
            for planned in one.leaves:
                if planned.leaf.id == leaf_id:
                    share = "some" if planned.share is None else f"{100 * planned.share:.3g} %"
                    epochs = "" if planned.epochs is None else f" ({planned.epochs:.3g} epochs)"
                    found.append(f"{share} of {one.name}{epochs}")
        return ", ".join(found) or "nothing"

    def drawn(self) -> Counter[str]:
        """Return how often each leaf was drawn, over all lanes."""
        drawn: Counter[str] = Counter()
        if self.saved is None:
            return drawn
        if self.saved.tree != self.records[0].pack():
            found = differences(TreeRecord.unpack(self.saved.tree), self.records[0])
            raise StateError(
                "state: it is not of OLD, as it is called here:\n"
                + "\n".join(f"  - {difference}" for difference in found)
            )
        ledgers = Ledgers(self.saved)
        for lane in self.saved.places:
            drawn.update(
                ledgers.of_run(lane) if ledgers.had_stages else _merged(ledgers.of_lane(lane))
            )
        return drawn


def _merged(ledgers: dict[str, dict[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for ledger in ledgers.values():
        total.update(ledger)
    return total
