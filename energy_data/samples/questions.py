"""Samples of questions about an image or a video."""

from __future__ import annotations

from typing import Any

import torch

from energy_data.samples.edataclass import edataclass
from energy_data.samples.typed import Sample


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
