"""`energy-data preview`: samples as text and pictures, or as files."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from rich.console import Console

from energy_data.cli.leaves import compiled, open_declared, splits_of
from energy_data.cli.values import describe, picture
from energy_data.config.load import load
from energy_data.core.sample import describe_source, get_source_info, sample_field, values_of
from energy_data.data.decode.av import MEDIA_EXTENSIONS
from energy_data.data.decode.images import EXTENSIONS
from energy_data.data.decode.media import extension_of
from energy_data.data.nv_meta import is_inside
from energy_data.data.registry import open_source
from energy_data.data.source import Source
from energy_data.errors import SampleError, SpecError
from energy_data.nodes.leaf import distinct_leaves


@click.command("preview")
@click.argument("meta")
@click.option(
    "--split", metavar="NAME", help="This split only.  [default: all, or all parts of a dataset]"
)
@click.option(
    "--num-samples",
    "-n",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Samples of each leaf, from its first one on.",
)
@click.option("--random", "at_random", is_flag=True, help="Choose the samples at random.")
@click.option("--seed", default=0, show_default=True, metavar="N", help="Seed of --random.")
@click.option(
    "--index",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="N",
    help="The sample of this number, from 0; may be repeated.",
)
@click.option(
    "--key",
    multiple=True,
    metavar="KEY",
    help="The sample of this key, as `shard.tar/key` or `key`; may be repeated.",
)
@click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the parts of the samples as files below a folder.",
)
def command(meta: str, *, split: str | None, save: Path | None, **chosen: Any) -> None:
    """Show samples, or write their parts as files.

    META is a dataset, or a metadataset (.yaml) for samples of each leaf. Samples are those of its
    dataset.yaml, before cookers and task encoders. On a terminal, images are shown.

    --save writes FOLDER/DATASET/SHARD/KEY.PART. Parts of tars are written as they are.

    The exit code is 1 if one of the samples is bad.
    """
    if len([name for name in ("at_random", "index", "key") if chosen[name]]) > 1:
        raise click.UsageError("--random, --index and --key exclude each other: give one.")
    metadataset = load(meta)
    opened = open_declared if save is None else partial(open_source, decode="bytes")
    specs = [compiled(metadataset, one, opened=opened) for one in splits_of(metadataset, split)]
    leaves = distinct_leaves(*specs)
    has_bad, is_found = False, set[str]()
    for leaf in leaves:
        for index in _indices(leaf.source, chosen, is_found):
            (sample,) = leaf.source.read(np.array([index]))
            if isinstance(sample, SampleError):
                has_bad = True
                click.echo(str(sample), err=True)
                continue
            click.echo(f"{leaf.id}, {index:,} of {len(leaf.source):,}: {describe_source(sample)}")
            _show(sample) if save is None else _save(sample, save)
    if missing := [key for key in chosen["key"] if key not in is_found]:
        where = f"{meta}, split {split}" if split else meta
        raise SpecError(f"{where}: there is no sample {missing[0]!r}. Check the key.")
    if has_bad:
        sys.exit(1)


def _indices(source: Source, chosen: dict[str, Any], is_found: set[str]) -> Sequence[int]:
    """Return the samples of a leaf that are chosen; add the keys that it has to `is_found`."""
    if keys := chosen["key"]:
        found = {key: source.find(key) for key in keys}
        is_found.update(key for key, index in found.items() if index is not None)
        return [index for index in found.values() if index is not None]
    if indices := chosen["index"]:
        if max(indices) >= len(source):
            problem = f"there is no sample {max(indices)}, the last one is {len(source) - 1}"
            raise SpecError(f"--index: {problem}. Give a smaller number.")
        return list(indices)
    count = min(chosen["num_samples"], len(source))
    if not chosen["at_random"]:
        return range(count)
    rng = np.random.default_rng(chosen["seed"])
    picked: list[int] = rng.choice(len(source), count, replace=False).tolist()
    return picked


def _show(sample: Any) -> None:
    values = values_of(sample)
    if flavors := sample_field(sample, "__subflavors__"):
        values["__subflavors__"] = flavors
    console = Console(markup=False, emoji=False, highlight=False)
    for name, value in values.items():
        label = f"  {name if name.isprintable() else repr(name)}  "
        click.echo(label + describe(value).replace("\n", "\n    "))
        if console.is_terminal:
            for line in picture(value, console.width - 4):
                console.print("    ", line, sep="")


def _save(sample: Any, folder: Path) -> None:
    """Write the parts of a sample; SpecError where another file is in their place."""
    sources = get_source_info(sample) or []
    shard = [part for one in sources[:1] for part in (Path(one.dataset).name, one.shard)]
    for name, value in values_of(sample).items():
        for suffix, data in _contents(name, value):
            inside = "/".join(
                [*dict.fromkeys(shard), f"{sample_field(sample, '__key__')}.{name}{suffix}"]
            )
            if not is_inside(inside) or "\0" in inside:
                raise SpecError(f"{folder}: the key of a sample leads out of it: {inside!r}.")
            path = folder / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.read_bytes() != data:
                raise SpecError(f"{path}: it is there, and is another file. Give another folder.")
            path.write_bytes(data)
            click.echo(f"  {path}, {len(data):,} bytes")


def _contents(name: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of a value's file, with the suffix that its name lacks."""
    last = name.rpartition(".")[2].lower()
    if isinstance(value, bytes):
        found = extension_of(value)
        known = not found or last in EXTENSIONS or last in MEDIA_EXTENSIONS
        yield ("" if known else f".{found}"), value
    elif isinstance(value, str):
        yield ("" if last == "txt" else ".txt"), value.encode("utf-8", "surrogatepass")
    elif isinstance(value, torch.Tensor | np.ndarray):
        stream = io.BytesIO()
        np.save(stream, np.asarray(value), allow_pickle=False)
        yield ("" if last == "npy" else ".npy"), stream.getvalue()
    elif value is not None:
        text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
        yield ("" if last == "json" else ".json"), text.encode("utf-8", "surrogatepass")
