"""Samples of one image. Images are float32 [3, H, W] in [0, 1] unless the decoder says else."""

from __future__ import annotations

import torch

from energy_data.samples.edataclass import edataclass
from energy_data.samples.typed import Sample


@edataclass
class ImageSample(Sample):
    """An image."""

    image: torch.Tensor  # float32 [3, H, W]


@edataclass
class ImageClassificationSample(Sample):
    """An image and its class, by number or by name."""

    image: torch.Tensor  # float32 [3, H, W]
    label: int | None = None
    label_name: str | None = None


@edataclass
class CaptioningSample(Sample):
    """An image and what it shows, in words."""

    image: torch.Tensor  # float32 [3, H, W]
    caption: str


@edataclass
class OCRSample(Sample):
    """An image of a text, and the text, cut into blocks, lines, words and characters.

    Boxes are float [N, 4] (x, y, width, height), or [N, 5] with a confidence.
    """

    image: torch.Tensor  # float32 [3, H, W]
    text: str
    block_boxes: torch.Tensor | None = None
    block_classes: torch.Tensor | list[str] | None = None  # int [N], or names
    block_text: list[str] | None = None
    lines_boxes: torch.Tensor | None = None
    lines_text: list[str] | None = None
    words_boxes: torch.Tensor | None = None
    words_text: list[str] | None = None
    chars_boxes: torch.Tensor | None = None
    chars_text: list[str] | None = None
