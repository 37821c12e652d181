"""The demo's datasets, made from what every machine has: the library of its Python."""

from __future__ import annotations

import ast
import io
import json
import sysconfig
import tarfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from energy_data.errors import MissingExtraError

SHARDS = 10  # per dataset, so that a ratio of 8,1,1 splits them
LARGEST_SOURCE = 100_000  # bytes of a source file
IMAGE_SIZE = 64  # pixels, both ways
COLOURS = ("red", "green", "blue", "orange", "purple", "black")
SHAPES = ("circle", "square", "triangle")

Parts = Mapping[str, bytes]
"""Extension -> bytes."""


def documents() -> Iterator[tuple[str, Parts]]:
    """Yield source files of the standard library: key, and a text each."""
    for name, source in _sources():
        yield name, {"txt": source.encode()}


def docstrings() -> Iterator[tuple[str, Parts]]:
    """Yield docstrings of the standard library: key, the text, and what it documents."""
    for name, source in _sources():
        try:
            module = ast.parse(source)
        except SyntaxError:  # files that are there to be wrong
            continue
        for qualified, node in _documented(module, ()):
            facts = {"name": ".".join((name.replace("/", "."), *qualified)), "line": node.lineno}
            text = ast.get_docstring(node) or ""
            yield (
                f"{name}/{node.lineno}",
                {"txt": text.encode(), "json": json.dumps(facts).encode()},
            )


def pictures(seed: int = 0) -> Iterator[tuple[str, Parts]]:
    """Yield drawn shapes without end: key, the picture, and a caption.

    Raises MissingExtraError if Pillow is not installed.
    """
    try:
        from PIL import Image, ImageDraw  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise MissingExtraError("drawing the demo's pictures", "images") from error
    random, number = Random(seed), 0  # noqa: S311 - pictures, not secrets
    while True:
        shape, (ground, colour) = random.choice(SHAPES), random.sample(COLOURS, 2)
        picture = Image.new("RGB", (IMAGE_SIZE, IMAGE_SIZE), ground)
        x, y, size = random.randint(2, 30), random.randint(2, 30), random.randint(12, 30)
        box = (x, y, x + size, y + size)
        corners = [(x, y + size), (x + size, y + size), (x + size // 2, y)]
        draw = ImageDraw.Draw(picture)
        if shape == "circle":
            draw.ellipse(box, fill=colour)
        elif shape == "square":
            draw.rectangle(box, fill=colour)
        else:
            draw.polygon(corners, fill=colour)
        file = io.BytesIO()
        picture.save(file, "PNG")
        caption = f"a {colour} {shape} on {ground} ground"
        yield f"picture{number:06}", {"png": file.getvalue(), "txt": caption.encode()}
        number += 1


DATASETS = {"documents": documents, "docstrings": docstrings, "pictures": pictures}


def write(folder: Path, samples: Iterator[tuple[str, Parts]], count: int) -> tuple[int, int]:
    """Write the first `count` samples as shards into a folder; return samples and bytes written."""
    folder.mkdir(parents=True)
    chosen = list(islice(samples, count))
    written = 0
    for shard in range(SHARDS):
        with tarfile.open(folder / f"shard-{shard:03}.tar", "w") as tar:
            for key, parts in chosen[shard::SHARDS]:
                for extension, data in parts.items():
                    member = tarfile.TarInfo(f"{key}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
                    written += len(data)
    return len(chosen), written


def _sources() -> Iterator[tuple[str, str]]:
    """Yield the name, such as `json/decoder`, and the text of source files that say something."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).with_suffix("")
        if skipped & set(name.parts) or not 0 < path.stat().st_size <= LARGEST_SOURCE:
            continue
        if str(name).startswith("__"):  # in tars such names are no samples
            continue
        try:
            yield str(name), path.read_text("utf-8")
        except UnicodeDecodeError:  # a few are in other encodings on purpose
            continue


def _documented(node: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the classes and functions with a docstring, and their qualified names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = (*names, child.name)
            if ast.get_docstring(child):
                yield inner, child
            yield from _documented(child, inner)
