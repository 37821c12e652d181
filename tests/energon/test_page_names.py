"""The page about migrating has every name, with the first sentence of its docstring."""

from __future__ import annotations

import inspect
from pathlib import Path

import energy_data.energon

PAGE = Path(__file__).parents[2] / "docs" / "migrating-from-energon.md"


def rows() -> list[str]:
    """The rows of the table; put them there if this test says so."""
    names = sorted(energy_data.energon.__all__, key=str.lower)
    return [f"| `{name}` | {about(name)} |" for name in names if not name.startswith("__")]


def about(name: str) -> str:
    lines = (inspect.getdoc(getattr(energy_data.energon, name)) or "").split("\n\n")[0]
    return " ".join(lines.split())


def test_the_page_has_every_name_and_says_what_it_is():
    shown = PAGE.read_text().splitlines()
    table = shown[shown.index("| name | what it is here |") + 2 :]
    assert table[: len(rows())] == rows(), "\n".join(rows())
