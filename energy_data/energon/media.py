"""Energon's names for what is known about media: what `get_media_metadata` of stores returns."""

from energy_data.sources.av_decoder import AVMetadata
from energy_data.sources.media_facts import ImageMetadata

__all__ = ["AVMetadata", "ImageMetadata"]
