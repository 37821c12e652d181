"""MosaicML Streaming and the files that it reads."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch


def streaming() -> Any:
    """Return the package.

    It imports torchvision for datasets of its own. With a torch for CPUs, torchvision of PyPI
    does not find its compiled part, and fails where it registers these two operators.
    """
    if torch.version.cuda is None:
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import streaming as module

        operators._destroy()
    else:
        import streaming as module
    return module


def write(folder: Path, samples: Iterable[tuple[str, bytes]]) -> None:
    """Write keys and bytes as MDS, uncompressed."""
    columns = {"key": "str", "value": "bytes"}
    with streaming().MDSWriter(out=str(folder), columns=columns) as writer:
        for key, value in samples:
            writer.write({"key": key, "value": value})
