"""The sample types that a dataset.yaml can name."""

from __future__ import annotations

from collections.abc import Mapping

from energy_data.samples.images import (
    CaptioningSample,
    ImageClassificationSample,
    ImageSample,
    OCRSample,
)
from energy_data.samples.interleaved import InterleavedSample, SimilarityInterleavedSample
from energy_data.samples.questions import (
    MultiChoiceVQASample,
    VidQASample,
    VQAOCRSample,
    VQASample,
)
from energy_data.samples.text import TextSample
from energy_data.samples.typed import Sample

SAMPLE_TYPES: Mapping[str, type[Sample]] = {
    kind.__name__: kind
    for kind in (
        CaptioningSample,
        ImageClassificationSample,
        ImageSample,
        InterleavedSample,
        MultiChoiceVQASample,
        OCRSample,
        SimilarityInterleavedSample,
        TextSample,
        VQAOCRSample,
        VQASample,
        VidQASample,
    )
}
"""Name -> type, in the order of names."""
