"""`energy-data prepare`: indices next to the tars, and `.nv-meta` with the splits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from energy_data.sources.prepare import Summary, parse_patterns, prepare

DEFAULT_RATIO = "1,0,0"


@click.command("prepare")
@click.argument("path", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--split-ratio",
    metavar="TRAIN,VAL,TEST",
    help=f"Shares of the shards, in order of their names.  [default: {DEFAULT_RATIO}]",
)
@click.option(
    "--split-parts",
    multiple=True,
    metavar="PART:PATTERN",
    help="Shards of a part, such as 'train:shard_0.*' or 'val:*_val.tar'; may be repeated.",
)
@click.option("--exclude", metavar="REGEX", help="Leave out tars whose name has a match.")
@click.option(
    "--num-workers",
    type=click.IntRange(min=1),
    help="Processes; by default one per CPU if there are shards enough.",
)
@click.option(
    "--force-overwrite", "--force", "force", is_flag=True, help="Prepare again what is prepared."
)
@click.option("--sqlite", is_flag=True, help="Write index.sqlite too: each part by its key.")
@click.option(
    "--non-interactive",
    is_flag=True,
    expose_value=False,
    help="Accepted for scripts written for Energon: nothing is ever asked.",
)
def command(
    path: Path,
    *,
    split_ratio: str | None,
    split_parts: tuple[str, ...],
    exclude: str | None,
    num_workers: int | None,
    force: bool,
    sqlite: bool,
) -> None:
    """Prepare a folder of tars for reading at random.

    Writes what Energon's `prepare` writes: `shard.tar.idx` next to each tar, and `.nv-meta` with
    the splits.
    """
    split = _split(split_ratio, split_parts)
    began = perf_counter()
    with _progress() as progress:
        task = progress.add_task("Indexing shards", total=None)
        summary = prepare(
            path,
            split=split,
            exclude=exclude,
            force=force,
            sqlite=sqlite,
            workers=num_workers,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    for line in _told(summary, perf_counter() - began):
        click.echo(line)


def _split(ratio: str | None, parts: Sequence[str]) -> str | Mapping[str, Sequence[str]]:
    if ratio is not None and parts:
        raise click.UsageError("--split-ratio and --split-parts exclude each other: give one.")
    return parse_patterns(parts) if parts else ratio or DEFAULT_RATIO


def _progress() -> Progress:
    """Return a progress bar; it shows on terminals only."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _told(summary: Summary, seconds: float) -> list[str]:
    counts = summary.shard_counts
    lines = [
        f"{summary.path}: {summary.num_samples:,} samples in {_shards(len(counts))}, "
        f"{seconds:.1f} s"
    ]
    for part, shards in summary.split_parts.items():
        samples = sum(counts[shard] for shard in shards)
        lines.append(f"  {part:<6} {samples:>10,} samples in {_shards(len(shards))}")
    lines.append(f"  each sample has some of: {', '.join(summary.extensions)}")
    if summary.kept_indices:
        lines.append(f"  kept the indices of {_shards(summary.kept_indices)}: they fit their tars")
    if empty := summary.empty_shards:
        lines.append(f"  left out {_shards(len(empty))} without samples, {empty[0]} first")
    return lines


def _shards(count: int) -> str:
    return f"{count:,} shard{'' if count == 1 else 's'}"
