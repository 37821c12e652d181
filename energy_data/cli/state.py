"""`energy-data state`: what a saved state contains."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

import energy_data.api  # noqa: F401 - defines the kinds of specs that states have
from energy_data.loading.checkpoint.run_state import RunState
from energy_data.loading.checkpoint.saved_file import read_state
from energy_data.loading.checkpoint.saved_run import SavedRun, SavedTree
from energy_data.loading.checkpoint.whole_run import merge
from energy_data.remote.mirror_paths import is_url


def saved_run(paths: Sequence[str], key: str | None = None) -> RunState:
    """Return the state of a whole run, or of a single rank. Raises a StateError."""
    states = [RunState.from_dict(read_state(path, key=key)) for path in paths]
    return states[0] if len(states) == 1 else merge(states)


def drawn_by(state: RunState) -> Counter[str] | None:
    """Return the units of each leaf drawn in the lanes of a state; None: a finite stream."""
    run = SavedRun(state)
    if run.tree.is_finite:
        return None
    drawn: Counter[str] = Counter()
    for lane in state.places:
        drawn.update(run.past(lane).drawn)
    return drawn


def existing(path: str) -> str:
    """Return a path of something, or a URL."""
    if not is_url(path) and not Path(path).exists():
        raise click.BadParameter(f"Path {path!r} does not exist.")
    return path


@click.group("state")
def command() -> None:
    """Show and merge saved states."""


@command.command("show")
@click.argument("file", nargs=-1, required=True, type=existing)
@click.option(
    "--key",
    metavar="NAME",
    help="Name of the loader in a folder.  [default: the only one]",
)
def show(file: tuple[str, ...], key: str | None) -> None:
    """Show where a run is, and how often each leaf was drawn.

    FILE is a state as JSON or as `torch.save` writes it, or a folder that
    `torch.distributed.checkpoint` has written; or the URL of one. Give one, or those of all ranks.
    """
    for line in _lines(saved_run(file, key)):
        click.echo(line)


@command.command("merge")
@click.argument("file", nargs=-1, required=True, type=existing)
@click.option(
    "--output", required=True, type=click.Path(path_type=Path), metavar="PATH", help="A new file."
)
@click.option("--key", metavar="NAME", help="As for `show`.")
def merge_command(file: tuple[str, ...], output: Path, key: str | None) -> None:
    """Write the state of a run, from the states of its ranks, as JSON.

    FILE is as for `show`. Give those of all ranks. Every rank restores from the file that is
    written (`loader.load_state_dict`), on any number of ranks that divides the lanes.
    """
    state = merge([saved_run(file, key)])  # also if it is one: whether it is whole
    with output.open("x") as written:
        json.dump(state.to_dict(), written)
    click.echo(f"{output}: the run at micro-batch {state.batch:,}, {state.lanes} lanes")


def _lines(state: RunState) -> Iterator[str]:
    rank, ranks = state.hosted
    yield f"seed: {state.seed}"
    yield f"lanes: {state.lanes}"
    yield f"saved by: {'all ranks, or one' if ranks == 1 else f'rank {rank} of {ranks}'}"
    yield f"next micro-batch: {state.batch:,}"
    if state.epoch:
        yield f"passes finished: {state.epoch:,}, this one began with {state.epoch_start:,}"
    if state.step is not None:
        step, index = state.step["step"], state.step["index"]
        yield f"step: {step:,}, after {index} of its micro-batches"
    for name, count in sorted(_left_out(state).items()):
        yield f"{name}: {count:,}"
    record = SavedTree.unpack(state.tree)
    yield f"leaves: {len(record.leaves)}"
    drawn = drawn_by(state)
    of = "" if len(state.places) == state.lanes else f" in {len(state.places)} of the lanes"
    for leaf_id, leaf in sorted(record.leaves.items()):
        if drawn is None:
            yield f"  {leaf_id}"
            continue
        size = (leaf.chunks or 0) * leaf.chunk
        epochs = f", {drawn[leaf_id] / size:.3g} epochs of {size:,}" if size else ""
        yield f"  {leaf_id}: {drawn[leaf_id]:,} {leaf.unit} drawn{epochs}{of}"


def _left_out(state: RunState) -> Counter[str]:
    """Return what nodes counted as left out, by the node's place and the name of the count."""
    found: Counter[str] = Counter()
    for place in state.places.values():
        for path, cursor in place.items():
            for name in ("skipped", "excluded"):
                if count := cursor.get(name):
                    found[f"{name} by {path}"] += count
    return found
