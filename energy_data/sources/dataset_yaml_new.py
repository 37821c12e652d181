"""A new `dataset.yaml`, and the Python file it names where a field map does not do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from energy_data.samples.typed import BASIC_FIELDS, Sample
from energy_data.sources.dataset_yaml import CRUDE
from energy_data.sources.tar_meta import FOLDER
from energy_data.storage.files import write_whole

LOADER = "sample_loader.py"
_MODULE = "megatron.energon"


def definition_of(
    kind: type[Sample] | None, field_map: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a dataset.yaml for samples of a kind.

    kind: None is crude. field_map: None names functions in a file, see `write_loader`.
    """
    if kind is None:
        return {"__module__": _MODULE, "__class__": CRUDE}
    said: dict[str, Any] = {"sample_type": {"__module__": _MODULE, "__class__": kind.__name__}}
    if field_map is not None:
        return said | {"field_map": dict(field_map)}
    functions = ("sample_loader", "part_filter")
    return said | {function: f"{LOADER}:{function}" for function in functions}


def write_definition(path: Path, definition: Mapping[str, Any], name: str) -> None:
    """Write a dataset.yaml, by whatever name, into a prepared folder."""
    text = yaml.safe_dump(dict(definition), sort_keys=False, allow_unicode=True)
    write_whole(str(path / FOLDER / name), text.encode(), path.stat().st_mode)


def has_loader(path: Path) -> bool:
    """Return whether there is a file with functions already."""
    return (path / FOLDER / LOADER).exists()


def write_loader(path: Path, kind: type[Sample], parts: Sequence[str]) -> Path:
    """Write a file with functions for the user to fill in; return its path.

    It raises an error until that is done.
    """
    lines = "\n".join(f"        {_line(field)}" for field in own_fields(kind))
    text = (
        f'"""Makes the fields of {kind.__name__} of the parts of a sample. To be filled in."""\n\n'
        "\n"
        "def sample_loader(raw: dict) -> dict:\n"
        f"    # raw: part -> value, decoded; parts seen here: {', '.join(parts)}\n"
        "    return dict(\n"
        f"{lines}\n"
        "    )\n\n\n"
        "def part_filter(part: str) -> bool:\n"
        "    # Parts that `sample_loader` does not use need not be decoded.\n"
        f"    return part in {tuple(parts)!r}\n"
    )
    file = path / FOLDER / LOADER
    write_whole(str(file), text.encode(), path.stat().st_mode)
    return file


def own_fields(kind: type[Sample]) -> list[dataclasses.Field[Any]]:
    """Return the fields that a kind of sample adds."""
    return [field for field in dataclasses.fields(kind) if field.name not in BASIC_FIELDS]


def has_default(field: dataclasses.Field[Any]) -> bool:
    """Return whether a field can be left out."""
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


def _line(field: dataclasses.Field[Any]) -> str:
    optional = f", {field.default!r} if left out" if has_default(field) else ""
    return f'{field.name}=raw["FILL IN"],  # {field.type}{optional}'
