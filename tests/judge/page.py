"""The first Python block below each heading of docs/trainers.md."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text()


def block(title):
    """The text of the block."""
    return re.search(rf"^## {title}\n.*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[1]


def run_block(title, **names):
    """Run the block with these names, and return all names that it has then."""
    exec(compile(block(title), title, "exec"), names)
    return names
