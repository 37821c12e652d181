"""`energy-data demo`: the whole way, from tars to an exact resume, in half a minute."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import click
from rich.console import Console
from rich.progress import track

from energy_data.cli.demo import stream
from energy_data.cli.demo.data import DATASETS, write
from energy_data.core.context import WorkerConfig
from energy_data.errors import EnergyDataError, SpecError

MARK = ".energy-data-demo"  # in folders that the demo may write anew
LANES = 8
BATCH_SIZE = 32

METADATASET = """\
# What the demo trains on. Weights are relative: of 10 samples, 5 are source files, 3 docstrings,
# 2 pictures; in every lane and at every moment to within two samples, never just on average.
splits:
  train:
    blend:
      - weight: 5
        path: ./documents
        subflavors: {task: code}      # comes with every sample, in `__subflavors__`
      - weight: 3
        path: ./docstrings
        subflavors: {task: prose}
      - weight: 2
        path: ./pictures
        subflavors: {task: captioning}
  val:
    concat:                           # each sample once, in order, at every validation
      - path: ./documents
      - path: ./docstrings
      - path: ./pictures
"""


@click.command("demo")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-data"),
    show_default=True,
    help="Where to put the data; written anew each time.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=10),
    default=2_000,
    show_default=True,
    help="Samples per dataset, at most.",
)
@click.option(
    "--batches",
    type=click.IntRange(min=2),
    default=200,
    show_default=True,
    help="Micro-batches to train; saved after half of them.",
)
@click.pass_context
def command(ctx: click.Context, folder: Path, samples: int, batches: int) -> None:
    """Show the whole way, from tars to an exact resume.

    Makes data, prepares and inspects it, trains, saves half-way, resumes in new processes.

    Needs no network. Exit code 1 if the resumed stream is not the same, byte by byte.
    """
    began = perf_counter()
    _make_data(folder, samples)
    _prepare(ctx, folder)
    meta = _write_metadataset(ctx, folder, batches)
    state, rest = _train(meta, batches)
    _resume(meta, state, rest)
    click.echo(
        f"\nAll of this took {perf_counter() - began:.0f} s. Now with your own tars: "
        "`energy-data prepare FOLDER`, then README.md, 'Your own data'."
    )


def _make_data(folder: Path, samples: int) -> None:
    _title(1, "Data, made from the library of this Python (no network)")
    if folder.exists():
        if any(folder.iterdir()) and not (folder / MARK).exists():
            raise SpecError(
                f"{folder}: it has files in it that are not the demo's. Give another --folder."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    about = {"documents": "source files", "docstrings": "text and json", "pictures": "png and text"}
    for name, make in DATASETS.items():
        count, size = write(folder / name, make(), samples)
        click.echo(f"  {name:<11} {count:>6,} samples ({about[name]}), {size / 1e6:.1f} MB of tars")


def _prepare(ctx: click.Context, folder: Path) -> None:
    _title(2, "Prepare: find every sample once, and split the shards")
    for name in DATASETS:
        one = ("--num-workers", "1")  # starting more takes longer than ten small shards
        _run(ctx, "prepare", str(folder / name), "--split-ratio", "8,1,1", *one)


def _write_metadataset(ctx: click.Context, folder: Path, batches: int) -> Path:
    _title(3, "A metadataset says what to draw, and how much of each")
    meta = folder / "demo.yaml"
    meta.write_text(METADATASET)
    click.echo("".join(f"  {line}\n" for line in METADATASET.splitlines()))
    _run(ctx, "check", str(meta))
    click.echo("\nWhat a run will have seen can be computed before it starts:")
    numbers = {"--batches": batches, "--batch-size": BATCH_SIZE, "--lanes": LANES}
    _run(ctx, "inspect", str(meta), *(str(word) for pair in numbers.items() for word in pair))
    return meta


def _train(meta: Path, batches: int) -> tuple[Path, list[dict[str, Any]]]:
    """Train; return the state saved half-way, and what came after it."""
    _title(4, f"Train on one rank: {batches} micro-batches of {BATCH_SIZE}, in {LANES} lanes")
    loader = stream.make_loader(meta, BATCH_SIZE, WorkerConfig(lanes=LANES))
    saved = meta.with_name("state.json")
    half = batches // 2
    drawn: Counter[str] = Counter()
    rest = []
    began = perf_counter()
    for number, batch in enumerate(_watched(islice(loader, batches), batches)):
        drawn.update(Path(source.dataset).name for [source] in batch["__sources__"])
        if number >= half:
            told = {"key": batch["__key__"][0], "digest": stream.digest(batch)}
            rest.append({"batch": number, **told})
        if number + 1 == half:
            saved.write_text(json.dumps(loader.state_dict()))
    seconds = perf_counter() - began
    total = sum(drawn.values())
    click.echo(f"  {total:,} samples in {seconds:.1f} s, {total / seconds:,.0f} per second. Drawn:")
    for name in DATASETS:
        click.echo(f"    {name:<11} {drawn[name]:>6,}  {100 * drawn[name] / total:6.2f} %")
    click.echo(
        f"  The state after micro-batch {half - 1} is in {saved}: {saved.stat().st_size} bytes of "
        "JSON."
    )
    return saved, rest


def _resume(meta: Path, state: Path, rest: Sequence[dict[str, Any]]) -> None:
    """Go on in new processes, on one rank and on two; raise if the stream differs."""
    _title(5, "Resume in new processes: on one rank, and on two")
    began = perf_counter()
    running = {
        ranks: [_start(meta, state, rank, ranks, len(rest)) for rank in range(ranks)]
        for ranks in (1, 2)
    }
    found = {
        ranks: sorted((told for one in ones for told in _told(one)), key=lambda told: told["batch"])
        for ranks, ones in running.items()
    }
    click.echo(
        f"  micro-batch  {'first key':<32}  {'without stop':<16}  {'on 1 rank':<16}  on 2 ranks"
    )
    for number, first in enumerate(rest[:3]):
        resumed = "  ".join(found[ranks][number]["digest"] for ranks in found)
        click.echo(f"  {first['batch']:>11}  {first['key']:<32}  {first['digest']}  {resumed}")
    click.echo("          ...")
    for ranks, told in found.items():
        name = f"{ranks} rank{'s' if ranks > 1 else ''}"
        if told != list(rest):
            wrong = [one["batch"] for one, two in zip(rest, told, strict=False) if one != two]
            raise EnergyDataError(
                f"resumed on {name}: the stream differs, first at micro-batch {wrong[:1]}. This is "
                "a fault of energy_data: please report it."
            )
        click.echo(f"  {name:<7} all {len(rest)} micro-batches after the save are identical.")
    click.echo(
        f"  ({len(found) + 1} processes, {perf_counter() - began:.0f} s, most of it starting)"
    )


def _start(meta: Path, state: Path, rank: int, ranks: int, batches: int) -> subprocess.Popen[str]:
    numbers = (rank, ranks, BATCH_SIZE, batches)
    return subprocess.Popen(  # noqa: S603 - this Python, with our own arguments
        [sys.executable, "-m", stream.__name__, str(meta), str(state), *map(str, numbers)],
        stdout=subprocess.PIPE,
        text=True,
    )


def _told(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    said, _ = process.communicate()
    if process.returncode:
        raise EnergyDataError(
            f"resume: a process ended with exit code {process.returncode}; what it said is above."
        )
    return [json.loads(line) for line in said.splitlines()]


def _run(ctx: click.Context, *arguments: str) -> None:
    """Run another command as a user would."""
    click.secho(f"$ energy-data {' '.join(arguments)}", fg="cyan")
    commands = ctx.find_root().command
    commands.main(list(arguments), prog_name="energy-data", standalone_mode=False)


def _watched(batches: Iterator[Any], total: int) -> Iterator[Any]:
    """Yield the batches; with a progress bar if someone looks on."""
    console = Console(stderr=True)
    if not console.is_terminal:
        return batches
    return iter(track(batches, "  Training", total=total, console=console, transient=True))


def _title(number: int, text: str) -> None:
    click.secho(f"\n{number}. {text}", bold=True)
