"""`energy-data plan`: the stages of a run, and what an edit does to each leaf before it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import click
import yaml
from attrs import fields, frozen

from energy_data.api import get_train_dataset
from energy_data.cli.saved_builder import SavedBuilder, saved_params, saved_stages
from energy_data.cli.state import drawn_by, existing, saved_run
from energy_data.cli.tables import new_table, print_table
from energy_data.config.compile import compile_stream, mode_of, steps_of
from energy_data.config.load import LoadedMetadataset, load
from energy_data.config.opening import OpenSource, Options
from energy_data.config.staged import stage_params
from energy_data.core.context import Context
from energy_data.core.spec import Spec
from energy_data.data.registry import open_source
from energy_data.errors import SpecError, StateMismatchError
from energy_data.loading.checkpoint.diff import Stages, differences, misfits
from energy_data.loading.checkpoint.restore import clock_of
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.checkpoint.saved_run import SavedTree
from energy_data.nodes.run_plan import RunPlan, data_end_note, short
from energy_data.nodes.stage import Resume, Stage
from energy_data.nodes.staged import StagedSpec
from energy_data.tasks.encoder import TaskEncoder
from energy_data.tasks.mixture import StreamBuilder

DEFAULTS: dict[str, Any] = {
    "batch_size": 1,
    **{
        name: signature(get_train_dataset).parameters[name].default
        for name in ("shuffle_buffer_size", "max_samples_per_sequence")
    },
}


class AnyTask(TaskEncoder[Any, Any, Any, Any]):
    """A task encoder that accepts any parameters that stages set."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters, with their values."""
        return self._values

    def with_params(self, **params: Any) -> AnyTask:
        """Return one with other parameters."""
        return AnyTask({**self._values, **params})


def stream(
    metadataset: LoadedMetadataset,
    split: str,
    *,
    params: Mapping[str, Any] | None = None,
    run: Context | None = None,
    opened: OpenSource = open_source,
    options: Options | None = None,
    saved: SavedTree | None = None,
    **facts: int | None,
) -> Spec:
    """Return the tree of batches of a split in training. SpecError as `compile_stream`.

    params: of the task encoder. run: its seed and its lanes, as far as they are known. opened:
    opens the datasets. options: as there. saved: the tree of a saved run, whose pipelines get the
    mixture. facts: arguments of `get_train_dataset`; None: that of the saved run, or the default.
    """
    changed = stage_params(metadataset.tree(split))
    known: dict[str, Any] = dict(DEFAULTS)
    if steps_of(metadataset, split) is None:
        known["microbatches_per_step"] = 1
    stages = () if saved is None else saved_stages(saved)
    if stages:
        known |= saved_params(stages, changed)
    known |= {name: value for name, value in facts.items() if value is not None}
    builders = {one.name for one in fields(StreamBuilder)}
    free = dict.fromkeys(name for of_stage in changed.values() for name in of_stage)
    task_params = {name: value for name, value in {**free, **known}.items() if name not in builders}
    make = partial(SavedBuilder, saved=stages) if stages else StreamBuilder
    builder = make(
        task_encoder=AnyTask({**task_params, **(params or {})}),
        **{name: value for name, value in known.items() if name in builders},
    )
    spec = compile_stream(
        metadataset, split, open_source=opened, builder=builder, options=options, run=run
    ).spec
    return spec if saved is None else saved.with_stages(spec)


