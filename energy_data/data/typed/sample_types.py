"""The types of samples that files name: those of Energon, with their fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from energy_data.data.typed.samples import Sample, edataclass


@edataclass
class TextSample(Sample):
    """A text."""

    text: str


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


@edataclass
class VQASample(Sample):
    """An image, a question about it, and answers."""

    image: torch.Tensor  # float32 [3, H, W]
    context: str  # the question
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None  # float [answers]


@edataclass
class VQAOCRSample(Sample):
    """An image with text in it, a question about it, and answers."""

    image: torch.Tensor  # float32 [3, H, W]
    context: str  # the question
    text: str  # in the image
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None  # float [answers]
    words_boxes: torch.Tensor | None = None  # float [N, 4 or 5]
    words_text: list[str] | None = None


@edataclass
class MultiChoiceVQASample(Sample):
    """An image, a question about it, and answers to choose from."""

    image: torch.Tensor  # float32 [3, H, W]
    context: str  # the question
    choices: list[str] | None = None
    correct_choice_idx: int = 0


@edataclass
class VidQASample(Sample):
    """A video, a question about it, and answers."""

    video: Any  # what the decoder makes of videos: `AVDecoder` or `AVData`
    context: str  # the question
    answers: list[str] | None = None
    answer_weights: torch.Tensor | None = None  # float [answers]


@edataclass
class InterleavedSample(Sample):
    """Texts and images in their order."""

    sequence: list[torch.Tensor | str]  # images float32 [3, H, W], texts


@edataclass
class SimilarityInterleavedSample(Sample):
    """Texts and media by kind; similarities show which belong together."""

    images: list[torch.Tensor]  # each float32 [3, H, W]
    texts: list[str]
    audio: list[torch.Tensor] | None = None
    video: list[torch.Tensor] | None = None
    similarity_matrix: torch.Tensor | None = None  # float [images, texts]
    matched_text_indices: list[int] | None = None  # for each image, the number of its text


SAMPLE_TYPES: Mapping[str, type[Sample]] = {
    name: kind
    for name, kind in sorted(globals().items())
    if isinstance(kind, type) and issubclass(kind, Sample) and kind is not Sample
}
"""Name -> type, in the order of names."""

WEBDATASETS: Mapping[str, type[Sample]] = {
    name.removesuffix("Sample") + "Webdataset": kind for name, kind in SAMPLE_TYPES.items()
}
"""The classes that older files name, each for one type of sample."""
