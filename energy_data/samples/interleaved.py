"""Samples of texts and images in turn."""

from __future__ import annotations

import torch

from energy_data.samples.edataclass import edataclass
from energy_data.samples.typed import Sample


@edataclass
class InterleavedSample(Sample):
    """Texts and images in their order."""

    sequence: list[torch.Tensor | str]  # images float32 [3, H, W], texts


@edataclass
class SimilarityInterleavedSample(Sample):
    """Texts and media by kind; which belongs to which is to be told from similarities."""

    images: list[torch.Tensor]  # each float32 [3, H, W]
    texts: list[str]
    audio: list[torch.Tensor] | None = None
    video: list[torch.Tensor] | None = None
    similarity_matrix: torch.Tensor | None = None  # float [images, texts]
    matched_text_indices: list[int] | None = None  # for each image, the number of its text