def params_of(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return `name=value` texts as a mapping; values are read as YAML."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"--param: must be NAME=VALUE, got {text!r}, such as `seq_len=4096`.")
        found[name] = yaml.safe_load(value)
    return found


def show_plan(plan: RunPlan) -> None:
    """Print the stages, with what each draws of each leaf, and below them their parameters."""
    amounts = ("steps", "micro-batches", "samples", "tokens", "%", "epochs")
    table = new_table("stage", *amounts, numbers=amounts)
    for number in range(len(plan.stages)):
        for row in _rows(plan, number):
            table.add_row(*row)
    print_table(table)
    for stage in plan.stages:
        if facts := list(_facts(stage)):
            click.echo(f"{stage.name}: {', '.join(facts)}")


def _rows(plan: RunPlan, number: int) -> Iterator[list[str]]:
    stage, first = plan.stages[number], plan.first_steps[number]
    steps = "?" if first is None else _range(first, stage.num_steps)
    amounts = [short(amount) if amount else "" for amount in (stage.num_samples, stage.num_tokens)]
    batches = "?" if stage.counts == "steps" else _range(stage.begin, stage.num_batches)
    yield [stage.name, steps, batches, *amounts, "", ""]
    for leaf in plan.leaves[number]:
        share = "?" if leaf.share is None else f"{100 * leaf.share:.2f}"
        drawn = "" if leaf.drawn is None else short(leaf.drawn)
        epochs = "" if leaf.epochs is None else f"{leaf.epochs:.3f}"
        yield [f"  {leaf.leaf.id}", "", "", drawn, "", share, epochs]


def _facts(stage: Stage) -> Iterator[str]:
    """Yield how a stage ends and begins, and its parameters."""
    if stage.asked:
        yield stage.asked
    if stage.data_end:
        yield data_end_note(stage)
    if stage.on_enter == "restart":
        yield "restart"
    yield from (f"{name}={value}" for name, value in stage.params.items() if value is not None)


def _range(begin: int, count: int | None) -> str:
    return f"{begin:,} -> " if count is None else f"{begin:,} -> {begin + count:,}"


def _size_option(
    name: str, about: str, least: int = 0
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return an option for an argument of `get_train_dataset`."""
    return click.option(
        f"--{name.replace('_', '-')}",
        type=click.IntRange(min=least),
        metavar="N",
        help=f"{about}  [default: the state's, or {DEFAULTS[name]}]",
    )


@click.command("plan")
@click.argument("meta")
@click.option(
    "--against",
    type=existing,
    multiple=True,
    metavar="PATH",
    help="The metadataset (.yaml) before an edit, or a saved state, or the URL of one; may be "
    "repeated, for the states of all ranks.",
)
@click.option(
    "--split", default="train", show_default=True, metavar="NAME", help="The split to train on."
)
@_size_option("batch_size", "Samples per micro-batch.", 1)
@click.option(
    "--microbatches-per-step",
    type=click.IntRange(min=1),
    metavar="N",
    help="Micro-batches of all ranks per step.  [default: the state's, or 1; with "
    "`docs_per_step` any number]",
)
@_size_option("shuffle_buffer_size", "Draws that are shuffled together.")
@_size_option("max_samples_per_sequence", "Neighbouring samples that are read together.")
@click.option(
    "--lanes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Lanes of the run.  [default: the state's]",
)
@click.option(
    "--seed", type=int, metavar="N", help="Seed of the run.  [default: the state's, or 0]"
)
@click.option(
    "--param",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of the task encoder, such as `seq_len=4096`; may be repeated.",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    *,
    meta: str,
    against: tuple[str, ...],
    split: str,
    lanes: int | None,
    seed: int | None,
    param: tuple[str, ...],
    **facts: Any,
) -> None:
    """Show the stages of a run, and what an edit changes.

    META is a metadataset (.yaml) or a dataset. The run is one of training.

    With --against, prints what differs, what becomes of each leaf (one split of one dataset), and
    whether a state would be restored. The exit code is 1 if not.

    Options that are not given have the values of the state. A value that is given replaces that
    of the state, and the difference is part of the plan. Without a state, give the values that the
    run uses, so that steps and tokens are counted alike.

    For what validation reads, see `inspect`.
    """
    is_yaml = bool(against) and _is_metadataset(against[0])
    saved = saved_run(against) if against and not is_yaml else None
    before = None if saved is None else SavedTree.unpack(saved.tree)
    if saved is not None:
        lanes, seed = lanes or saved.lanes, saved.seed if seed is None else seed
    run = None if lanes is None else Context(seed=seed or 0, lanes=lanes)
    params = params_of(param)
    spec = stream(load(meta), split, params=params, run=run, saved=before, **facts)
    if mode_of(split) == "val":
        click.echo(
            f"This is the plan of training on the split {split}. "
            f"`energy-data inspect --split {split}` shows validation."
        )
    show_plan(RunPlan(spec))
    if not against:
        return
    old = stream(load(against[0]), split, params=params, run=run, **facts) if is_yaml else None
    edit = _Edit.of(old, spec, saved, run)
    for line in edit.lines():
        click.echo(line)
    wrong = edit.misfits()
    for problem in wrong:
        click.echo(f"refused: {problem}", err=True)
    if wrong:
        ctx.exit(1)
    at = "" if saved is None else f" at micro-batch {saved.batch:,}"
    click.echo(f"a state{at} would be restored (resume: {edit.rule})")


def _is_metadataset(path: str) -> bool:
    """Return whether a path is a metadataset or a dataset, not a saved state."""
    is_data = Path(path).is_dir() and not Path(path, ".metadata").is_file()
    return is_data or path.endswith((".yaml", ".yml"))


@frozen
class _Edit:
    """A tree before an edit and after it, and how far the run is."""

    before: SavedTree
    now: SavedTree
    plans: Sequence[RunPlan]
    rule: Resume
    saved: RunState | None
    run: Context | None

    @classmethod
    def of(cls, old: Spec | None, new: Spec, saved: RunState | None, run: Context | None) -> _Edit:
        """Return the edit from an old tree, or that of a state, to a new one."""
        if old is None:
            assert saved is not None
            before = SavedTree.unpack(saved.tree)
        else:
            before = SavedTree.unpack(SavedTree.pack(old))
        plans = [RunPlan(old or before.spec), RunPlan(new)]
        rules = [spec.resume for _, spec in new.walk() if isinstance(spec, StagedSpec)]
        now = SavedTree.unpack(SavedTree.pack(new))
        return cls(before, now, plans, rules[0] if rules else "strict", saved, run)

    def misfits(self) -> list[str]:
        """Return why a state would be refused."""
        if wrong := list(self.other_run()):
            return wrong
        edits, now = differences(self.before, self.now), Stages.of(self.now)
        if now is None or not edits:
            return edits if self.saved is not None and self.saved.batch else []
        try:
            clock = 0 if self.saved is None else clock_of(self.saved, now)
        except StateMismatchError as error:
            return [str(error)]
        before = Stages.of(self.before) or Stages.single(self.before, now)
        return misfits(before, now, clock, self.rule)

    def other_run(self) -> Iterator[str]:
        """Yield why the state is of another run, whose edit does not matter."""
        for name in ("seed", "lanes"):
            was, now = getattr(self.saved, name, None), getattr(self.run, name, None)
            if self.saved is not None and was != now:
                yield f"{name} was {was}, is {now}: it is fixed for the life of a run"

    def lines(self) -> Iterator[str]:
        """Yield what differs, and what becomes of each leaf."""
        before, now = self.before.leaves, self.now.leaves
        yield from differences(self.before, self.now) or ["the order of the data is the same"]
        drawn = (self.saved and drawn_by(self.saved)) or Counter()
        kept = "continues"
        if Stages.of(self.now) is None and self.misfits() and not any(self.other_run()):
            kept += ' with on_mismatch="keep_matching"'
        for leaf_id in sorted(before.keys() | now.keys()):
            if leaf_id not in now:
                fate = "is no longer drawn from"
            elif leaf_id not in before:
                fate = "begins"
            elif before[leaf_id].fingerprint != now[leaf_id].fingerprint:
                fate = "begins again: its samples are others"
            else:
                fate = kept
            shares = " -> ".join(_shares(plan, leaf_id) for plan in self.plans)
            unit = (before.get(leaf_id) or now[leaf_id]).unit
            yield f"leaf {leaf_id}: {fate} after {drawn[leaf_id]:,} {unit}; {shares}"


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
