"""The prompts of `energy-data prepare`, with the questions, order and answers of Energon's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import click
from rich.pretty import pretty_repr

from energy_data.data.files.local import open_file
from energy_data.data.splits import by_ratio
from energy_data.data.tar.header import Fault, split_name, walk
from energy_data.data.typed.dataset_yaml import CRUDE, has_default, own_fields
from energy_data.data.typed.field_map import parse_access
from energy_data.data.typed.sample_types import SAMPLE_TYPES
from energy_data.data.typed.samples import Sample
from energy_data.errors import SpecError

_MOST_TYPES = 10  # of parts; with more, there is no prompt for a field map
_SHOWN = 25  # characters of a text
_KEEP = "keep"  # the answer for the split that the dataset has
_NOT_IN_LIST = "VQAOCRSample"  # Energon's list of answers does not have it

_LISTED: Mapping[str, Any] = {
    **{name: SAMPLE_TYPES[name] for name in SAMPLE_TYPES if name != _NOT_IN_LIST},
    "Sample": Sample,
}
TYPES: Mapping[str, Any] = {
    **{name: _LISTED[name] for name in sorted(_LISTED)},
    CRUDE: None,
    _NOT_IN_LIST: SAMPLE_TYPES[_NOT_IN_LIST],
}
"""The types that can be chosen, by name, in the order of their numbers."""

Answers = tuple[str, dict[str, str] | None, bool]
"""The name of a type; its field map, or None for a file with functions; whether to replace that."""


def ask_ratio(path: Path, shards: list[str], *, has_split: bool) -> str | None:
    """Return the ratio of the parts, or None to keep the split that the dataset has."""
    click.echo(f"{len(shards)} shards, from {shards[0]} to {shards[-1]}.")
    click.echo("To leave some out, stop here (Ctrl+C) and use --exclude.")

    def valid(answer: str) -> str | None:
        if has_split and answer == _KEEP:
            return None
        try:
            by_ratio(answer, path, shuffle=False)(shards)
        except SpecError as error:
            raise click.BadParameter(str(error)) from error
        return answer

    ratio: str | None = click.prompt(
        "Shares of train, val and test, such as 8,1,1",
        default=_KEEP if has_split else None,
        value_proc=valid,
    )
    return ratio


def ask_definition(
    kind: str | None,
    field_map: dict[str, str] | None,
    extensions: Sequence[str],
    *,
    loader_exists: bool,
) -> Answers | None:
    """Ask for the contents of dataset.yaml; None: it is not written."""
    click.echo(f"Parts that samples have: {', '.join(extensions[:_MOST_TYPES])}")
    if kind is None:
        if not click.confirm("Write a dataset.yaml, which gives samples a type?", default=True):
            return None
        kind = _ask_type()
    if kind == CRUDE:
        click.echo("Crude samples are dicts of parts: the task encoder needs a Cooker for them.")
        return kind, None, False
    fields = own_fields(TYPES[kind])
    listed = (f"  {field.name}: {field.type}" for field in fields)
    click.echo("\n".join([f"{kind} has the fields", *listed]))
    if field_map is not None:
        return kind, field_map, False
    if len(extensions) > _MOST_TYPES:
        click.echo("There are too many kinds of parts for a field map: functions are needed.")
    elif click.confirm("Say where each field is (or write functions for it)?", default=True):
        return kind, _ask_fields(kind, extensions), False
    overwrite = loader_exists and click.confirm("Replace the sample_loader.py that is there?")
    return kind, None, overwrite


def show_samples(path: Path, shard: str) -> None:
    """Print the parts of the first two samples of a shard."""
    file = open_file(str(path / shard))
    members = (member for member in walk(file.read, 0, file.size) if member.regular)
    named = ((split_name(member.name), member) for member in members)
    parts = ((name[0], name[1], member) for name, member in named if name is not None)
    try:
        for key, group in islice(groupby(parts, lambda part: part[0]), 2):
            click.echo(f"Sample {key}:")
            for _, extension, member in group:
                click.echo(f"  {extension}")
                if extension == "json":
                    click.echo(_shown(file.read(member.data, member.size)))
    except Fault:  # at the end marker, which the scan has checked
        return


def _ask_type() -> str:
    names = [name for name in TYPES if name != _NOT_IN_LIST]
    for number, name in enumerate(names):
        click.echo(f"{number}. {name}")
    number = click.prompt("Number of the type", type=click.IntRange(0, len(names) - 1))
    return names[number]


def _ask_fields(kind: str, extensions: Sequence[str]) -> dict[str, str]:
    click.echo(f"Parts: {', '.join(extensions)}. Within JSON: json[caption]. Either: jpg,png.")
    click.echo("An empty answer leaves an optional field out.")
    answers = {}
    for field in own_fields(TYPES[kind]):
        optional = has_default(field)
        hint = f"{field.type}, may be left out" if optional else str(field.type)
        while True:
            answer = click.prompt(f"Where is {field.name} ({hint})", default="", show_default=False)
            if optional and not answer:
                break
            if _exists(answer, extensions):
                answers[field.name] = answer
                break
            click.echo("Samples have no such part. Give another.")
    return answers


def _exists(answer: str, extensions: Sequence[str]) -> bool:
    try:
        options = parse_access(answer)
    except ValueError:
        return False
    return all(option[0] in extensions for option in options)


def _shown(data: bytes) -> str:
    try:
        return pretty_repr(json.loads(data), max_length=3, max_string=_SHOWN)
    except (ValueError, RecursionError):
        return "  (invalid JSON)"
