"""The code and the YAML of the two texts about Energon that this issue began with."""

from __future__ import annotations

import os
import re
from pathlib import Path

SEEDS = Path(os.environ.get("ENERGY_DATA_SEEDS", "/work/shared/seeds"))
BLENDING = SEEDS / "001_463b2e42a4070a79.txt"
METADATASET = SEEDS / "002_45a7a470c2cc9433.txt"

_OUR_IMPORT = ("megatron.energon", "energy_data.energon")


def our_import(code: str) -> str:
    """Return code as a user migrates it: one name is another."""
    return code.replace(*_OUR_IMPORT)


def python_of_blending() -> list[str]:
    """Return the four programs of the text; it has lost its indentation, which is put back."""
    text = BLENDING.read_text()
    starts = [match.start() for match in re.finditer(r"^from (megatron|dataclasses)", text, re.M)]
    ends = [
        text.index(stop)
        for stop in (
            "Mixing datasets of homogeneous",
            "Mixing datasets of heterogeneous",
            "Sample weights",
        )
    ]
    blocks = [text[start:end] for start, end in zip(starts, [*ends, None], strict=False)]
    # The last program is in two parts, with a line of prose between them.
    last = text[text.index("from dataclasses") :].replace("Combined with dataset blending:\n", "")
    return [indented(block) for block in [*blocks[:3], last]]


_AT_THE_MARGIN = re.compile(
    r"from |import |@|class |def \w+\((?!self)(?!$)|(train_loader|val_loader|mix_dataset) = |for "
    r"|# (Typ|All|Combine|Interleave|If|Iterating|Define)"
)


def indented(code: str) -> str:
    """Return Python with the indentation that its words call for."""
    lines: list[str] = []
    levels: list[str] = []  # the words of the statements we are in
    depth, word = 0, ""
    for line in code.splitlines():
        if depth == 0:
            word = line.split(" ")[0]
            if _AT_THE_MARGIN.match(line):
                levels = []
            elif word == "def":
                levels = levels[:1]
        lines.append("    " * len(levels) + line)
        if not line.startswith("#"):
            depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        if depth == 0 and line.endswith(":") and word in ("class", "def", "for"):
            levels.append(word)
    return "\n".join(lines) + "\n"


def blocks_of_metadataset() -> list[str]:
    """Return the YAML and Python blocks of the other text, in order."""
    text = METADATASET.read_text()
    prose = ["Usage in your loader", "Advanced format of", "Customized Blending", "Classes"]
    begins = ["# Outer object", "from megatron", "# Outer object", "# All the typing"]
    blocks, at = [], 0
    for begin, stop in zip(begins, prose, strict=True):
        first = text.index(begin, at)
        at = text.index(f"\n{stop}", first)
        blocks.append(text[first:at].strip() + "\n")
    return blocks
