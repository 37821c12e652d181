"""docs/api.md lists every public name; `python tests/examples/test_api_page.py` writes it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import energy_data
import energy_data.energon

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
HEAD = """# API

Every public name of `energy_data`, with its parameters and the first line of its docstring.
`help(name)` shows the rest. Words: [glossary](glossary.md).
`python tests/examples/test_api_page.py` writes this page.
"""
TITLES = {  # the module of a name, by its beginning -> the section
    "energy_data.api": "Datasets and loaders",
    "energy_data.loading.steps": "Stages and steps",
    "energy_data.loading": "Datasets and loaders",
    "energy_data.core": "Runs and functions",
    "energy_data.tasks.encoder": "Task encoders",
    "energy_data.tasks.functions": "Task encoders",
    "energy_data.tasks.collate": "Samples and batches",
    "energy_data.tasks": "Datasets over datasets",
    "energy_data.nodes.packing": "Task encoders",
    "energy_data.nodes": "Stages and steps",
    "energy_data.order": "Stages and steps",
    "energy_data.data.text": "Task encoders",
    "energy_data.data.typed": "Samples and batches",
    "energy_data.data": "Files and decoding",
    "energy_data.errors": "Errors",
}
ONLY_ENERGON = "Only in `energy_data.energon`"


def title_of(value: Any) -> str:
    module = value.__module__ + "."
    return next(title for start, title in TITLES.items() if module.startswith(start))


def parameters_of(value: Any) -> str:
    """The names of parameters, with plain defaults; nothing for errors and dicts."""
    if inspect.isclass(value) and issubclass(value, (Exception, dict)):
        return ""
    shown = []
    for one in inspect.signature(value).parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in shown and not any("*" in s for s in shown):
            shown.append("*")
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        plain = one.default is None or isinstance(one.default, bool | int | float | str)
        default = "" if one.default is one.empty else f"={one.default!r}" if plain else "=..."
        shown.append(f"{star}{one.name}{default}")
    return f"({', '.join(shown)})"


def row(module: Any, name: str) -> str:
    value = getattr(module, name)
    about = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return f"- **`{name}{parameters_of(value)}`** {about}"


def page() -> str:
    sections: dict[str, list[str]] = {title: [] for title in [*TITLES.values(), ONLY_ENERGON]}
    for name in sorted(energy_data.__all__, key=str.lower):
        sections[title_of(getattr(energy_data, name))].append(row(energy_data, name))
    others = set(energy_data.energon.__all__) - {*energy_data.__all__, "__version__"}
    for name in sorted(others, key=str.lower):
        sections[ONLY_ENERGON].append(row(energy_data.energon, name))
    return HEAD + "".join(
        f"\n## {title}\n\n" + "\n".join(rows) + "\n" for title, rows in sections.items()
    )


def test_the_page_has_every_public_name_as_it_is_now():
    assert PAGE.read_text() == page(), "run `python tests/examples/test_api_page.py`"


if __name__ == "__main__":
    PAGE.write_text(page())
