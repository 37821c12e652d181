"""Samples of text."""

from __future__ import annotations

from energy_data.samples.edataclass import edataclass
from energy_data.samples.typed import Sample


@edataclass
class TextSample(Sample):
    """A text."""

    text: str
